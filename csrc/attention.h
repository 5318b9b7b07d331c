// Attention of the rows of one step over the paged KV of one layer.
#pragma once

#include <cstdint>

namespace quire {

// T tokens of R rows, H heads of D values, G KV heads; memory belongs to the caller.
struct AttentionCall {
    const void* query;           // [T, H, D], tokens `query_stride` elements apart
    const void* key;             // [num_blocks, block_size, G, D]
    const void* value;           // the same
    void* output;                // [T, H, D]
    const int64_t* block_tables; // [R, max_blocks]
    const int64_t* query_starts; // [R + 1], offsets into T
    const int64_t* context_lens; // [R], tokens with KV, those of this step included
    int64_t query_stride, num_rows, max_blocks, block_size;
    int num_heads, num_kv_heads, head_dim;
    float scale;
    float softcap;  // 0: none
    int64_t window; // keys a query sees, itself included; 0: all before it
};

}  // namespace quire
