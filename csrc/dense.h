// Linear layers with weights of 16 or 32 bits.
#pragma once

#include "linear.h"
#include "most_likely.h"
#include "row_ops.h"

namespace quire {

// Panels of 16 outputs: unit by unit, the weights of one input (float32) or of two (bfloat16) of each output.
struct DenseWeight {
    void* panels;
    int64_t num_inputs, num_outputs;
    bool bfloat16;
};

// x has the weight's type. Scratch: sums that are kept (linear.h); of R rows, rounded up to 16, the units, rounded up to 16; as float32
// where the processor does not multiply bfloat16.
struct DenseCall {
    DenseWeight weight;
    LinearRows rows;
};

// A linear layer of 2 D outputs, and activation(the first D) * the others of each row. `gate` reads where `linear` writes, unless D is
// whole panels: then nothing is stored in between (gates.h), and that memory stays as it was.
struct DenseGatedCall {
    DenseCall linear;
    GateCall gate;
};

// The largest of each row's outputs, without keeping the others: `linear` has nowhere to write to.
struct DenseMostLikelyCall {
    DenseCall linear;
    MostLikelyCall most_likely;
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
