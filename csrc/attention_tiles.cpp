// Attention over bfloat16 whose queries meet keys in tiles (attention_tiles.h, attention_walk.h). Those of a prompt pass over them
// (attention_pass.h).
#include "attention_pass.h"
#include "kernels.h"

namespace quire::QUIRE_TILES {
namespace {

constexpr int UNITS = UNITS_OF_TILE, PARTS_OF_VALUES = PARTS_OF_CHUNK;

// 16 units, with a fixed size: a call of a function to copy as much takes longer than this.
inline void put_units(const int32_t* from, int32_t* to) { std::memmove(to, from, TILE_BYTES); }
inline void put_zeros(int32_t* to) { std::memset(to, 0, TILE_BYTES); }

constexpr int SPANS = 8;  // of 4,096 keys each, that stay laid out for a row's next queries
constexpr int FEWEST_OF_PASS = 2 * TILE_ROWS;  // with fewer queries K and V are read once for all

class InTiles {
public:
    using Type = InBFloat16;
    static constexpr int SPARE_QUERIES = TILE_ROWS;
    static constexpr bool HEADS_TOGETHER = false;  // no gain was seen (docs/lab.md)

    // Where no item has many queries tiles have fewer rows: loading, storing and multiplying them takes less time.
    InTiles(const AttentionCall& call, int most_queries)
        : head_dim_(call.layout.head_dim), num_rows_(most_queries < TILE_ROWS ? most_queries : TILE_ROWS) {
        TileShape of_rows{num_rows_, TILE_BYTES};
        begin_tiles({of_rows, of_rows, of_rows, of_rows, of_rows, {}, {}, {}});
    }
    InTiles(const InTiles&) = delete;
    ~InTiles() { end_tiles(); }

    void meet(const AttentionCall& call, Queries& queries, int begin, int count, int64_t first, bool whole) {
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

    // Whether these are many queries of one row alone, with outputs of up to four tiles.
    bool passes(const AttentionCall& call, const Item& item) const {
        int64_t heads = call.num_heads / call.layout.num_kv_heads, tokens = item.parts[0].last - item.parts[0].first;
        return item.num_parts == 1 && item.shared == 0 && tokens * heads > FEWEST_OF_PASS && head_dim_ <= 4 * COLUMNS && call.softcap == 0 &&
               call.layout.panels(Type::PER_UNIT);
    }

    void pass(const AttentionCall& call, const Job& job, Queries& queries, const Kept& kept) {
        if (head_dim_ == 2 * UNITS) pass<1>(call, job, queries, kept);
        else pass<2>(call, job, queries, kept);
    }

    static void keep_awake() { QUIRE_TILES::keep_awake<3, 4, 7>(); }

    Chunk<Type> chunk;

private:
    template <int STEPS>
    void pass(const AttentionCall& call, const Job& job, Queries& queries, const Kept& kept) {
        int64_t row = job.item->parts[0].row, last = job.sections.last * CHUNKS_OF_SECTION;
        Keys all = own_keys(call, {row, call.query_starts[row], call.query_starts[row + 1]}, job.item->kv_heads, 0);
        for (int64_t first = job.sections.first * CHUNKS_OF_SECTION; first < last;) {
            int64_t number = first / CHUNKS_OF_SPAN, beyond = smallest((number + 1) * CHUNKS_OF_SPAN, last);
            Span& span = spans_[number % SPANS];
            span.lay_out(call, all, number * CHUNKS_OF_SPAN, chunk);
            for (int n = 0; n < queries.count; n += TILE_ROWS) {
                Pass<STEPS> pass(call, span, kept, queries, n, queries.count - n < TILE_ROWS ? queries.count - n : TILE_ROWS);
                int64_t begin = largest(first, pass.begin()), end = smallest(pass.end(), beyond);
                if (begin < end) pass.run(begin, end);
            }
            first = beyond;
            if (first < last) kept.keep(call, queries, first / CHUNKS_OF_SECTION - 1);
        }
    }

    // Points to the chunk's values, [units of tokens, D], where 32 tokens lie together and all of them are there. Otherwise copies, in
    // which tokens that no query sees are zeros.
    void lay_out_values() {
        const Units& units = chunk.units;
        for (int part = 0; part < PARTS_OF_VALUES; ++part) {
            int begin = part * UNITS;
            int32_t* copy = chunk.copied_values + begin * head_dim_;
            values_[part] = copy;
            const int32_t* whole = chunk.values[begin];
            auto follows = [&](int unit) { return chunk.values[begin + unit] == whole + unit * head_dim_; };
            // Those of a panel do, but for its first or last one, which may be a copy.
            if (units.first <= begin && units.last >= begin + UNITS && follows(1) && follows(UNITS / 2) && follows(UNITS - 1)) {
                values_[part] = whole;
                continue;
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

    struct Group : TileQueries {
        alignas(64) float scores[TILE_ROWS][KEYS] = {};  // then, in the same memory, the weights as units
    };

    // Of 16 queries for all of the chunk's keys. Sums in tiles 0 to 3, the queries in 4, keys in 5 and 6.
    void score(const Queries& queries) {
        static_assert(PANELS == 4);
        const int32_t* values = queries.values + group_.first * queries.num_words;
        zero_sums();
        for (int unit = 0; unit < queries.num_words; unit += UNITS) {
            load_tile<4>(values + unit, queries.num_words * UNIT);
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
            if (call.softcap > 0) cap(call, scores);
            weigh<Type>(scores_under(scores, factor), queries, group_.first + i, group_.seen_by(i), chunk.value_scales, scores);
        }
    }

    template <int PANEL_TILE, int KEYS_TILE>
    void add_scores(int unit) {
        load_tile<KEYS_TILE>(chunk.keys[PANEL_TILE * COLUMNS / LANES] + unit * chunk.key_stride, chunk.key_stride * UNIT);
        multiply_tiles<PANEL_TILE, 4, KEYS_TILE>();
        ask();
    }

    // To N tiles of 16 queries' output, from column `d` on, the weighted values that one of them sees.
    template <int N>
    void add_values(Queries& queries, int d) {
        float* output = queries.output + group_.first * queries.width + d;
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
        bool own = group_.count == num_rows_ || group_.first + group_.count == queries.count;  // all that is in the tile's rows
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
    const int32_t* values_[PARTS_OF_VALUES];
    Group group_;
    Span spans_[SPANS];
};

void attend_sections(const AttentionCall& call, const Job& job, const Keys& after, Queries& queries, const Kept& kept, InTiles& way) {
    if (way.passes(call, *job.item)) way.pass(call, job, queries, kept);
    else QUIRE_ISA::attend_sections(call, job, after, queries, kept, way);
}

// Of a head's dimensions whole tiles only.
bool fits(const AttentionCall& call) { return call.layout.head_dim % (2 * UNITS) == 0; }

}  // namespace

void attention_bfloat16(const AttentionCall& call, const Team& team) {
    if (fits(call)) attention<InTiles>(call, team);
    else QUIRE_ISA::attention_bfloat16(call, team);
}

}  // namespace quire::QUIRE_TILES
