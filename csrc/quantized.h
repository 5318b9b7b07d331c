// Linear layers with weights of 4 or 8 bits, multiplied as integers.
#pragma once

#include "linear.h"
#include "most_likely.h"
#include "row_ops.h"

namespace quire {

// Of inputs: sums of products with more do not fit 32 bits (of parts of them they may wrap, and wrap back), where each 32 have an outlier that
// is as large as it can be; and of rotated rows, which have none.
constexpr int LARGEST_GROUP = 16384, LARGEST_ROTATED_GROUP = 65536;

// A weight is scale * (code - zero) + minimum. Scales and minima are those of groups of `group_size` inputs: float16
// numbers d and m of each `groups_per_block` groups, times the group's own small integers where these are more than one.
// A panel holds, for each group, the codes: unit by unit, 4 codes of each of the 16 outputs (with 4 bits two units share
// 64 bytes, the first in the low halves). Then, for each block, d of each output, m, and for each group its integers.
struct QuantizedWeight {
    const uint8_t* panels;
    int64_t panel_bytes, header_offset;
    int64_t num_inputs, num_outputs;
    int bits, group_size, groups_per_block, zero;
    bool has_minimum;
    bool rotated;  // its rows were, and so must be those that it is multiplied by (rotation.h): 8 bits, one group and no minimum
    bool inputs_rotated;  // what it is multiplied by comes rotated: it is used as it is

    // Each kind is compiled, in several sizes and for every instruction set: those that there are, of rounded weights and of GGUF's types,
    // of which one alone has groups of 16 (Q6_K).
    bool is_known() const {
        if (inputs_rotated && !rotated) return false;
        if (group_size > (rotated ? LARGEST_ROTATED_GROUP : LARGEST_GROUP)) return false;
        if (rotated) return bits == 8 && group_size == num_inputs && groups_per_block == 1 && !has_minimum && group_size % 32 == 0;
        if (group_size == 16) return bits == 8 && groups_per_block > 1 && !has_minimum;
        return (bits == 4 || bits == 8) && group_size % 32 == 0 && (groups_per_block == 1 || has_minimum);
    }
};

// Scratch: sums that are kept (linear.h), of weights that are rotated; and (integer_rows.h) for each row K bytes, 12 for each group of inputs, and 8 for each 32 inputs of one, or for a smaller one;
// of whole tiles of 16 rows.
struct QuantizedCall {
    QuantizedWeight weight;
    LinearRows rows;
};

// As DenseGatedCall.
struct QuantizedGatedCall {
    QuantizedCall linear;
    GateCall gate;
};

// The largest of each row's outputs, without keeping the others: `linear` has nowhere to write to.
struct QuantizedMostLikelyCall {
    QuantizedCall linear;
    MostLikelyCall most_likely;
};

// Rows of a weight as floats.
struct PanelRowsCall {
    QuantizedWeight weight;
    const int64_t* indices;  // [T]
    void* y;                 // [T, K]
    int64_t num_indices;
    bool y_bfloat16;
};

}  // namespace quire
