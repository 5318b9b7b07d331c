// Attention over codes whose queries meet keys in tiles (attention_tiles.h, attention_walk.h): a query's codes are multiplied by those of
// keys as they lie, and a chunk's weights times the values' scales, as bytes of which the largest is LARGEST_BYTE, by those of
// values. Sums are exact.
#include "attention_tiles.h"
#include "kernels.h"

namespace quire::QUIRE_TILES {
namespace {

constexpr int UNITS = TILE_ROWS;  // of four codes, in a tile of K or V
// After a product and after a query's weights, of which there are fewer: so that memory has something to do all the time.
constexpr int ASKS_BETWEEN = 2;
static_assert(KEYS == UNITS * 4 && PANELS == 4);

// 64 units. All are loaded before the first is stored: so many bytes of a memmove would be a call.
inline void put_units(const int32_t* from, int32_t* to) {
    constexpr int REGISTERS = 4 * COLUMNS / LANES;
    Ints units[REGISTERS];
    for (int i = 0; i < REGISTERS; ++i) units[i] = load_units(from + i * LANES);
    for (int i = 0; i < REGISTERS; ++i) std::memcpy(to + i * LANES, &units[i], sizeof units[i]);
}

constexpr int MOST_DIMENSIONS = 512;  // so that sums of two parts are an int32

template <int PARTS>
class InTilesOfCodes {
public:
    using Type = CodesInTiles<PARTS>;
    static constexpr int SPARE_QUERIES = TILE_ROWS;
    static constexpr bool HEADS_TOGETHER = false;  // no gain was seen (docs/lab.md)

    InTilesOfCodes(const AttentionCall& call, int most_queries) : head_dim_(call.layout.head_dim) {
        TileShape of_rows{most_queries < TILE_ROWS ? most_queries : TILE_ROWS, TILE_BYTES};
        begin_tiles({of_rows, of_rows, of_rows, of_rows, of_rows, {}, {}, of_rows});
    }
    InTilesOfCodes(const InTilesOfCodes&) = delete;
    ~InTilesOfCodes() { end_tiles(); }

    void meet(const AttentionCall& call, Queries& queries, int begin, int count, int64_t first, bool whole) {
        lay_out_values();
        float factor = call.softcap > 0 ? call.scale : call.scale * LOG2_E;
        for (int key = 0; key < KEYS; key += LANES) store(key_factors_ + key, load(chunk.key_scales + key) * factor);
        asks_ = count > 2 * TILE_ROWS ? 1 : ASKS_BETWEEN;
        for (int n = 0; n < count; n += TILE_ROWS) {
            group_.begin(call, queries, begin + n, count - n < TILE_ROWS ? count - n : TILE_ROWS, first, whole);
            if (!group_.sees_any()) continue;
            score(queries);
            weigh_all(call, queries);
            ask();
            ask();
            round_weights();
            for (int d = 0; d < head_dim_; d += 4 * COLUMNS) add_values(queries, d);
        }
    }

    static void keep_awake() { QUIRE_TILES::keep_awake<7, 4, 6>(); }

    Chunk<Type> chunk;

private:
    // Points to the chunk's values, [units of tokens, D], where they lie together; else copies them. Those that no query sees have
    // weights of zero.
    void lay_out_values() {
        const Units& units = chunk.units;
        values_ = chunk.values[units.first];
        bool together = units.first == 0 && units.last == UNITS;
        for (int unit = 1; together && unit < UNITS; ++unit) together = chunk.values[unit] == values_ + unit * head_dim_;
        if (together) return;
        values_ = chunk.copied_values;
        int head_dim = head_dim_;
        for (int unit = units.first; unit < units.last; ++unit) {
            const int32_t* from = chunk.values[unit];
            int32_t* to = chunk.copied_values + unit * head_dim;
            for (int d = 0; d < head_dim; d += 4 * COLUMNS) put_units(from + d, to + d);
        }
    }

    // Of 16 queries for all of the chunk's keys.
    void score(const Queries& queries) {
        const int32_t* codes = queries.values + group_.first * queries.num_words;
        if constexpr (PARTS == 1) {
            zero_sums();
            for (int unit = 0; unit < queries.num_words; unit += UNITS) {
                load_tile<4>(codes + unit, queries.num_words * sizeof(int32_t));
                add_scores<0, 5>(0, unit);
                add_scores<1, 6>(1, unit);
                add_scores<2, 5>(2, unit);
                add_scores<3, 6>(3, unit);
            }
            store_sums(sums_);
        } else {
            score_panels(queries, codes, 0);
            score_panels(queries, codes, 2);
        }
    }

    // Both parts for two panels: sums of the first in tiles 0 and 1, of the second in 2 and 3.
    void score_panels(const Queries& queries, const int32_t* codes, int panel) {
        int num_units = queries.num_words / PARTS;
        zero_sums();
        for (int unit = 0; unit < num_units; unit += UNITS) {
            load_tile<4>(codes + unit, queries.num_words * sizeof(int32_t));
            load_tile<7>(codes + num_units + unit, queries.num_words * sizeof(int32_t));
            add_scores<0, 5>(panel, unit);
            multiply_tiles_of_bytes<2, 7, 5, int8_t, int8_t>();
            add_scores<1, 6>(panel + 1, unit);
            multiply_tiles_of_bytes<3, 7, 6, int8_t, int8_t>();
        }
        store_tile<0>(sums_[0] + panel * COLUMNS, sizeof sums_[0]);
        store_tile<1>(sums_[0] + (panel + 1) * COLUMNS, sizeof sums_[0]);
        store_tile<2>(second_sums_[0] + panel * COLUMNS, sizeof sums_[0]);
        store_tile<3>(second_sums_[0] + (panel + 1) * COLUMNS, sizeof sums_[0]);
    }

