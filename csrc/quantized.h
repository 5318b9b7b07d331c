// Linear layers with weights of 4 or 8 bits, multiplied as integers.
#pragma once

#include <cstdint>

namespace quire {

// Outputs whose weights lie together: a panel. Its last outputs may be padding.
constexpr int PANEL = 16;
// Inputs whose codes for one output lie together.
constexpr int QUAD = 4;

// A weight is scale * (code - zero) + minimum. Scales and minima are those of groups of `group_size` inputs: float16
// numbers d and m of each `groups_per_block` groups, times the group's own small integers where these are more than one.
// A panel holds, for each group, the codes: quad by quad, 4 codes of each of the 16 outputs (with 4 bits two quads share
// 64 bytes, the first in the low halves). Then, for each block, d of each output, m, and for each group its integers.
struct QuantizedWeight {
    const uint8_t* panels;
    int64_t panel_bytes, header_offset;
    int64_t num_inputs, num_outputs;
    int bits, group_size, groups_per_block, zero;
    bool has_minimum;
};

// R rows, K inputs, N outputs; memory belongs to the caller.
struct QuantizedCall {
    QuantizedWeight weight;
    const void* x;      // [R, K], float32 or bfloat16
    const void* bias;   // [N], float32 or bfloat16, or null
    void* y;            // [R, N], rows `y_stride` elements apart
    void* scratch;      // R * (K + 8 * K / group_size) bytes, aligned to 4
    int64_t num_rows, x_stride, y_stride;
    bool x_bfloat16, bias_bfloat16, y_bfloat16;
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
