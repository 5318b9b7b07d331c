// The Python module quire._native. Addresses and sizes come from the files of quire/kernels, which check them. What arrays hold
// (blocks, slots, lengths, indices) is nobody's to check here: a recorded program reads what they hold when it runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "instruction_sets.h"
#include "kernel_clock.h"
#include "program.h"
#include "seats.h"

namespace nb = nanobind;
using namespace quire;

void bind_attention(nb::module_& module);
void bind_linear(nb::module_& module);
void bind_row_ops(nb::module_& module);
void bind_sampling(nb::module_& module);
void bind_sketch(nb::module_& module);
void bind_step_inputs(nb::module_& module);

namespace {

int run(Program& program, int num_threads, std::optional<std::pair<int64_t, int64_t>> counts) {
    return program.run(num_threads, counts ? std::optional(Counts{counts->first, counts->second, program.num_rows()}) : std::nullopt);
}

using Times = std::vector<std::tuple<int64_t, int64_t, double>>;

std::vector<std::tuple<std::string, int64_t, int64_t, Times>> kernel_times() {
    std::vector<std::tuple<std::string, int64_t, int64_t, Times>> kernels;
    for (const ClockedKernel& kernel : clocked_kernels()) {
        Times times;
        for (const KernelTime& time : kernel.times) times.push_back({time.num_tokens, time.num_rows, time.seconds});
        kernels.push_back({kernel.name, kernel.place, kernel.weight_bytes, std::move(times)});
    }
    return kernels;
}

}  // namespace

NB_MODULE(_native, module) {
    // A process that ends may leave objects to the system; who serves has told the collector to (host/collector.py).
    nb::set_leak_warnings(false);
    module.doc() = "Native CPU kernels; their faces are in quire.kernels.";
    nb::class_<Program>(module, "Program")
        .def(nb::init<int64_t>(), nb::arg("num_rows"))
        .def("run", &run, nb::arg("num_threads"), nb::arg("counts").none(), nb::call_guard<nb::gil_scoped_release>())
        .def("__len__", &Program::size);
    module.def("instruction_sets", [] { return instruction_sets(true); });
    module.def("emulated_sets", [] { return instruction_sets(false); });
    module.def("clock_kernels", &clock_kernels, nb::arg("on"));
    module.def("clocked_kernels", &kernel_times);
    module.def("use_cores", &use_cores, nb::arg("cores"));
    bind_attention(module);
    bind_linear(module);
    bind_row_ops(module);
    bind_sampling(module);
    bind_sketch(module);
    bind_step_inputs(module);
}
