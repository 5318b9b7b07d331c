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

// 16 units, with a fixed size: a call of a function to copy as much takes longer than this.
inline void put_units(const int32_t* from, int32_t* to) { std::memmove(to, from, TILE_BYTES); }
inline void put_zeros(int32_t* to) { std::memset(to, 0, TILE_BYTES); }

// Of codes as bfloat16.
inline void put_units(const int16_t* from, int32_t* to) {
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

    // Where no item has many queries tiles have fewer rows: loading, storing and multiplying them takes less time.
    InTiles(const AttentionCall& call, int most_queries)
        : head_dim_(call.layout.head_dim), num_rows_(most_queries < TILE_ROWS ? most_queries : TILE_ROWS),
          memory_(num_lines(IS_CODES ? KEYS * head_dim_ : 0)) {
        TileShape of_rows{num_rows_, TILE_BYTES};
        begin_tiles({of_rows, of_rows, of_rows, of_rows, of_rows, {}, {}, {}});
    }
    InTiles(const InTiles&) = delete;
    ~InTiles() { end_tiles(); }

    void meet(const AttentionCall& call, Queries& queries, int begin, int count, int64_t first, bool whole) {
        lay_out_keys();
        lay_out_values();
        asks_ = count > 2 * TILE_ROWS ? 1 : ASKS;
        for (int n = 0; n < count; n += TILE_ROWS) {
            group_.begin(call, queries, begin + n, count - n < TILE_ROWS ? count - n : TILE_ROWS, first, whole);
            if (!group_.sees_any()) continue;
            score(queries);
            weigh_all(call, queries);
            int d = 0;
            for (; d + 4 * COLUMNS <= head_dim_; d += 4 * COLUMNS) add_values<4>(queries, d);
            if (d < head_dim_) add_values<2>(queries, d);
        }
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
                for (int unit = 0; unit < head_dim_ / 2; ++unit) put_units(from + unit * chunk.key_stride, memory + unit * KEYS + panel * COLUMNS);
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
                auto follows = [&](int unit) { return chunk.values[begin + unit] == from + unit * head_dim_; };
                // Those of a panel do, but for its first or last one, which may be a copy.
                if (units.first <= begin && units.last >= begin + UNITS && follows(1) && follows(UNITS / 2) && follows(UNITS - 1)) {
                    values_[part] = from;
                    continue;
                }
            }
            for (int unit = begin; unit < begin + UNITS; ++unit, copy += head_dim_) {
                const auto* from = chunk.values[unit];
                if (unit < units.first || unit >= units.last) {
                    for (int d = 0; d < head_dim_; d += COLUMNS) put_zeros(copy + d);
                } else {
                    for (int d = 0; d < head_dim_; d += COLUMNS) put_units(from + d, copy + d);
                }
            }
        }
    }

    int32_t* values_memory() {
        if constexpr (IS_CODES) return reinterpret_cast<int32_t*>(memory_.data()) + KEYS * head_dim_ / 2;
        else return chunk.copied_values;
    }

    // `count` queries from `query` on: which of the chunk's keys they see, one of them and all together.
    struct Group {
        int query, count, oldest, newest;
        bool whole;
        Seen seen[TILE_ROWS];  // where not all see the whole chunk
        alignas(64) float scores[TILE_ROWS][KEYS] = {};  // then, in the same memory, the weights as units

        void begin(const AttentionCall& call, const Queries& queries, int first_query, int num_queries, int64_t first, bool all_see_all) {
            query = first_query, count = num_queries, whole = all_see_all, oldest = whole ? 0 : KEYS, newest = whole ? KEYS - 1 : -1;
            for (int i = 0; !whole && i < count; ++i) {
                seen[i] = seen_by(call, queries.position[query + i], first);
                if (seen[i].oldest < oldest) oldest = seen[i].oldest;
                if (seen[i].newest > newest) newest = seen[i].newest;
            }
        }
        bool sees_any() const { return oldest <= newest; }
        Seen seen_by_query(int i) const { return whole ? Seen{0, KEYS - 1} : seen[i]; }
    };

    // Of 16 queries for all of the chunk's keys. Sums in tiles 0 to 3, the queries in 4, keys in 5 and 6.
    void score(const Queries& queries) {
        static_assert(PANELS == 4);
        const int32_t* values = queries.values + group_.query * queries.num_units;
        zero_tile<0>();
        zero_tile<1>();
        zero_tile<2>();
        zero_tile<3>();
        for (int unit = 0; unit < queries.num_units; unit += UNITS) {
            load_tile<4>(values + unit, queries.num_units * UNIT);
            add_scores<0, 5>(unit);
            add_scores<1, 6>(unit);
            add_scores<2, 5>(unit);
            add_scores<3, 6>(unit);
        }
        float* scores = group_.scores[0];
        store_tile<0>(scores, KEYS * sizeof(float));
        store_tile<1>(scores + COLUMNS, KEYS * sizeof(float));
        store_tile<2>(scores + 2 * COLUMNS, KEYS * sizeof(float));
        store_tile<3>(scores + 3 * COLUMNS, KEYS * sizeof(float));
    }

    void weigh_all(const AttentionCall& call, Queries& queries) {
        float factor = call.softcap > 0 ? LOG2_E : call.scale * LOG2_E;
        for (int i = 0; i < group_.count; ++i) {
            float* scores = group_.scores[i];
            if constexpr (IS_CODES)
                for (int key = 0; key < KEYS; key += LANES) store(scores + key, load(scores + key) * load(chunk.key_scales + key));
            if (call.softcap > 0) cap(call, scores);
            weigh<Type>(factor, queries, group_.query + i, group_.seen_by_query(i), scores, chunk.value_scales);
        }
    }

    template <int PANEL_TILE, int KEYS_TILE>
    void add_scores(int unit) {
        load_tile<KEYS_TILE>(keys_[PANEL_TILE] + unit * key_stride_, key_stride_ * UNIT);
        multiply_tiles<PANEL_TILE, 4, KEYS_TILE>();
        ask();
    }

    // To N tiles of 16 queries' output, from column `d` on, the weighted values that one of them sees.
    template <int N>
    void add_values(Queries& queries, int d) {
        float* output = queries.output + group_.query * queries.width + d;
        int64_t stride = queries.width * sizeof(float);
        load_tile<0>(output, stride);
        load_tile<1>(output + COLUMNS, stride);
        if constexpr (N == 4) load_tile<2>(output + 2 * COLUMNS, stride);
        if constexpr (N == 4) load_tile<3>(output + 3 * COLUMNS, stride);
        for (int part = group_.oldest / (2 * UNITS); part <= group_.newest / (2 * UNITS); ++part) {
            const auto* weights = reinterpret_cast<const BFloat16*>(group_.scores[0]) + part * 2 * UNITS;
            load_tile<4>(weights, KEYS * sizeof(float));
            add_column<0, 5>(part, d);
            add_column<1, 6>(part, d);
            if constexpr (N == 4) add_column<2, 5>(part, d);
            if constexpr (N == 4) add_column<3, 6>(part, d);
        }
        alignas(64) float sums[TILE_ROWS][4 * COLUMNS];
        bool own = group_.count == num_rows_ || group_.query + group_.count == queries.count;  // all that is in the tile's rows
        float* place = own ? output : sums[0];
        int64_t place_stride = own ? stride : sizeof sums[0];
        store_tile<0>(place, place_stride);
        store_tile<1>(place + COLUMNS, place_stride);
        if constexpr (N == 4) store_tile<2>(place + 2 * COLUMNS, place_stride);
        if constexpr (N == 4) store_tile<3>(place + 3 * COLUMNS, place_stride);
        if (!own)
            for (int i = 0; i < group_.count; ++i) std::memcpy(output + i * queries.width, sums[i], N * COLUMNS * sizeof(float));
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

    int head_dim_, num_rows_, asks_ = 1;
    std::vector<Line> memory_;  // of codes as bfloat16
    const int32_t* keys_[PANELS];
    const int32_t* values_[PARTS_OF_VALUES];
    int64_t key_stride_;
    Group group_;
};

// Of a head's dimensions whole tiles only.
bool fits(const AttentionCall& call) { return call.layout.head_dim % (2 * UNITS) == 0; }

}  // namespace

void attention_bfloat16(const AttentionCall& call, const Team& team) {
    if (fits(call)) attention<InTiles<InBFloat16>>(call, team);
    else QUIRE_ISA::attention_bfloat16(call, team);
}

void attention_bfloat16_over_codes(const AttentionCall& call, const Team& team) {
    if (fits(call)) attention<InTiles<CodesAsBFloat16>>(call, team);
    else QUIRE_ISA::attention_bfloat16_over_codes(call, team);
}

}  // namespace quire::QUIRE_TILES
