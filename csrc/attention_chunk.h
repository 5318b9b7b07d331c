// A chunk of keys and values, found in the paged cache or copied from it.
#pragma once

#include "attention.h"
#include "kv_types.h"

namespace quire::QUIRE_ISA {

// K and V of the keys that come after a chunk, asked for a few lines at a time while that is computed: asked for all at once they
// would fill the places for misses, and computing would wait for memory and memory for computing. What is not asked for is
// waited for: of codes, which have scales behind them, a chunk's steps would not get to the end two lines at a time.
template <typename Type>
class Asking {
public:
    // The blocks that hold positions [first, end). Of one KV head a few lines of K and a few of V in turn; of several all of a block's K, and
    // then its V, or the other way around: memory reads longer pieces faster.
    void begin(const AttentionCall& call, int64_t row, Heads kv_heads, int64_t first, int64_t end) {
        const KVLayout& layout = call.layout;
        block_ = call.block_tables + row * call.max_blocks + first / layout.block_size;
        last_ = block_ + (first < end && layout.panels(Type::PER_UNIT) ? (end - 1) / layout.block_size - first / layout.block_size + 1 : 0);
        int64_t head_bytes = layout.head_size() * sizeof(typename Type::Stored), at = kv_heads.first * head_bytes;
        const auto *key = static_cast<const uint8_t*>(call.key) + at, *value = static_cast<const uint8_t*>(call.value) + at;
        bool in_turn = kv_heads.count == 1;
        first_ = in_turn || key < value ? key : value;
        second_ = in_turn ? value : first_ + LINES * CACHE_LINE;
        to_others_ = in_turn ? 0 : key < value ? value - key : key - value;
        step_ = (in_turn ? 1 : 2) * LINES * CACHE_LINE;
        bytes_ = head_bytes * kv_heads.count;
        block_bytes_ = head_bytes * layout.num_kv_heads;
        at_ = 0;
    }
    void ask() {
        if (block_ == last_) return;
        int64_t from = *block_ * block_bytes_ + at_;
        if (Type::MAY_FILL_FIRST_CACHE && into_first_cache) ask_for_lines<FIRST_CACHE>(from);
        else ask_for_lines<SECOND_CACHE>(from);
        at_ += step_;
        if (at_ < bytes_) return;
        at_ = 0;
        block_ += to_others_ <= 0;  // K and V were asked for
        first_ += to_others_;
        second_ += to_others_;
        to_others_ = -to_others_;
    }

    bool into_first_cache = false;

private:
    static constexpr int LINES = Type::HAS_SCALES ? 3 : 2;

    template <int CACHE>
    void ask_for_lines(int64_t from) const {
        for (int line = 0; line < LINES; ++line) {
            prefetch<CACHE>(first_ + from + line * CACHE_LINE);
            prefetch<CACHE>(second_ + from + line * CACHE_LINE);
        }
    }

