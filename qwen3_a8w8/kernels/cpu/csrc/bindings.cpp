// The Python face: a Runtime (instruction path and threads), packed weights and programs.
// Addresses come in as integers; who owns the memory is settled in backend.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "checksum.h"
#include "cpu_features.h"
#include "machine_probe.h"
#include "packing.h"
#include "program.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

class Runtime {
 public:
  Runtime(const std::string& isa, int num_threads) : pool_(num_threads) {
    for (const auto& path : qw::instruction_paths()) {
      if (path.is_runnable && isa == path.name) kernels_ = path.table;
    }
    if (kernels_ == nullptr) throw std::invalid_argument("instruction path not runnable: " + isa);
  }

  const qw::KernelTable& kernels() const { return *kernels_; }
  qw::ThreadPool& pool() { return pool_; }
  void close() {
    const std::lock_guard<std::mutex> lock(pool_.run_mutex());
    pool_.close();
  }

 private:
  const qw::KernelTable* kernels_ = nullptr;
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
  m.attr("packed_layout") = qw::kPackedLayout;
  m.def("usable_cores", &qw::usable_cores, "Cores this process may use.");
  m.def("compiled_paths", [] { return names_of_paths(false); },
        "Names of the instruction paths in this build, fastest first.");
  m.def("runnable_paths", [] { return names_of_paths(true); },
        "Those of them that this machine can run.");

  nb::class_<Runtime>(m, "Runtime")
      .def(nb::init<const std::string&, int>(), "isa"_a, "num_threads"_a)
      .def("close", &Runtime::close, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<qw::LinearWeights>(m, "LinearWeights")
      .def_static(
          "at",
          [](uintptr_t data, int64_t out_features, int64_t in_features, nb::handle /*owner*/) {
            return std::make_unique<qw::LinearWeights>(reinterpret_cast<const uint8_t*>(data),
                                                       out_features, in_features);
          },
          "data"_a, "out_features"_a, "in_features"_a, "owner"_a, nb::keep_alive<0, 4>())
      .def("data_ptr",
           [](const qw::LinearWeights& w) { return reinterpret_cast<uintptr_t>(w.view().data); })
      .def_prop_ro("nbytes", [](const qw::LinearWeights& w) { return w.view().bytes(); });

  m.def(
      "pack_linear",
      [](Runtime& runtime, uintptr_t data, int64_t out_features, int64_t in_features) {
        const std::lock_guard<std::mutex> lock(runtime.pool().run_mutex());
        runtime.pool().adopt_process();
        return std::make_unique<qw::LinearWeights>(reinterpret_cast<const int8_t*>(data),
                                                   out_features, in_features, runtime.pool());
      },
      "runtime"_a, "data"_a, "out_features"_a, "in_features"_a,
      nb::call_guard<nb::gil_scoped_release>());

  m.def(
      "checksum",
      [](Runtime& runtime, uintptr_t data, int64_t bytes) {
        const std::lock_guard<std::mutex> lock(runtime.pool().run_mutex());
        runtime.pool().adopt_process();
        return qw::checksum(reinterpret_cast<const char*>(data), bytes, runtime.pool());
      },
      "runtime"_a, "data"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "probe_read",
      [](Runtime& runtime, int64_t bytes, int64_t prefetch_bytes, int passes) {
        const std::lock_guard<std::mutex> lock(runtime.pool().run_mutex());
        runtime.pool().adopt_process();
        return qw::probe_read(runtime.kernels(), runtime.pool(), bytes, prefetch_bytes, passes);
      },
      "runtime"_a, "bytes"_a, "prefetch_bytes"_a, "passes"_a,
      nb::call_guard<nb::gil_scoped_release>(), "Seconds of each pass over a buffer.");
  m.def(
      "probe_multiply",
      [](Runtime& runtime, int64_t rounds, int passes) {
        const std::lock_guard<std::mutex> lock(runtime.pool().run_mutex());
        runtime.pool().adopt_process();
        return qw::probe_multiply(runtime.kernels(), runtime.pool(), rounds, passes);
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
            p.run(runtime.kernels(), runtime.pool(), args, dims);
          },
          "runtime"_a, "args"_a, "dims"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &qw::Program::close);
}
