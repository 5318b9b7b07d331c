// Logits of tokens that have occurred are moved.
#pragma once

#include <cstdint>
#include <vector>

#include "most_likely.h"

namespace quire {

// Logits above 0 are divided by `repetition` and others multiplied (Keskar et al. 2019); then each occurrence in the output costs
// `frequency`, and the first one `presence`.
struct PenalizedRow {
    const float* logits;        // [V]
    float* penalized;           // [V], which may be the same
    const int64_t* token_ids;   // [U], each once
    const float* output_counts;  // [U]: how often it is in the output
    int64_t num_tokens;         // U
    double presence, frequency, repetition;
};

struct PenalizeCall {
    const std::vector<PenalizedRow>* rows;
    Largest* largest;  // of each row, then
    int64_t vocab_size;
};

}  // namespace quire
