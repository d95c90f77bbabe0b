// The Python face: a Runtime (instruction path and threads), packed weights and programs.
// Addresses come in as integers; who owns the memory is settled in backend.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
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

using RefTuple = std::tuple<int, int64_t, std::vector<int64_t>>;
using NodeTuple = std::tuple<std::string, std::vector<int>, std::vector<int>, std::vector<int>,
                             int64_t, double>;

std::unique_ptr<qw::Program> make_program(const std::vector<RefTuple>& refs,
                                          const std::vector<NodeTuple>& nodes, int counted_dim,
                                          int counted_ref) {
  std::vector<qw::RefInfo> ref_infos;
  for (const auto& [kind, item_bytes, shape] : refs) {
    ref_infos.push_back({static_cast<qw::RefKind>(kind), item_bytes, shape});
  }
  std::vector<qw::NodeInfo> node_infos;
  for (const auto& [op, inputs, outputs, updates, layer, value] : nodes) {
    node_infos.push_back({qw::op_from_name(op), inputs, outputs, updates, layer, value});
  }
  return std::make_unique<qw::Program>(std::move(ref_infos), std::move(node_infos), counted_dim,
                                       counted_ref);
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

  nb::class_<qw::Program>(m, "Program")
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

  m.def("make_program", &make_program, "refs"_a, "nodes"_a, "counted_dim"_a, "counted_ref"_a);
}
