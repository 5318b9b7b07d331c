// Attention whose queries meet keys in tiles, 16 queries at a time (attention_walk.h has the rest): of bfloat16, and of codes, which
// become bfloat16 chunk by chunk. A tile's rows do not know of each other, so that rows of other queries, or of nobody, may
// be in it: their results are thrown away.
#include "attention.h"

#include "attention_walk.h"
#include "kernels.h"
#include "tiles.h"

namespace quire::QUIRE_TILES {
namespace {

using namespace quire::QUIRE_ISA;

constexpr int UNITS = TILE_ROWS;                // of a head's dimensions or of tokens, in a tile of K or V
constexpr int COLUMNS = TILE_BYTES / 4;         // of keys or of a head's dimensions
constexpr int PANELS = KEYS / COLUMNS;          // tiles of scores of a chunk
constexpr int PARTS_OF_VALUES = KEYS / 2 / UNITS;
constexpr int ASKS = 4;  // between two products: a chunk that is met 16 queries at a time asks for all of the next one

// 32 codes as bfloat16.
inline void to_bfloat16(const int16_t* from, int32_t* to) {
    const auto* codes = reinterpret_cast<const int8_t*>(from);
    auto* values = reinterpret_cast<BFloat16*>(to);
#if defined(__AVX512BF16__)
    auto floats = [](const int8_t* some) { return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i*)some))); };
    __m512bh both = _mm512_cvtne2ps_pbh(floats(codes + 16), floats(codes));
    std::memcpy(values, &both, sizeof both);
#else
    for (int i = 0; i < 2 * UNITS; i += LANES) {
        QuarterBytes some;
        std::memcpy(&some, codes + i, sizeof some);
        store(values + i, __builtin_convertvector(some, Floats));
    }
#endif
}

template <typename KV>
class InTiles {
public:
    using Type = KV;
    static constexpr int SPARE_QUERIES = TILE_ROWS;

    explicit InTiles(const AttentionCall& call)
        : head_dim_(call.layout.head_dim), memory_(num_lines(IS_CODES ? KEYS * head_dim_ : 0)) {}

    void meet(const AttentionCall& call, Queries& queries, int begin, int count, int64_t first, bool whole) {
        lay_out_keys();
        lay_out_values();
        asks_ = count > 2 * TILE_ROWS ? 1 : ASKS;
        for (int n = 0; n < count; n += TILE_ROWS)
            meet_some(call, queries, begin + n, count - n < TILE_ROWS ? count - n : TILE_ROWS, first, whole);
    }

    Chunk<Type> chunk;

private:
    static constexpr bool IS_CODES = Type::HAS_SCALES;

    // Points to the chunk's keys, or makes bfloat16 of them: [units of D, KEYS].
    void lay_out_keys() {
        if constexpr (!IS_CODES) {
            for (int panel = 0; panel < PANELS; ++panel) keys_[panel] = chunk.keys[panel * COLUMNS / LANES];
            key_stride_ = chunk.key_stride;
        } else {
            int32_t* memory = reinterpret_cast<int32_t*>(memory_.data());
            for (int panel = 0; panel < PANELS; ++panel) {
                keys_[panel] = memory + panel * COLUMNS;
                const int16_t* from = chunk.keys[panel * COLUMNS / LANES];
                for (int unit = 0; unit < head_dim_ / 2; ++unit) to_bfloat16(from + unit * chunk.key_stride, memory + unit * KEYS + panel * COLUMNS);
            }
            key_stride_ = KEYS;
        }
    }

    // The same of its values, [units of tokens, D], where 32 tokens lie together and all of them are there. Otherwise copies, in which
    // tokens that no query sees are zeros.
    void lay_out_values() {
        const Units& units = chunk.units;
        for (int part = 0; part < PARTS_OF_VALUES; ++part) {
            int begin = part * UNITS;
            int32_t* copy = values_memory() + begin * head_dim_;
            values_[part] = copy;
            if constexpr (!IS_CODES) {
                const int32_t* from = chunk.values[begin];
                bool together = units.first <= begin && units.last >= begin + UNITS;
                for (int unit = 1; together && unit < UNITS; ++unit) together = chunk.values[begin + unit] == from + unit * head_dim_;
                if (together) {
                    values_[part] = from;
                    continue;
                }
            }
            for (int unit = begin; unit < begin + UNITS; ++unit, copy += head_dim_) {
                if (unit < units.first || unit >= units.last) std::memset(copy, 0, head_dim_ * sizeof *copy);
                else if constexpr (IS_CODES) for (int d = 0; d < head_dim_; d += UNITS) to_bfloat16(chunk.values[unit] + d, copy + d);
                else if (chunk.values[unit] != copy) std::memcpy(copy, chunk.values[unit], head_dim_ * sizeof *copy);
            }
        }
    }

    int32_t* values_memory() {
        if constexpr (IS_CODES) return reinterpret_cast<int32_t*>(memory_.data()) + KEYS * head_dim_ / 2;
        else return chunk.copied_values;
    }

