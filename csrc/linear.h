// What linear layers of every kind of weight have in common: the rows they read and write.
#pragma once

#include <cstdint>

namespace quire {

// Outputs whose weights lie together: a panel. Its last outputs may be padding.
constexpr int PANEL = 16;
// Bytes of a panel that are multiplied together: of each of its outputs the weights of one, two or four inputs.
constexpr int UNIT = 4;

// A core's second cache holds few rows of many inputs, and for each few rows all weights would be read again. So many rows are
// multiplied a stretch of their inputs at a time, of which it holds more; where a layer has no more outputs than inputs, for sums
// have to be kept in between (stretches.h).
constexpr int64_t STRETCH_BYTES = 4096;  // of one output's weights
constexpr int64_t FEWEST_LONG_ROWS = 17;

constexpr int64_t num_stretches(int64_t num_rows, int64_t row_bytes, int64_t num_inputs, int64_t num_outputs) {
    bool many = num_rows >= FEWEST_LONG_ROWS && row_bytes > 2 * STRETCH_BYTES && num_outputs <= num_inputs;
    return many ? (row_bytes + STRETCH_BYTES - 1) / STRETCH_BYTES : 1;
}

// Of sums between stretches, in scratch, in front of everything else: of whole tiles of 16 rows and whole panels.
constexpr int64_t bytes_of_kept_sums(int64_t num_rows, int64_t row_bytes, int64_t num_inputs, int64_t num_outputs) {
    if (num_stretches(num_rows, row_bytes, num_inputs, num_outputs) == 1) return 0;
    return (num_rows + 15) / 16 * 16 * ((num_outputs + PANEL - 1) / PANEL * PANEL) * 4;
}

// R rows, K inputs, N outputs; memory belongs to the caller.
struct LinearRows {
    const void* x;     // [R, K], rows `x_stride` elements apart
    const void* bias;  // [N], or null
    void* y;           // [R, N], rows `y_stride` elements apart
    void* scratch;     // aligned to a cache line; what it holds is said where the weight is
    int64_t num_rows, x_stride, y_stride;
    bool x_bfloat16, bias_bfloat16, y_bfloat16;  // float32 where not
    const float* norm_weight = nullptr;  // [K]: x is normalized as it is read (norms.h); where the weight is rotated
    float norm_eps = 0.0f;
    bool adds = false;  // y holds what results are added to, before they are rounded
    bool keeps_largest = false;  // y [R] is of what keeps the largest of each row (largest_of_rows.h)
    const int64_t* panels = nullptr;  // how many, and which: the other outputs stay as they were. Null: all

    int64_t num_panels(int64_t num_outputs) const { return panels ? panels[0] : (num_outputs + PANEL - 1) / PANEL; }
    int64_t panel(int64_t index) const { return panels ? panels[1 + index] : index; }
};

}  // namespace quire
