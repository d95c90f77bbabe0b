// The Python face: a Runtime (instruction path and threads), packed weights and programs. They
// refer to no Python objects; addresses come in as integers. backend.py owns the memory behind
// those, and native.py decides how long the objects live.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "checksum.h"
#include "cpu_features.h"
#include "live_object.h"
#include "machine_probe.h"
#include "packing.h"
#include "program.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Becomes a KernelUnavailableError in Python.
struct RuntimeClosed : std::runtime_error {
  RuntimeClosed() : std::runtime_error("this CPU backend is closed; make another one") {}
};

class Runtime : public qw::LiveObject {
 public:
  Runtime(const std::string& isa, int num_threads) : pool_(num_threads) {
    for (const auto& path : qw::instruction_paths()) {
      if (path.is_runnable && isa == path.name) kernels_ = path.table;
    }
    if (kernels_ == nullptr) throw std::invalid_argument("instruction path not runnable: " + isa);
  }

  // Returns work(kernels, pool), one call at a time. Throws RuntimeClosed after `close`.
  template <class Work>
  auto use(Work work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) throw RuntimeClosed();
    pool_.adopt_process();
    return work(*kernels_, pool_);
  }

  // Waits for the call under way, refuses later ones and joins the threads.
  void close() {
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    // A forked child has inherited the mutex as it was, perhaps locked by a thread it doesn't have.
    if (!pool_.is_inherited()) lock.lock();
    is_closed_ = true;
    pool_.close();
  }

 private:
  const qw::KernelTable* kernels_ = nullptr;
  bool is_closed_ = false;
  std::mutex mutex_;
  qw::ThreadPool pool_;
};

std::vector<std::string> sample_inputs() {
#define QW_NAME(Element, name) #name,
  return {QW_SAMPLE_INPUTS(QW_NAME)};
#undef QW_NAME
}

std::vector<std::string> names_of_paths(bool only_runnable) {
  std::vector<std::string> names;
  for (const auto& path : qw::instruction_paths()) {
    if (path.is_runnable || !only_runnable) names.emplace_back(path.name);
  }
  return names;
}

}  // namespace

