// Attention of the rows of one step over the paged KV of one layer.
#pragma once

#include <cstdint>

#include "kv_cache.h"
#include "row_ops.h"

namespace quire {

// T tokens of R rows, H heads of D values, G KV heads; memory belongs to the caller.
struct AttentionCall {
    const void* query;            // [T, H, D] of float32 or bfloat16, tokens `query_stride` elements apart
    const void* key;              // blocks of the query's type or of int8, laid out as `layout` says
    const void* value;            // the same
    void* output;                 // [T, H, D] of the query's type
    const int64_t* block_tables;  // [R, max_blocks]
    const int64_t* query_starts;  // [R + 1], offsets into T
    const int64_t* context_lens;  // [R], tokens with KV, those of this step included
    int64_t query_stride, num_rows, max_blocks;
    KVLayout layout;
    int num_heads;
    float scale;
    float softcap;   // 0: none
    int64_t window;  // keys a query sees, itself included; 0: all before it
    bool causal;     // else a query sees all keys of its row
    float* scratch;  // for sums of sections, on a cache line (attention_jobs.h)
    int64_t scratch_floats;
};

// K and V of each of T tokens to its slot: block * block_size + place.
struct WriteCall {
    const void* key;    // [T, G, D] of float32 or bfloat16, tokens `key_stride` elements apart
    const void* value;
    void* key_cache;    // of the same type, or of int8
    void* value_cache;
    const int64_t* slots;  // [T]
    int64_t key_stride, value_stride, num_tokens;
    KVLayout layout;
    RopeCall query_rope, key_rope;  // first the token's queries and its K are rotated, where these have heads
};

}  // namespace quire
