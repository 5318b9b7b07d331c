// Tokens drawn from rows of logits, and what a row says about them.
#pragma once

#include <cstdint>
#include <vector>

namespace quire {

// A token weighs e^((logit - largest logit) / temperature). Tokens have an order: by their logits, of equal ones the lowest id first.
// Drawn are those of the first `top_k` that weigh `min_p` at least, and of these the fewest that hold `top_p` of their weight
// (Holtzman et al. 2020).
struct DrawnRow {
    const float* logits;  // [V]; the largest is a number, and none is NaN
    double uniform;       // in [0, 1): the share of weights, by token id, that lies before the token
    double temperature, min_p, top_p;
    int64_t top_k;  // 0: all
};

struct DrawCall {
    const std::vector<DrawnRow>* rows;
    int64_t* token_ids;  // of each row
    int64_t vocab_size;
};

// A token's logprob and its place in the order of all tokens, from 1 on; and the first `num_top` tokens with theirs.
struct LogprobsRow {
    const float* logits;  // [V]
    int64_t token_id, num_top;  // at most V
    int64_t first;              // where they go
};

struct LogprobsCall {
    const std::vector<LogprobsRow>* rows;
    int64_t* token_ids;  // row after row: the token, then the first ones
    float* logprobs;     // of these
    int64_t* ranks;      // of each row's token
    int64_t vocab_size;
};

}  // namespace quire
