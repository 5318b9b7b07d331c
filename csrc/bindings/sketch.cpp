// Sketches of vocabularies in the Python module.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/submit.h"
#include "sketch.h"

namespace nb = nanobind;
using namespace quire;

namespace {

void sketch_rows(const std::string& isa, uintptr_t rows, bool bfloat16, uintptr_t columns, uintptr_t panels, int64_t panel_bytes,
                 int64_t header_offset, uintptr_t lacks, uintptr_t sizes, int64_t num_rows, int64_t num_inputs, int64_t num_columns,
                 int num_threads) {
    SketchRowsCall call{at<void>(rows), at<int64_t>(columns), at<uint8_t>(panels), at<float>(lacks), at<float>(sizes), panel_bytes,
                        header_offset,  num_rows,             num_inputs,          num_columns,      bfloat16};
    submit(nullptr, threads_for(num_rows * num_inputs, num_threads), instruction_set(isa).sketch_rows, call);
}

void sketch_inputs(Program* program, const std::string& isa, uintptr_t x, int64_t x_stride, bool bfloat16, uintptr_t columns,
                   uintptr_t y, uintptr_t bounds, int64_t num_tokens, int64_t num_inputs, int64_t num_columns, int64_t group_size,
                   bool rotated, int num_threads) {
    SketchInputsCall call{at<void>(x), at<int64_t>(columns), at<float>(y), at<float>(bounds), num_tokens, x_stride,
                          num_inputs,  num_columns,          group_size,   bfloat16,          rotated};
    submit(program, threads_for(num_tokens * num_columns, num_threads), instruction_set(isa).sketch_inputs, call);
}

void panels_of(Program* program, const std::string& isa, uintptr_t token_ids, uintptr_t panels, int64_t num_tokens) {
    submit(program, 1, instruction_set(isa).panels_of, PanelsOfCall{at<int64_t>(token_ids), at<int64_t>(panels), num_tokens});
}

void within_reach(Program* program, const std::string& isa, uintptr_t estimates, uintptr_t logits, uintptr_t lacks, uintptr_t sizes,
                  uintptr_t bounds, uintptr_t known, uintptr_t panels, uintptr_t scratch, int64_t num_tokens, int64_t vocab_size,
                  int num_threads) {
    WithinReachCall call{at<float>(estimates), at<float>(logits),    at<float>(lacks),     at<float>(sizes), at<float>(bounds),
                         at<int64_t>(known),   at<int64_t>(panels), at<int64_t>(scratch), num_tokens,       vocab_size};
    submit(program, threads_for(num_tokens * vocab_size, num_threads), instruction_set(isa).within_reach, call);
}

void most_likely_of(Program* program, const std::string& isa, uintptr_t logits, uintptr_t panels, uintptr_t token_ids,
                    uintptr_t largest, int64_t num_tokens, int64_t vocab_size) {
    MostLikelyOfCall call{at<float>(logits), at<int64_t>(panels), at<int64_t>(token_ids), at<float>(largest), num_tokens, vocab_size};
    submit(program, 1, instruction_set(isa).most_likely_of, call);
}

}  // namespace

void bind_sketch(nb::module_& module) {
    module.def("sketch_rows", &sketch_rows, nb::kw_only(), nb::arg("isa"), nb::arg("rows"), nb::arg("bfloat16"), nb::arg("columns"),
               nb::arg("panels"), nb::arg("panel_bytes"), nb::arg("header_offset"), nb::arg("lacks"), nb::arg("sizes"),
               nb::arg("num_rows"), nb::arg("num_inputs"), nb::arg("num_columns"), nb::arg("num_threads"));
    module.def("sketch_inputs", &sketch_inputs, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("x"),
               nb::arg("x_stride"), nb::arg("bfloat16"), nb::arg("columns"), nb::arg("y"), nb::arg("bounds"), nb::arg("num_tokens"),
               nb::arg("num_inputs"), nb::arg("num_columns"), nb::arg("group_size"), nb::arg("rotated"), nb::arg("num_threads"));
    module.def("panels_of", &panels_of, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("token_ids"),
               nb::arg("panels"), nb::arg("num_tokens"));
    module.def("within_reach", &within_reach, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("estimates"),
               nb::arg("logits"), nb::arg("lacks"), nb::arg("sizes"), nb::arg("bounds"), nb::arg("known"), nb::arg("panels"),
               nb::arg("scratch"), nb::arg("num_tokens"), nb::arg("vocab_size"), nb::arg("num_threads"));
    module.def("most_likely_of", &most_likely_of, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("logits"),
               nb::arg("panels"), nb::arg("token_ids"), nb::arg("largest"), nb::arg("num_tokens"), nb::arg("vocab_size"));
}