    // `count` queries from `query` on.
    void meet_some(const AttentionCall& call, Queries& queries, int query, int count, int64_t first, bool whole) {
        Seen seen[TILE_ROWS];
        int oldest = whole ? 0 : KEYS, newest = whole ? KEYS - 1 : -1;
        for (int i = 0; i < count; ++i) {
            seen[i] = whole ? Seen{0, KEYS - 1} : seen_by(call, queries.position[query + i], first);
            if (seen[i].oldest < oldest) oldest = seen[i].oldest;
            if (seen[i].newest > newest) newest = seen[i].newest;
        }
        if (oldest > newest) return;
        score(queries.values + query * queries.num_units, queries.num_units);
        float factor = call.softcap > 0 ? LOG2_E : call.scale * LOG2_E;
        for (int i = 0; i < count; ++i) {
            if constexpr (IS_CODES)
                for (int key = 0; key < KEYS; key += LANES) store(scores_[i] + key, load(scores_[i] + key) * load(chunk.key_scales + key));
            if (call.softcap > 0) cap(call, scores_[i]);
            weigh<Type>(factor, queries, query + i, seen[i], scores_[i], chunk.value_scales);
        }
        int from = oldest / (2 * UNITS), to = newest / (2 * UNITS);
        int d = 0;
        for (; d + 4 * COLUMNS <= head_dim_; d += 4 * COLUMNS) add_values<4>(queries, query, count, d, from, to);
        if (d < head_dim_) add_values<2>(queries, query, count, d, from, to);
    }

    // Of 16 queries for all of the chunk's keys. Sums in tiles 0 to 3, the queries in 4, keys in 5 and 6.
    void score(const int32_t* values, int num_units) {
        static_assert(PANELS == 4);
        zero_tile<0>();
        zero_tile<1>();
        zero_tile<2>();
        zero_tile<3>();
        for (int unit = 0; unit < num_units; unit += UNITS) {
            load_tile<4>(values + unit, num_units * UNIT);
            add_scores<0, 5>(unit);
            add_scores<1, 6>(unit);
            add_scores<2, 5>(unit);
            add_scores<3, 6>(unit);
        }
        store_tile<0>(scores_[0], sizeof scores_[0]);
        store_tile<1>(scores_[0] + COLUMNS, sizeof scores_[0]);
        store_tile<2>(scores_[0] + 2 * COLUMNS, sizeof scores_[0]);
        store_tile<3>(scores_[0] + 3 * COLUMNS, sizeof scores_[0]);
    }

    template <int PANEL_TILE, int KEYS_TILE>
    void add_scores(int unit) {
        load_tile<KEYS_TILE>(keys_[PANEL_TILE] + unit * key_stride_, key_stride_ * UNIT);
        multiply_tiles<PANEL_TILE, 4, KEYS_TILE>();
        ask();
    }

    // To N tiles of 16 queries' output, from column `d` on, the weighted values of parts [from, to].
    template <int N>
    void add_values(Queries& queries, int query, int count, int d, int from, int to) {
        float* output = queries.output + query * queries.width + d;
        int64_t stride = queries.width * sizeof(float);
        load_tile<0>(output, stride);
        load_tile<1>(output + COLUMNS, stride);
        if constexpr (N == 4) load_tile<2>(output + 2 * COLUMNS, stride);
        if constexpr (N == 4) load_tile<3>(output + 3 * COLUMNS, stride);
        for (int part = from; part <= to; ++part) {
            const auto* weights = reinterpret_cast<const BFloat16*>(scores_[0]) + part * 2 * UNITS;
            load_tile<4>(weights, sizeof scores_[0]);
            add_column<0, 5>(part, d);
            add_column<1, 6>(part, d);
            if constexpr (N == 4) add_column<2, 5>(part, d);
            if constexpr (N == 4) add_column<3, 6>(part, d);
        }
        alignas(64) float sums[TILE_ROWS][4 * COLUMNS];
        bool whole = count == TILE_ROWS;
        float* place = whole ? output : sums[0];
        int64_t place_stride = whole ? stride : sizeof sums[0];
        store_tile<0>(place, place_stride);
        store_tile<1>(place + COLUMNS, place_stride);
        if constexpr (N == 4) store_tile<2>(place + 2 * COLUMNS, place_stride);
        if constexpr (N == 4) store_tile<3>(place + 3 * COLUMNS, place_stride);
        if (!whole)
            for (int i = 0; i < count; ++i) std::memcpy(output + i * queries.width, sums[i], N * COLUMNS * sizeof(float));
    }

    template <int COLUMN_TILE, int VALUES_TILE>
    void add_column(int part, int d) {
        load_tile<VALUES_TILE>(values_[part] + d + COLUMN_TILE * COLUMNS, head_dim_ * UNIT);
        multiply_tiles<COLUMN_TILE, 4, VALUES_TILE>();
        ask();
    }

    void ask() {
        for (int i = 0; i < asks_; ++i) chunk.next.ask();
    }

    int head_dim_, asks_ = 1;
    std::vector<Line> memory_;  // of codes as bfloat16
    const int32_t* keys_[PANELS];
    const int32_t* values_[PARTS_OF_VALUES];
    int64_t key_stride_;
    alignas(64) float scores_[TILE_ROWS][KEYS] = {};  // then, in the same memory, the weights as units
};

template <typename Type>
void attention_in_tiles(const AttentionCall& call, const Team& team) {
    begin_tiles();
    attention<InTiles<Type>>(call, team);
    end_tiles();
}

// Of a head's dimensions whole tiles only.
bool fits(const AttentionCall& call) { return call.layout.head_dim % (2 * UNITS) == 0; }

}  // namespace

void attention_bfloat16(const AttentionCall& call, const Team& team) {
    if (fits(call)) attention_in_tiles<InBFloat16>(call, team);
    else QUIRE_ISA::attention_bfloat16(call, team);
}

void attention_bfloat16_over_codes(const AttentionCall& call, const Team& team) {
    if (fits(call)) attention_in_tiles<CodesAsBFloat16>(call, team);
    else QUIRE_ISA::attention_bfloat16_over_codes(call, team);
}

}  // namespace quire::QUIRE_TILES