    const int64_t *block_, *last_;
    const uint8_t *first_, *second_;
    int64_t bytes_, block_bytes_, at_, step_, to_others_;  // from K to V, or back; 0 where they are asked for in turn
};

// [first, last), of tokens.
struct Units {
    int first, last;
};

// K and V of the chunk's positions, as units: pointers into the cache, or to copies.
template <typename Type>
struct Chunk {
    using Unit = typename Type::Unit;
    const Unit* keys[GROUPS];         // [num_units, LANES of `key_stride`]
    const Unit* values[KEYS];         // [units of tokens], each [head_dim]
    int64_t key_stride;
    Units units;                      // of values: those before and after are not seen by any query
    Unit* copied_keys;                // [num_units, KEYS]
    Unit* copied_values;              // [KEYS, head_dim]
    float key_scales[KEYS];
    ValueScales value_scales;
    Asking<Type> next;
};

template <typename Type>
typename Type::Stored* as_values(typename Type::Unit* units) { return reinterpret_cast<typename Type::Stored*>(units); }

// Scales of STEP keys that lie together, from `key` of the chunk on.
template <int STEP, typename Type>
void find_scales(const AttentionCall& call, int64_t block, int64_t place, int kv_head, int64_t key, Chunk<Type>& chunk) {
    int64_t at = call.layout.scale_at(STEP > 1, block, place, kv_head);
    auto widen = [&](const void* cache, float* to) {
        BFloat16 scales[STEP];
        std::memcpy(scales, static_cast<const typename Type::Stored*>(cache) + at, sizeof scales);
        if constexpr (STEP == 1) *to = float_of(*scales);
        else for (int k = 0; k < STEP; k += LANES) store(to + k, load(scales + k));
    };
    widen(call.key, chunk.key_scales + key);
    widen(call.value, chunk.value_scales.scales + key);
}

// Positions [low, high) of a chunk that begins at `first`, one by one. What lies outside becomes zero.
template <typename Type>
void copy_chunk(const AttentionCall& call, int64_t row, int kv_head, int64_t first, int64_t low, int64_t high, Chunk<Type>& chunk) {
    constexpr int PER_UNIT = Type::PER_UNIT;
    using Stored = typename Type::Stored;
    using Unit = typename Type::Unit;
    const KVLayout& layout = call.layout;
    const int64_t* table = call.block_tables + row * call.max_blocks;
    bool panels = layout.panels(PER_UNIT);
    int num_units = (layout.head_dim + PER_UNIT - 1) / PER_UNIT;
    std::memset(chunk.copied_keys, 0, sizeof(Unit) * num_units * KEYS);
    std::memset(chunk.copied_values, 0, sizeof(Unit) * KEYS / PER_UNIT * layout.head_dim);
    for (int64_t position = largest(first, low); position < high && position < first + KEYS; ++position) {
        int64_t block = table[position / layout.block_size], place = position % layout.block_size, key = position - first;
        if constexpr (Type::HAS_SCALES) find_scales<1>(call, block, place, kv_head, key, chunk);
        for (int d = 0; d < layout.head_dim; ++d) {
            int64_t from = layout.key_at(panels, PER_UNIT, block, place, kv_head, d);
            as_values<Type>(chunk.copied_keys)[(d / PER_UNIT * KEYS + key) * PER_UNIT + d % PER_UNIT] = static_cast<const Stored*>(call.key)[from];
            from = layout.value_at(panels, PER_UNIT, block, place, kv_head, d);
            as_values<Type>(chunk.copied_values)[(key / PER_UNIT * layout.head_dim + d) * PER_UNIT + key % PER_UNIT] =
                static_cast<const Stored*>(call.value)[from];
        }
    }
    for (int group = 0; group < GROUPS; ++group) chunk.keys[group] = chunk.copied_keys + group * LANES;
    for (int unit = 0; unit < KEYS / PER_UNIT; ++unit) chunk.values[unit] = chunk.copied_values + unit * layout.head_dim;
    chunk.key_stride = KEYS;
}

// A unit of values of which only some tokens are seen: the others become zeros, for what lies there may be no number.
template <typename Type>
void copy_seen(int64_t begin, int64_t end, int unit, int head_dim, Chunk<Type>& chunk) {
    constexpr int PER_UNIT = Type::PER_UNIT;
    auto* copy = chunk.copied_values + unit * head_dim;
    std::memcpy(copy, chunk.values[unit], sizeof *copy * head_dim);
    for (int token = 0; token < PER_UNIT; ++token) {
        int64_t key = unit * PER_UNIT + token;
        if (key >= begin && key < end) continue;
        for (int d = 0; d < head_dim; ++d) as_values<Type>(copy)[d * PER_UNIT + token] = {};
    }
    chunk.values[unit] = copy;
}

// Pointers to the keys [begin, end) of a chunk in a cache that holds panels.
template <typename Type>
void point(const AttentionCall& call, const int64_t* table, int kv_head, int64_t first, int64_t begin, int64_t end, Chunk<Type>& chunk) {
    constexpr int PER_UNIT = Type::PER_UNIT;
    using Stored = typename Type::Stored;
    using Unit = typename Type::Unit;
    const KVLayout& layout = call.layout;
    int64_t block_size = layout.block_size, head_dim = layout.head_dim;
    int64_t key = begin / KEYS_PER_PANEL * KEYS_PER_PANEL, block = (first + key) / block_size, place = (first + key) % block_size;
    chunk.key_stride = block_size;
    // Where no key is seen the scores are not looked at: any group that is there will do.
    const Stored* any = static_cast<const Stored*>(call.key) + layout.region(table[block], kv_head);
    for (int group = 0; group < GROUPS; ++group) chunk.keys[group] = reinterpret_cast<const Unit*>(any) + place;
    for (; key < end; key += KEYS_PER_PANEL) {
        int64_t region = layout.region(table[block], kv_head);
        const auto* keys = reinterpret_cast<const Unit*>(static_cast<const Stored*>(call.key) + region) + place;
        const auto* values = reinterpret_cast<const Unit*>(static_cast<const Stored*>(call.value) + region) + place / PER_UNIT * head_dim;
        for (int i = 0; i < KEYS_PER_PANEL / LANES; ++i) chunk.keys[key / LANES + i] = keys + i * LANES;
        for (int i = 0; i < KEYS_PER_PANEL / PER_UNIT; ++i) chunk.values[key / PER_UNIT + i] = values + i * head_dim;
        if constexpr (Type::HAS_SCALES) find_scales<KEYS_PER_PANEL>(call, table[block], place, kv_head, key, chunk);
        place += KEYS_PER_PANEL;
        if (place == block_size) place = 0, ++block;
    }
    if constexpr (!Type::HAS_SCALES) {  // any code is a number
        if (begin % PER_UNIT) copy_seen<Type>(begin, end, chunk.units.first, layout.head_dim, chunk);
        if (end % PER_UNIT) copy_seen<Type>(begin, end, chunk.units.last - 1, layout.head_dim, chunk);
    }
}

// Points into the cache where that holds panels; else copies.
template <typename Type>
void find(const AttentionCall& call, int64_t row, int kv_head, int64_t first, int64_t low, int64_t high, Chunk<Type>& chunk) {
    constexpr int PER_UNIT = Type::PER_UNIT;
    int64_t begin = largest(first, low) - first, end = high - first < KEYS ? high - first : KEYS;
    bool whole = begin == 0 && end == KEYS;
    chunk.units = {static_cast<int>(begin / PER_UNIT), static_cast<int>((end + PER_UNIT - 1) / PER_UNIT)};
    if constexpr (Type::HAS_SCALES)
        if (!whole) {  // zeros for those that are not found
            std::memset(chunk.key_scales, 0, sizeof chunk.key_scales);
            std::memset(chunk.value_scales.scales, 0, sizeof chunk.value_scales.scales);
        }
    if (call.layout.panels(PER_UNIT)) point<Type>(call, call.block_tables + row * call.max_blocks, kv_head, first, begin, end, chunk);
    else copy_chunk<Type>(call, row, kv_head, first, low, high, chunk);
    if (Type::WHOLE_WEIGHTS && whole) chunk.value_scales.prepare();
}

}  // namespace quire::QUIRE_ISA
