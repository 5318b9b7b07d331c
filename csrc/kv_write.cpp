// K and V of a step's tokens into the cache. What is kept of a token depends on it alone.
#include <vector>

#include "attention.h"
#include "kernels.h"
#include "kv_types.h"
#include "rope.h"

namespace quire::QUIRE_ISA {
namespace {

// One head of K: units of values that lie together, `stride` values apart.
template <int PER_UNIT, typename Stored>
inline void put_units(const Stored* from, int count, Stored* to, int64_t stride) {
    for (int d = 0; d < count; d += PER_UNIT, to += stride) std::memcpy(to, from + d, PER_UNIT * sizeof(Stored));
}

#if defined(__AVX512BW__)
// Each of LANES values in the lower part of 32 bits.
inline __m512i widened(const int8_t* from) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
inline __m512i widened(const BFloat16* from) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
#endif

// One head of V: each value beside those of the tokens that share its unit, of which this one is number `token`. The others' may be
// another member's: they are not read, and not written.
template <int PER_UNIT, typename Stored>
inline void put_values(const Stored* from, int count, Stored* units, int token) {
    int d = 0;
#if defined(__AVX512BW__)
    if constexpr (PER_UNIT > 1) {
        const __m128i bits = _mm_cvtsi32_si128(token * static_cast<int>(8 * sizeof(Stored)));
        const __mmask64 bytes = (PER_UNIT == 4 ? 0x1111111111111111ULL : 0x3333333333333333ULL) << token * sizeof(Stored);
        for (; d + LANES <= count; d += LANES) _mm512_mask_storeu_epi8(units + d * PER_UNIT, bytes, _mm512_sll_epi32(widened(from + d), bits));
    }
#endif
    for (; d < count; ++d) units[d * PER_UNIT + token] = from[d];
}

// V of a token that has no numbers there is multiplied by weights of 0 too, of those who do not see it, and nothing times 0 makes a number
// of it. So it is kept as zeros, and who does see the token finds no numbers in its K. Where there are scales these are masked.
template <typename Type>
inline bool has_numbers(const typename Type::Value* value, int head_dim) {
    return Type::HAS_SCALES || largest_magnitude(value, head_dim) < __builtin_inff();
}

// Of a head, what is kept of it where V `has_numbers`, or else one value over and over.
template <typename Type>
inline const typename Type::Stored* kept(const typename Type::Value* from, int head_dim, bool has_numbers, float instead,
                                         typename Type::Stored* room, BFloat16& scale) {
    if constexpr (!Type::HAS_SCALES) {
        if (!has_numbers) {
            for (int d = 0; d < head_dim; d += LANES) store_part(room + d, fill(instead), head_dim - d);
            return room;
        }
    }
    return Type::stored(from, head_dim, room, scale);
}

// One head's K and V. (Asking the layout for each value's place takes four times as long: docs/lab.md.)
template <typename Type>
void write_head(const WriteCall& call, bool panels, int64_t slot, int head, const typename Type::Value* key,
                const typename Type::Value* value, typename Type::Stored* room) {
    using Stored = typename Type::Stored;
    constexpr int PER_UNIT = Type::PER_UNIT;
    const KVLayout& layout = call.layout;
    int64_t block = slot / layout.block_size, place = slot % layout.block_size;
    auto *keys = static_cast<Stored*>(call.key_cache), *values = static_cast<Stored*>(call.value_cache);
    Stored* to_key = keys + layout.key_at(panels, PER_UNIT, block, place, head, 0);
    Stored* to_value = values + layout.value_at(panels, PER_UNIT, block, panels ? place / PER_UNIT * PER_UNIT : place, head, 0);
    BFloat16 scales[2];
    bool numbers = has_numbers<Type>(value, layout.head_dim);
    const Stored* from = kept<Type>(key, layout.head_dim, numbers, __builtin_nanf(""), room, scales[0]);
    if (panels) put_units<PER_UNIT>(from, layout.head_dim, to_key, layout.block_size * PER_UNIT);
    else std::memcpy(to_key, from, layout.head_dim * sizeof(Stored));
    from = kept<Type>(value, layout.head_dim, numbers, 0.0f, room, scales[1]);
    if (panels) put_values<PER_UNIT>(from, layout.head_dim, to_value, static_cast<int>(place % PER_UNIT));
    else std::memcpy(to_value, from, layout.head_dim * sizeof(Stored));
    if constexpr (Type::HAS_SCALES) {
        int64_t at = layout.scale_at(panels, block, place, head);
        std::memcpy(keys + at, &scales[0], sizeof scales[0]);
        std::memcpy(values + at, &scales[1], sizeof scales[1]);
    }
}

inline void ask_to_write(const void* to) { __builtin_prefetch(to, 1); }

// For the lines that a token's K and V come to lie on: each unit of K has one of its own, which it shares with that of its neighbours.
template <typename Type>
void ask_for_lines(const WriteCall& call, int64_t slot, bool of_key) {
    constexpr int PER_UNIT = Type::PER_UNIT;
    using Stored = typename Type::Stored;
    const KVLayout& layout = call.layout;
    int64_t block = slot / layout.block_size, place = slot % layout.block_size;
    for (int head = 0; head < layout.num_kv_heads; ++head) {
        const auto* to_key = static_cast<const Stored*>(call.key_cache) + layout.key_at(true, PER_UNIT, block, place, head, 0);
        const auto* to_value = static_cast<const Stored*>(call.value_cache) + layout.value_at(true, PER_UNIT, block, place / PER_UNIT * PER_UNIT, head, 0);
        if (of_key)
            for (int d = 0; d < layout.head_dim; d += PER_UNIT, to_key += layout.block_size * PER_UNIT) ask_to_write(to_key);
        for (int d = 0; d < layout.head_dim * PER_UNIT; d += CACHE_LINE / sizeof(Stored)) ask_to_write(to_value + d);
        if constexpr (Type::HAS_SCALES) {
            int64_t at = layout.scale_at(true, block, place, head);
            ask_to_write(static_cast<const Stored*>(call.key_cache) + at);
            ask_to_write(static_cast<const Stored*>(call.value_cache) + at);
        }
    }
}

template <typename Type>
void write(const WriteCall& call, const Team& team) {
    using Value = typename Type::Value;
    using Stored = typename Type::Stored;
    const KVLayout& layout = call.layout;
    bool panels = layout.panels(Type::PER_UNIT);
    std::vector<Line> lines(num_lines(layout.head_dim));
    auto* room = reinterpret_cast<Stored*>(lines.data());
    auto ask = [&](int64_t token) {
        if (!panels || token >= call.num_tokens) return;
        int64_t slot = call.slots[token];
        bool follows = token > 0 && call.slots[token - 1] + 1 == slot;
        if (!follows || slot % Type::PER_UNIT == 0) ask_for_lines<Type>(call, slot, !follows || slot % (CACHE_LINE / UNIT) == 0);
    };
    bool any = false;
    share(team, call.num_tokens, [&](int64_t token) {
        int64_t slot = call.slots[token];
        if (!any) ask(token);
        any = true;
        ask(token + 1);
        const Value* key = static_cast<const Value*>(call.key) + token * call.key_stride;
        const Value* value = static_cast<const Value*>(call.value) + token * call.value_stride;
        rotate_token<Value>(call.query_rope, token);
        rotate_token<Value>(call.key_rope, token);
        for (int head = 0; head < layout.num_kv_heads; ++head)
            write_head<Type>(call, panels, slot, head, key + head * layout.head_dim, value + head * layout.head_dim, room);
    });
}

}  // namespace

void write_kv_float32(const WriteCall& call, const Team& team) { write<InFloat32>(call, team); }
void write_kv_bfloat16(const WriteCall& call, const Team& team) { write<InBFloat16>(call, team); }
void write_kv_float32_as_codes(const WriteCall& call, const Team& team) { write<KVCodes<float>>(call, team); }
void write_kv_bfloat16_as_codes(const WriteCall& call, const Team& team) { write<KVCodes<BFloat16>>(call, team); }

}  // namespace quire::QUIRE_ISA
