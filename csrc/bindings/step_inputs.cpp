// StepInputs in the Python module.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "step_inputs.h"

namespace nb = nanobind;
using namespace quire;

namespace {

int64_t* numbers_at(uintptr_t address) { return reinterpret_cast<int64_t*>(address); }

void make_step_inputs(StepInputs* self, uintptr_t token_ids, uintptr_t positions, uintptr_t query_starts, uintptr_t context_lens,
                      uintptr_t last_tokens, const std::vector<std::pair<uintptr_t, uintptr_t>>& groups, int64_t max_blocks,
                      int64_t block_size) {
    new (self) StepInputs{numbers_at(token_ids), numbers_at(positions), numbers_at(query_starts), numbers_at(context_lens),
                          numbers_at(last_tokens), {}, max_blocks, block_size, {}};
    for (auto [block_tables, slots] : groups) self->groups.push_back({numbers_at(block_tables), numbers_at(slots)});
}

void read_from(StepInputs& self, uintptr_t tokens, int64_t max_tokens, const std::vector<uintptr_t>& blocks) {
    self.tables = {numbers_at(tokens), max_tokens, {}};
    for (uintptr_t table : blocks) self.tables.blocks.push_back(numbers_at(table));
}

}  // namespace

void bind_step_inputs(nb::module_& module) {
    nb::class_<StepInputs>(module, "StepInputs")
        .def("__init__", &make_step_inputs, nb::kw_only(), nb::arg("token_ids"), nb::arg("positions"),
             nb::arg("query_starts"), nb::arg("context_lens"), nb::arg("last_tokens"), nb::arg("groups"), nb::arg("max_blocks"),
             nb::arg("block_size"))
        .def("read_from", &read_from, nb::arg("tokens"), nb::arg("max_tokens"), nb::arg("blocks"))
        .def("fill", &StepInputs::fill, nb::arg("rows"), nb::arg("starts"), nb::arg("counts"));
}