NB_MODULE(_native, m) {
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const RuntimeClosed& closed) {
      const nb::object type =
          nb::module_::import_("qwen3_a8w8.errors").attr("KernelUnavailableError");
      PyErr_SetString(type.ptr(), closed.what());
    }
  });

  m.attr("packed_layout") = qw::kPackedLayout;
  m.def("usable_cores", &qw::usable_cores, "Cores this process may use.");
  m.def("compiled_paths", [] { return names_of_paths(false); },
        "Names of the instruction paths in this build, fastest first.");
  m.def("runnable_paths", [] { return names_of_paths(true); },
        "Those of them that this machine can run.");
  m.def("num_live_objects", &qw::LiveObject::count,
        "Number of runtimes, programs and packed weights that exist.");

  nb::class_<Runtime>(m, "Runtime")
      .def(nb::init<const std::string&, int>(), "isa"_a, "num_threads"_a)
      .def("close", &Runtime::close, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<qw::LinearWeights>(m, "LinearWeights")
      .def(
          "__init__",
          [](qw::LinearWeights* self, uintptr_t data, int64_t out_features, int64_t in_features) {
            const auto* packed = reinterpret_cast<const uint8_t*>(data);
            new (self) qw::LinearWeights(packed, out_features, in_features);
          },
          "data"_a, "out_features"_a, "in_features"_a,
          "Refers to packed weights, which the caller keeps.")
      .def("data_ptr",
           [](const qw::LinearWeights& w) { return reinterpret_cast<uintptr_t>(w.view().data); })
      .def_prop_ro("nbytes", [](const qw::LinearWeights& w) { return w.view().bytes(); });

  m.def(
      "pack_linear",
      [](Runtime& runtime, uintptr_t data, int64_t out_features, int64_t in_features) {
        return runtime.use([&](const qw::KernelTable&, qw::Team& team) {
          return std::make_unique<qw::LinearWeights>(reinterpret_cast<const int8_t*>(data),
                                                     out_features, in_features, team);
        });
      },
      "runtime"_a, "data"_a, "out_features"_a, "in_features"_a,
      nb::call_guard<nb::gil_scoped_release>());

  m.def(
      "checksum",
      [](Runtime& runtime, uintptr_t data, int64_t bytes) {
        return runtime.use([&](const qw::KernelTable&, qw::Team& team) {
          return qw::checksum(reinterpret_cast<const char*>(data), bytes, team);
        });
      },
      "runtime"_a, "data"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "probe_read",
      [](Runtime& runtime, int64_t bytes, int64_t prefetch_bytes, int passes) {
        return runtime.use([&](const qw::KernelTable& kernels, qw::Team& team) {
          return qw::probe_read(kernels, team, bytes, prefetch_bytes, passes);
        });
      },
      "runtime"_a, "bytes"_a, "prefetch_bytes"_a, "passes"_a,
      nb::call_guard<nb::gil_scoped_release>(), "Seconds of each pass over a buffer.");
  m.def(
      "probe_multiply",
      [](Runtime& runtime, int64_t rounds, int passes) {
        return runtime.use([&](const qw::KernelTable& kernels, qw::Team& team) {
          return qw::probe_multiply(kernels, team, rounds, passes);
        });
      },
      "runtime"_a, "rounds"_a, "passes"_a, nb::call_guard<nb::gil_scoped_release>(),
      "int8 multiply-adds per second of each pass.");

  // Refs and nodes are made with named fields, so that no order has to agree with Python.
  nb::class_<qw::RefInfo>(m, "Ref").def(
      "__init__",
      [](qw::RefInfo* self, const std::string& kind, int64_t item_bytes,
         std::vector<int64_t> shape) {
        new (self) qw::RefInfo{qw::ref_kind(kind), item_bytes, std::move(shape)};
      },
      nb::kw_only(), "kind"_a, "item_bytes"_a, "shape"_a);
  nb::class_<qw::NodeInfo>(m, "Node").def(
      "__init__",
      [](qw::NodeInfo* self, const std::string& op, std::vector<int> inputs,
         std::vector<int> outputs, std::vector<int> updates, int64_t layer, double eps,
         double scale) {
        new (self) qw::NodeInfo{qw::find_op(op, inputs, outputs, updates)};
        self->inputs = std::move(inputs);
        self->outputs = std::move(outputs);
        self->updates = std::move(updates);
        self->layer = layer;
        self->eps = eps;
        self->scale = scale;
      },
      nb::kw_only(), "op"_a, "inputs"_a, "outputs"_a, "updates"_a, "layer"_a = 0, "eps"_a = 0.0,
      "scale"_a = 0.0);
  m.attr("sample_inputs") = sample_inputs();

  nb::class_<qw::Program>(m, "Program")
      .def(nb::init<std::vector<qw::RefInfo>, std::vector<qw::NodeInfo>, int, int>(),
           nb::kw_only(), "refs"_a, "nodes"_a, "counted_dim"_a, "counted_ref"_a)
      .def_prop_ro("arena_bytes", &qw::Program::arena_bytes)
      .def("bind", [](qw::Program& p, int ref, uintptr_t data) {
        p.bind(ref, reinterpret_cast<const void*>(data));
      })
      .def("bind_linear", [](qw::Program& p, int ref, const qw::LinearWeights& weights) {
        p.bind_linear(ref, weights.view());
      })
      .def(
          "run",
          [](qw::Program& p, Runtime& runtime, const std::vector<uintptr_t>& args,
             const std::vector<int64_t>& dims) {
            runtime.use([&](const qw::KernelTable& kernels, qw::Team& team) {
              p.run(kernels, team, args, dims);
            });
          },
          "runtime"_a, "args"_a, "dims"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &qw::Program::close);
}
