// Weights rounded to 4 or 8 bits as they are loaded, straight into panels (quantized.h). The twin is tests/twins/rounding.py: the same
// bits, but for rotated rows, whose sums have another order.
#pragma once

#include <cstdint>

namespace quire {

// Whole panels of R rows; outputs that there are not become zeros.
struct RoundRowsCall {
    const float* rows;  // [R, K], finite
    uint8_t* panels;
    int64_t panel_bytes, header_offset;
    int64_t num_rows, num_inputs;
    int64_t group_size;  // of whole 32 inputs, and a row is whole groups
    int bits;
    bool has_minimum;  // with 4 bits alone
    bool rotated;      // before (rotation.h): with 8 bits, and one group a row
};

}  // namespace quire