    template <int SUMS_TILE, int KEYS_TILE>
    void add_scores(int panel, int unit) {
        load_tile<KEYS_TILE>(chunk.keys[panel * COLUMNS / LANES] + unit * chunk.key_stride, chunk.key_stride * sizeof(int32_t));
        multiply_tiles_of_bytes<SUMS_TILE, 4, KEYS_TILE, int8_t, int8_t>();
        ask();
    }

    void weigh_all(const AttentionCall& call, Queries& queries) {
        for (int i = 0; i < group_.count; ++i) {
            if (i == TILE_ROWS / 2) keep_awake();
            int32_t* sums = sums_[i];
            typename Type::Place to{reinterpret_cast<float*>(sums), most_[i]};  // in the sums' memory
            Floats scale = fill(queries.scale[group_.first + i]);
            auto score = [&](int group) {
                Ints whole = load_units(sums + group * LANES);
                if constexpr (PARTS == 2) whole = whole * 256 + load_units(second_sums_[i] + group * LANES);
                return __builtin_convertvector(whole, Floats);
            };
            auto factor = [&](int group) { return load(key_factors_ + group * LANES) * scale; };
            auto under = [&](int group, Floats base) { return multiply_subtract(score(group), factor(group), base); };
            auto capped_under = [&](int group, Floats base) {
                return multiply_subtract(soft_capped(score(group) * factor(group), call.softcap), fill(LOG2_E), base);
            };
            if (call.softcap > 0) weigh<Type>(capped_under, queries, group_.first + i, group_.seen_by(i), chunk.value_scales, to);
            else weigh<Type>(under, queries, group_.first + i, group_.seen_by(i), chunk.value_scales, to);
            ask();
        }
    }

    // All queries' largest weights at one time: one by one each would be waited for.
    void round_weights() {
        for (int i = 0; i < group_.count; i += LANES) {
            UnsignedInts most[LANES];
#pragma GCC unroll 16
            for (int j = 0; j < LANES; ++j) std::memcpy(&most[j], most_[i + j], sizeof most[j]);
            Floats magnitude = (Floats)max_of_each(most);
            store(factors_ + i, magnitude > LEAST_SCALE ? LARGEST_BYTE / magnitude : Floats{});
            store(scales_ + i, magnitude / LARGEST_BYTE);
        }
        for (int i = 0; i < group_.count; ++i) {
            const float* weights = reinterpret_cast<const float*>(sums_[i]);
            auto rounded = [&](int key) { return load(weights + key) * factors_[i]; };
            for (int key = 0; key < KEYS; key += 4 * LANES)
                store(weights_[i] + key, rounded(key), rounded(key + LANES), rounded(key + 2 * LANES), rounded(key + 3 * LANES));
        }
    }

    // To four tiles of 16 queries' output, from column `d` on, the weighted values.
    void add_values(Queries& queries, int d) {
        zero_sums();
        load_tile<4>(weights_, KEYS);
        add_column<0, 5>(d);
        add_column<1, 6>(d);
        add_column<2, 5>(d);
        add_column<3, 6>(d);
        store_sums(sums_);
        for (int i = 0; i < group_.count; ++i) {
            float *output = queries.output + (group_.first + i) * queries.width + d, scale = scales_[i];
            for (int n = 0; n < 4 * COLUMNS; n += LANES)
                store(output + n, multiply_add(__builtin_convertvector(load_units(sums_[i] + n), Floats), fill(scale), load(output + n)));
        }
    }

    template <int COLUMN_TILE, int VALUES_TILE>
    void add_column(int d) {
        load_tile<VALUES_TILE>(values_ + d + COLUMN_TILE * COLUMNS, head_dim_ * sizeof(int32_t));
        multiply_tiles_of_bytes<COLUMN_TILE, 4, VALUES_TILE, uint8_t, int8_t>();
        ask();
    }

    void store_sums(int32_t (&to)[TILE_ROWS][4 * COLUMNS]) {
        store_tile<0>(to[0], sizeof to[0]);
        store_tile<1>(to[0] + COLUMNS, sizeof to[0]);
        store_tile<2>(to[0] + 2 * COLUMNS, sizeof to[0]);
        store_tile<3>(to[0] + 3 * COLUMNS, sizeof to[0]);
    }
    void ask() {
        for (int i = 0; i < asks_; ++i) chunk.next.ask();
    }

    int head_dim_, asks_ = 1;
    const int32_t* values_ = nullptr;
    TileQueries group_;
    // For each query: sums of 64 keys or of 64 of a head's dimensions, weights, the largest of these by lane, and what makes bytes of
    // them and back.
    alignas(64) int32_t sums_[TILE_ROWS][4 * COLUMNS], second_sums_[PARTS == 2 ? TILE_ROWS : 1][4 * COLUMNS];
    alignas(64) uint8_t weights_[TILE_ROWS][KEYS] = {};
    alignas(64) uint32_t most_[TILE_ROWS][LANES] = {};
    alignas(64) float factors_[TILE_ROWS], scales_[TILE_ROWS];
    alignas(64) float key_factors_[KEYS];
};

}  // namespace

void attention_bfloat16_over_codes(const AttentionCall& call, const Team& team) {
    int head_dim = call.layout.head_dim;
    if (head_dim % (4 * COLUMNS) || head_dim > MOST_DIMENSIONS) QUIRE_ISA::attention_bfloat16_over_codes(call, team);
    else if (head_dim <= MOST_OF_ONE_PART) attention<InTilesOfCodes<1>>(call, team);
    else attention<InTilesOfCodes<2>>(call, team);
}

}  // namespace quire::QUIRE_TILES
