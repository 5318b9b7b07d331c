// K and V of whole texts, for attention that keeps none of them afterwards.
#pragma once

#include <cstdint>

#include "kv_cache.h"

namespace quire {

// Block b gets the tokens from starts[b] to starts[b + 1], at most block_size of them, which is KEYS_PER_PANEL.
struct TextBlocksCall {
    const void* key;  // [T, G, D], tokens `key_stride` elements apart
    const void* value;
    void* key_blocks;  // as a cache's; in whole panels zeros where no token is
    void* value_blocks;
    const int64_t* starts;  // [num_blocks + 1]
    int64_t key_stride, value_stride, num_blocks;
    KVLayout layout;
};

}  // namespace quire
