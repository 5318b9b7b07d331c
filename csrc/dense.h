// Linear layers with weights of 16 or 32 bits.
#pragma once

#include "linear.h"

namespace quire {

// Panels of 16 outputs: unit by unit, the weights of one input (float32) or of two (bfloat16) of each output.
struct DenseWeight {
    void* panels;
    int64_t num_inputs, num_outputs;
    bool bfloat16;
};

// x has the weight's type. Scratch: R times the units of a row, with LINEAR_ROWS rows more.
struct DenseCall {
    DenseWeight weight;
    LinearRows rows;
};

// Rows of a weight, as they were before they were laid out.
struct DenseRowsCall {
    DenseWeight weight;
    const int64_t* indices;  // [T]
    void* y;                 // [T, K]
    int64_t num_indices;
};

// Rows of 16 outputs become a panel in the same memory. Each row has whole units.
struct PackCall {
    void* memory;  // [panels, 16, units]
    int64_t num_panels, num_units;
};

}  // namespace quire
