// A block's tokens are all there at once: its K is transposed in registers, where a cache's writes (kv_write.cpp) put down a
// token's numbers one by one.
#include "text_blocks.h"

#include "kernels.h"
#include "units.h"

namespace quire::QUIRE_ISA {
namespace {

// K of one head of `count` tokens: unit by unit, that of each token.
void transpose_keys(const uint8_t* from, int64_t token_bytes, int count, int num_units, int32_t* to) {
    for (int first = 0; first < KEYS_PER_PANEL; first += LANES)
        for (int unit = 0; unit < num_units; unit += LANES) {
            Floats rows[LANES];
            for (int i = 0; i < LANES; ++i)
                rows[i] = first + i < count ? (Floats)load_units(from + (first + i) * token_bytes + unit * sizeof(int32_t), num_units - unit) : Floats{};
            transpose(rows);
            for (int j = 0; j < LANES && unit + j < num_units; ++j)
                std::memcpy(to + (unit + j) * KEYS_PER_PANEL + first, &rows[j], sizeof rows[j]);
        }
}

// V of one head of `count` tokens: a token's D float32, or D pairs of two tokens' bfloat16.
void lay_out_values(const float* from, int64_t stride, int count, int head_dim, float* to) {
    for (int token = 0; token < KEYS_PER_PANEL; ++token, to += head_dim) {
        if (token < count) std::memcpy(to, from + token * stride, head_dim * sizeof(float));
        else std::memset(to, 0, head_dim * sizeof(float));
    }
}

void lay_out_values(const BFloat16* from, int64_t stride, int count, int head_dim, BFloat16* to) {
    for (int token = 0; token < KEYS_PER_PANEL; token += 2, to += 2 * head_dim) {
        const BFloat16* first = from + token * stride;
        const BFloat16* second = first + stride;
        if (token >= count) std::memset(to, 0, 2 * head_dim * sizeof(BFloat16));
        else if (token + 1 == count)
            for (int d = 0; d < head_dim; ++d) to[2 * d] = first[d], to[2 * d + 1] = {};
        else
            for (int d = 0; d < head_dim; ++d) to[2 * d] = first[d], to[2 * d + 1] = second[d];
    }
}

// Where a block is no panel it holds each token's values side by side.
template <typename Value>
void copy_tokens(const Value* from, int64_t stride, int64_t count, int64_t width, Value* to) {
    for (int64_t token = 0; token < count; ++token) std::memcpy(to + token * width, from + token * stride, width * sizeof(Value));
}

template <typename Type>
void write_texts(const TextBlocksCall& call, const Team& team) {
    using Value = typename Type::Value;
    const KVLayout& layout = call.layout;
    auto* key_blocks = static_cast<Value*>(call.key_blocks);
    auto* value_blocks = static_cast<Value*>(call.value_blocks);
    share(team, call.num_blocks, [&](int64_t block) {
        int count = static_cast<int>(call.starts[block + 1] - call.starts[block]);
        if (count == 0) return;
        const Value* key = static_cast<const Value*>(call.key) + call.starts[block] * call.key_stride;
        const Value* value = static_cast<const Value*>(call.value) + call.starts[block] * call.value_stride;
        if (!layout.panels(Type::PER_UNIT)) {
            int64_t width = int64_t{layout.num_kv_heads} * layout.head_dim, first = block * layout.block_size * width;
            copy_tokens(key, call.key_stride, count, width, key_blocks + first);
            copy_tokens(value, call.value_stride, count, width, value_blocks + first);
            return;
        }
        for (int head = 0; head < layout.num_kv_heads; ++head) {
            int64_t region = layout.region(block, head);
            transpose_keys(reinterpret_cast<const uint8_t*>(key + head * layout.head_dim), call.key_stride * sizeof(Value), count,
                           layout.head_dim / Type::PER_UNIT, reinterpret_cast<int32_t*>(key_blocks + region));
            lay_out_values(value + head * layout.head_dim, call.value_stride, count, layout.head_dim, value_blocks + region);
        }
    });
}

}  // namespace

void write_texts_float32(const TextBlocksCall& call, const Team& team) { write_texts<Float32>(call, team); }
void write_texts_bfloat16(const TextBlocksCall& call, const Team& team) { write_texts<PairOfBFloat16>(call, team); }

}  // namespace quire::QUIRE_ISA
