// The projection to the vocabulary.
#pragma once

#include <cstdint>

namespace quire {

// L rows, K features, V outputs; memory belongs to the caller.
struct LogitsCall {
    const float* x;      // [L, K]
    const void* weight;  // [V, K]
    float* y;            // [L, V]: x @ weight.T
    int64_t num_rows, num_features, num_outputs;
    int num_threads;
};

}  // namespace quire
