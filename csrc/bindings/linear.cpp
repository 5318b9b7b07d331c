// Linear layers in the Python module.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/submit.h"
#include "packing.h"

namespace nb = nanobind;
using namespace quire;

namespace {

// A row's address and its stride in elements, and whether it is bfloat16.
using Rows = std::tuple<uintptr_t, int64_t, bool>;

// Of rows that are normalized as they are read: the weight's address, and eps.
using Norm = std::pair<uintptr_t, float>;

LinearRows linear_rows(const Rows& x, const Rows& bias, const Rows& y, uintptr_t scratch, int64_t num_rows, bool adds = false, uintptr_t panels = 0) {
    LinearRows rows{at<void>(std::get<0>(x)), at<void>(std::get<0>(bias)), at<void>(std::get<0>(y)), at<void>(scratch), num_rows,
                    std::get<1>(x),           std::get<1>(y),              std::get<2>(x),           std::get<2>(bias), std::get<2>(y)};
    rows.adds = adds;
    rows.panels = at<int64_t>(panels);
    return rows;
}

int64_t whole(int64_t count, int64_t size) { return (count + size - 1) / size; }

Range memory_of(const DenseWeight& weight) {
    int64_t num_units = weight.bfloat16 ? whole(weight.num_inputs, 2) : weight.num_inputs;
    return {weight.panels, whole(weight.num_outputs, PANEL) * PANEL * num_units * UNIT};
}

Range memory_of(const QuantizedWeight& weight) {
    return {weight.panels, whole(weight.num_outputs, PANEL) * weight.panel_bytes};
}

LinearRows normalized(LinearRows rows, const Norm& norm) {
    rows.norm_weight = at<float>(norm.first);
    rows.norm_eps = norm.second;
    return rows;
}

void dense_linear(Program* program, const std::string& isa, const DenseWeight& weight, const Rows& x, const Rows& bias,
                  const Rows& y, bool adds, uintptr_t scratch, int64_t num_rows, uintptr_t panels, int num_threads) {
    submit(program, num_threads, instruction_set(isa).dense_linear, DenseCall{weight, linear_rows(x, bias, y, scratch, num_rows, adds, panels)}, 0,
           panels ? Range{nullptr, 0} : memory_of(weight));
}

void quantized_linear(Program* program, const std::string& isa, const QuantizedWeight& weight, const Rows& x, const Norm& norm,
                      const Rows& bias, const Rows& y, bool adds, uintptr_t scratch, int64_t num_rows, uintptr_t panels, int num_threads) {
    submit(program, num_threads, instruction_set(isa).quantized_linear,
           QuantizedCall{weight, normalized(linear_rows(x, bias, y, scratch, num_rows, adds, panels), norm)}, 0, panels ? Range{nullptr, 0} : memory_of(weight),
           weight.rotated ? num_rows : 0);
}

GateCall gate_of_halves(const Rows& both, uintptr_t y, int64_t num_rows, int64_t width, Activation activation) {
    auto [address, stride, bfloat16] = both;
    Vectors gate{at<void>(address), stride, 0}, up{at<uint8_t>(address) + width * (bfloat16 ? 2 : 4), stride, 0};
    return {gate, up, {at<void>(y), width, 0}, num_rows, width, activation, bfloat16};
}

void dense_gated(Program* program, const std::string& isa, const DenseWeight& weight, const Rows& x, const Rows& both, uintptr_t y,
                 uintptr_t scratch, int64_t num_rows, Activation activation, int num_threads) {
    DenseGatedCall call{{weight, linear_rows(x, {0, 0, false}, both, scratch, num_rows)},
                        gate_of_halves(both, y, num_rows, weight.num_outputs / 2, activation)};
    submit(program, num_threads, instruction_set(isa).dense_gated, call, 0, memory_of(weight));
}

void quantized_gated(Program* program, const std::string& isa, const QuantizedWeight& weight, const Rows& x, const Norm& norm,
                     const Rows& both, uintptr_t y, uintptr_t scratch, int64_t num_rows, Activation activation, int num_threads) {
    QuantizedGatedCall call{{weight, normalized(linear_rows(x, {0, 0, false}, both, scratch, num_rows), norm)},
                            gate_of_halves(both, y, num_rows, weight.num_outputs / 2, activation)};
    submit(program, num_threads, instruction_set(isa).quantized_gated, call, 0, memory_of(weight), weight.rotated ? num_rows : 0);
}

// With nowhere to write to: what keeps the largest says so itself.
MostLikelyCall largest_of(uintptr_t token_ids, uintptr_t largest, uintptr_t scratch, int64_t num_rows, int64_t num_outputs) {
    return {nullptr, at<int64_t>(token_ids), at<float>(largest), at<void>(scratch), num_rows, num_outputs};
}

void dense_most_likely(Program* program, const std::string& isa, const DenseWeight& weight, const Rows& x, uintptr_t token_ids,
                       uintptr_t largest, uintptr_t scratch, uintptr_t members, int64_t num_rows, int num_threads) {
    DenseMostLikelyCall call{{weight, linear_rows(x, {0, 0, false}, {0, 0, false}, scratch, num_rows)},
                             largest_of(token_ids, largest, members, num_rows, weight.num_outputs)};
    submit(program, num_threads, instruction_set(isa).dense_most_likely, call, 0, memory_of(weight));
}

void quantized_most_likely(Program* program, const std::string& isa, const QuantizedWeight& weight, const Rows& x, uintptr_t token_ids,
                           uintptr_t largest, uintptr_t scratch, uintptr_t members, int64_t num_rows, int num_threads) {
    QuantizedMostLikelyCall call{{weight, linear_rows(x, {0, 0, false}, {0, 0, false}, scratch, num_rows)},
                                 largest_of(token_ids, largest, members, num_rows, weight.num_outputs)};
    submit(program, num_threads, instruction_set(isa).quantized_most_likely, call, 0, memory_of(weight), weight.rotated ? num_rows : 0);
}

void dense_rows(Program* program, const std::string& isa, const DenseWeight& weight, uintptr_t indices, int64_t num_indices,
                uintptr_t y, int num_threads) {
    DenseRowsCall call{weight, at<int64_t>(indices), at<void>(y), num_indices};
    submit(program, threads_for(num_indices * weight.num_inputs, num_threads), instruction_set(isa).dense_rows, call);
}

void panel_rows(Program* program, const std::string& isa, const QuantizedWeight& weight, uintptr_t indices,
                int64_t num_indices, uintptr_t y, bool y_bfloat16, int num_threads) {
    PanelRowsCall call{weight, at<int64_t>(indices), at<void>(y), num_indices, y_bfloat16};
    submit(program, threads_for(num_indices * weight.num_inputs, num_threads), instruction_set(isa).panel_rows, call);
}

void pack_panels(const std::string& isa, uintptr_t memory, int64_t num_panels, int64_t num_units, int num_threads) {
    PackCall call{at<void>(memory), num_panels, num_units};
    submit(nullptr, packing_threads(num_panels * num_units * PANEL, num_threads), instruction_set(isa).pack_panels, call);
}

void round_rows(const std::string& isa, uintptr_t rows, uintptr_t panels, int64_t panel_bytes, int64_t header_offset, int64_t num_rows,
                int64_t num_inputs, int64_t group_size, int bits, bool has_minimum, bool rotated, int num_threads) {
    RoundRowsCall call{at<float>(rows), at<uint8_t>(panels), panel_bytes, header_offset, num_rows, num_inputs, group_size, bits, has_minimum, rotated};
    submit(nullptr, threads_for(num_rows * num_inputs, num_threads), instruction_set(isa).round_rows, call);
}

bool pack_blocks_to_panels(const std::string& type, uintptr_t blocks, int64_t row_bytes, uintptr_t rows, int64_t num_rows,
                           int64_t num_blocks, uintptr_t panels, int64_t panel_bytes, int64_t header_offset, int num_threads) {
    nb::gil_scoped_release released;
    return pack_blocks(type, {at<uint8_t>(blocks), row_bytes, at<int64_t>(rows), num_rows, num_blocks},
                       {at<uint8_t>(panels), panel_bytes, header_offset}, num_threads);
}

}  // namespace

