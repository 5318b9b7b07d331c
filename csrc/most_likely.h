// The largest of each row of logits.
#pragma once

#include <cstdint>

namespace quire {

struct MostLikelyCall {
    const float* logits;  // [L, V]
    int64_t* token_ids;   // [L], the lowest where several are largest; the first that is not a number, where there is one
    float* largest;       // [L]
    void* scratch;        // num_rows * parts_of(V) of Largest; or of the kernels that find the largest while they multiply, for each
                          // member and row a LargestOfRow (largest_of_rows.h)
    int64_t num_rows, num_tokens;
};

struct Largest {
    float logit;
    int64_t token_id;
};

constexpr int64_t LARGEST_OF_ROW_BYTES = 128;

// A value that is not a number is larger than all others, and equal to its like. (Always inlined: no instruction set's file may share
// another one's code.)
[[gnu::always_inline]] inline bool exceeds(float x, float y) { return x > y || (x != x && y == y); }

// Of equal ones the one with the lowest id.
[[gnu::always_inline]] inline bool is_more_likely(const Largest& a, const Largest& b) {
    return exceeds(a.logit, b.logit) || (!exceeds(b.logit, a.logit) && a.token_id < b.token_id);
}

constexpr int64_t TOKENS_A_PART = 4096;

inline int64_t parts_of(int64_t num_tokens) { return (num_tokens + TOKENS_A_PART - 1) / TOKENS_A_PART; }

}  // namespace quire
