// How K and V of one layer lie in their blocks.
#pragma once

#include <cstdint>

namespace quire {

// Keys whose values of one unit lie together: a panel, as of linear layers.
constexpr int KEYS_PER_PANEL = 16;

// G KV heads of D values; a block holds `block_size` tokens, its K and its V each block_size * G * D values.
// Where blocks are whole panels, a block has a region for each head. K [units of D, tokens] and V [units of tokens, D],
// unit by unit as multiplied, which are 32 bits: of float32 one value, of bfloat16 two and of int8 four, of neighbouring dimensions
// in K and of neighbouring tokens in V. Elsewhere a block is [tokens, G, D]. Of int8, a bfloat16 for each token and head is what its D codes
// are multiplied by: these scales lie behind a region's codes, or elsewhere behind a token's, and take the place of so many values.
struct KVLayout {
    int64_t block_size;
    int num_kv_heads, head_dim;
    int scale_size = 0;

    bool panels(int per_unit) const { return block_size % KEYS_PER_PANEL == 0 && head_dim % per_unit == 0; }
    int64_t head_size() const { return block_size * (head_dim + scale_size); }

    // Where a number is, counted in values.
    int64_t key_at(bool in_panels, int per_unit, int64_t block, int64_t place, int head, int d) const {
        if (!in_panels) return plain_at(block, place, head, d);
        return region(block, head) + (d / per_unit * block_size + place) * per_unit + d % per_unit;
    }
    int64_t value_at(bool in_panels, int per_unit, int64_t block, int64_t place, int head, int d) const {
        if (!in_panels) return plain_at(block, place, head, d);
        return region(block, head) + (place / per_unit * head_dim + d) * per_unit + place % per_unit;
    }
    int64_t scale_at(bool in_panels, int64_t block, int64_t place, int head) const {
        if (!in_panels) return plain_at(block, place, head, head_dim);
        return region(block, head) + block_size * head_dim + place * scale_size;
    }
    int64_t region(int64_t block, int head) const { return (block * num_kv_heads + head) * head_size(); }

private:
    int64_t plain_at(int64_t block, int64_t place, int head, int d) const {
        return ((block * block_size + place) * num_kv_heads + head) * (head_dim + scale_size) + d;
    }
};

}  // namespace quire