void bind_linear(nb::module_& module) {
    nb::class_<DenseWeight>(module, "DenseWeight")
        .def("__init__",
             [](DenseWeight* self, uintptr_t panels, int64_t num_inputs, int64_t num_outputs, bool bfloat16) {
                 new (self) DenseWeight{at<void>(panels), num_inputs, num_outputs, bfloat16};
             },
             nb::kw_only(), nb::arg("panels"), nb::arg("num_inputs"), nb::arg("num_outputs"), nb::arg("bfloat16"));
    nb::class_<QuantizedWeight>(module, "QuantizedWeight")
        .def("__init__",
             [](QuantizedWeight* self, uintptr_t panels, int64_t panel_bytes, int64_t header_offset, int64_t num_inputs,
                int64_t num_outputs, int bits, int group_size, int groups_per_block, int zero, bool has_minimum, bool rotated,
                bool inputs_rotated) {
                 QuantizedWeight weight{at<uint8_t>(panels), panel_bytes,      header_offset, num_inputs,  num_outputs, bits,
                                        group_size,          groups_per_block, zero,          has_minimum, rotated,     inputs_rotated};
                 if (!weight.is_known()) throw std::invalid_argument("No kernel multiplies weights of this kind (csrc/quantized.h, is_known).");
                 new (self) QuantizedWeight(weight);
             },
             nb::kw_only(), nb::arg("panels"), nb::arg("panel_bytes"), nb::arg("header_offset"), nb::arg("num_inputs"),
             nb::arg("num_outputs"), nb::arg("bits"), nb::arg("group_size"), nb::arg("groups_per_block"), nb::arg("zero"),
             nb::arg("has_minimum"), nb::arg("rotated"), nb::arg("inputs_rotated"));
    module.def("dense_linear", &dense_linear, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"), nb::arg("x"),
               nb::arg("bias"), nb::arg("y"), nb::arg("adds"), nb::arg("scratch"), nb::arg("num_rows"), nb::arg("panels"),
               nb::arg("num_threads"));
    module.def("quantized_linear", &quantized_linear, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"),
               nb::arg("x"), nb::arg("norm"), nb::arg("bias"), nb::arg("y"), nb::arg("adds"), nb::arg("scratch"), nb::arg("num_rows"), nb::arg("panels"),
               nb::arg("num_threads"));
    module.def("dense_gated", &dense_gated, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"), nb::arg("x"),
               nb::arg("both"), nb::arg("y"), nb::arg("scratch"), nb::arg("num_rows"), nb::arg("activation"), nb::arg("num_threads"));
    module.def("quantized_gated", &quantized_gated, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"), nb::arg("x"), nb::arg("norm"),
               nb::arg("both"), nb::arg("y"), nb::arg("scratch"), nb::arg("num_rows"), nb::arg("activation"), nb::arg("num_threads"));
    module.def("dense_most_likely", &dense_most_likely, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("weight"),
               nb::arg("x"), nb::arg("token_ids"), nb::arg("largest"), nb::arg("scratch"), nb::arg("members"), nb::arg("num_rows"),
               nb::arg("num_threads"));
    module.def("quantized_most_likely", &quantized_most_likely, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("weight"),
               nb::arg("x"), nb::arg("token_ids"), nb::arg("largest"), nb::arg("scratch"), nb::arg("members"), nb::arg("num_rows"),
               nb::arg("num_threads"));
    module.attr("LARGEST_OF_ROW_BYTES") = LARGEST_OF_ROW_BYTES;
    module.def("bytes_of_kept_sums", &bytes_of_kept_sums, nb::kw_only(), nb::arg("num_rows"), nb::arg("row_bytes"), nb::arg("num_inputs"), nb::arg("num_outputs"));
    module.def("dense_rows", &dense_rows, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"), nb::arg("indices"),
               nb::arg("num_indices"), nb::arg("y"), nb::arg("num_threads"));
    module.def("panel_rows", &panel_rows, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"), nb::arg("indices"),
               nb::arg("num_indices"), nb::arg("y"), nb::arg("y_bfloat16"), nb::arg("num_threads"));
    module.def("pack_panels", &pack_panels, nb::arg("isa"), nb::arg("memory"), nb::arg("num_panels"), nb::arg("num_units"),
               nb::arg("num_threads"));
    module.def("round_rows", &round_rows, nb::kw_only(), nb::arg("isa"), nb::arg("rows"), nb::arg("panels"), nb::arg("panel_bytes"),
               nb::arg("header_offset"), nb::arg("num_rows"), nb::arg("num_inputs"), nb::arg("group_size"), nb::arg("bits"),
               nb::arg("has_minimum"), nb::arg("rotated"), nb::arg("num_threads"));
    module.def("pack_blocks", &pack_blocks_to_panels, nb::kw_only(), nb::arg("type"), nb::arg("blocks"), nb::arg("row_bytes"),
               nb::arg("rows"), nb::arg("num_rows"), nb::arg("num_blocks"), nb::arg("panels"), nb::arg("panel_bytes"),
               nb::arg("header_offset"), nb::arg("num_threads"));
}
