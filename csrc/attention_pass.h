// Attention of a prompt by tiles: of one row's queries 16 at a time pass over its keys, chunk by chunk, and their outputs of a section
// stay in tiles. The products of a chunk's values and of the chunk after the next one's keys come one by one, and between two of them one
// query's scores become weights: what multiplies tiles and what computes in registers work at the same time.
// The bits are those of attention_tiles.cpp's `meet`: each sum has the same terms in the same order.
#pragma once

#include <utility>
#include <vector>

#include "attention_tiles.h"
#include "linear.h"

namespace quire::QUIRE_TILES {

constexpr int UNITS_OF_TILE = TILE_ROWS;  // of a head's dimensions or of tokens, in a tile of K or V
constexpr int UNITS_OF_CHUNK = KEYS / 2;  // of tokens
constexpr int PARTS_OF_CHUNK = UNITS_OF_CHUNK / UNITS_OF_TILE;
constexpr int64_t CHUNKS_OF_SECTION = SECTION / KEYS;
constexpr int64_t CHUNKS_OF_SPAN = 64;  // of which K and V stay in a core's second cache: of 64 dimensions each 0.5 MB
static_assert(CHUNKS_OF_SPAN % CHUNKS_OF_SECTION == 0);

// Chunks of a row's K and V for a KV head as passes read them: keys where they lie, values together. They are kept for the next
// queries of the row.
class Span {
public:
    // Chunks from `first` on, a multiple of CHUNKS_OF_SPAN; `keys` are all that the row's tokens see.
    void lay_out(const AttentionCall& call, const Keys& keys, int64_t first, Chunk<InBFloat16>& chunk) {
        int kv_head = keys.kv_heads.first;
        if (row_ == keys.row && kv_head_ == kv_head && first_ == first) return;
        row_ = keys.row, kv_head_ = kv_head, first_ = first;
        head_dim_ = call.layout.head_dim;
        int64_t last = (keys.end + KEYS - 1) / KEYS, count = last - first < CHUNKS_OF_SPAN ? last - first : CHUNKS_OF_SPAN;
        values_.resize(num_lines(count * UNITS_OF_CHUNK * head_dim_));
        for (int64_t c = largest(first, keys.first / KEYS); c < first + count; ++c) {
            find<InBFloat16>(call, keys.row, kv_head, c * KEYS, keys.low, keys.end, chunk);
            for (int panel = 0; panel < PANELS; ++panel) keys_[c - first][panel] = chunk.keys[panel * COLUMNS / LANES];
            copy_values(chunk, c);
        }
    }
    const int32_t* keys(int64_t c, int panel) const { return keys_[c - first_][panel]; }
    const int32_t* values(int64_t c) const { return reinterpret_cast<const int32_t*>(values_.data()) + (c - first_) * UNITS_OF_CHUNK * head_dim_; }

private:
    // [units of tokens, D]. Tokens that nobody sees become zeros.
    void copy_values(const Chunk<InBFloat16>& chunk, int64_t c) {
        int32_t* to = reinterpret_cast<int32_t*>(values_.data()) + (c - first_) * UNITS_OF_CHUNK * head_dim_;
        int head_dim = head_dim_;
        for (int unit = 0; unit < UNITS_OF_CHUNK; ++unit, to += head_dim) {
            const int32_t* from = unit >= chunk.units.first && unit < chunk.units.last ? chunk.values[unit] : nullptr;
            for (int d = 0; d < head_dim; d += LANES) {
                Ints units = from ? load_units(from + d) : Ints{};
                std::memcpy(to + d, &units, sizeof units);
            }
        }
    }

    int64_t row_ = -1, first_ = -1;
    int kv_head_ = -1, head_dim_ = 0;
    const int32_t* keys_[CHUNKS_OF_SPAN][PANELS];
    std::vector<Line> values_;
};

// Up to 16 queries of STEPS * 32 dimensions. Tiles: outputs in 0 to 3; a chunk's scores in 4, queries in 5 and 6, keys in 7; or weights
// in 4, and values in 5 to 7 in turn.
template <int STEPS>
class Pass {
public:
    Pass(const AttentionCall& call, const Span& span, const Kept& kept, Queries& queries, int first, int count)
        : call_(call), span_(span), kept_(kept), queries_(queries), first_(first), count_(count), factor_(call.scale * LOG2_E) {
        // Rows of nobody have no weight, whatever is there.
        for (int i = count; i < TILE_ROWS; ++i) {
            std::memset(queries.values + (first + i) * queries.num_words, 0, queries.num_words * sizeof(int32_t));
            queries.base[first + i] = -UNSEEN;
            std::memset(queries.total + (first + i) * LANES, 0, LANES * sizeof(float));
        }
    }

    // Chunks that one of the queries sees: [begin, end).
    int64_t begin() const {
        int64_t oldest = call_.window ? queries_.position[first_] - call_.window + 1 : 0;
        return oldest > 0 ? oldest / KEYS : 0;
    }
    int64_t end() const { return queries_.position[first_ + count_ - 1] / KEYS + 1; }

    // Those from `begin` to `end`.
    void run(int64_t begin, int64_t end) {
        std::memcpy(totals_[begin % 2], total(), sizeof totals_[0]);
        load_outputs();
        multiply<false, true>(begin - 1, [](int) {});
        for (int64_t c = begin; c < end; ++c) {
            bool begins = c > begin && c % CHUNKS_OF_SECTION == 0;
            if (begins) begin_section(c);
            see(c);
            if (group_.whole && queries_.base[first_ + count_ - 1] == UNSEEN) begin_bases(c);
            Ints most = {};  // bits of sums of weights: numbers without a sign have their order, and those of a NaN are larger
            const Weighing next(*this, c);
            if (group_.whole && c > begin && c + 1 < end) {
                multiply<true, true>(c, [&, next](int i) __attribute__((always_inline)) { next.weigh_whole(i, most); });
            } else {
                multiply_around(c, begin, end);
                for (int i = 0; i < count_; ++i) next.weigh(i, group_.seen_by(i), most);
            }
            if (begins) end_section(c);
            if (any(most > (Ints)fill(LARGEST_SUM))) weigh_one_by_one(c);
        }
        multiply<true, false>(end, [](int) {});
        store_outputs();
        std::memcpy(total(), totals_[end % 2], sizeof totals_[0]);
    }

private:
    static constexpr int COLUMN_TILES = 2 * STEPS, DIMENSIONS = 32 * STEPS;
    static constexpr int NUM_PRODUCTS = PARTS_OF_CHUNK * COLUMN_TILES + PANELS * STEPS, QUERIES_A_PRODUCT = TILE_ROWS / NUM_PRODUCTS;
    static_assert(QUERIES_A_PRODUCT * NUM_PRODUCTS == TILE_ROWS && PANELS == 4 && STEPS <= 2);
    static constexpr int64_t ROW_BYTES = DIMENSIONS * sizeof(float);  // of outputs, and of a unit of tokens

    float* total() { return queries_.total + first_ * LANES; }

    void see(int64_t c) {
        bool whole = seen_by(call_, queries_.position[first_], c * KEYS).all() && seen_by(call_, queries_.position[first_ + count_ - 1], c * KEYS).all();
        group_.begin(call_, queries_, first_, count_, c * KEYS, whole);
    }

    // Queries that see the section which begins with the chunk `c` have no sums of it yet; those of the one before are put aside until its
    // last values are added.
    [[gnu::noinline]] void begin_section(int64_t c) {
        all_begin_ = kept_.all_begin(call_, queries_, first_, count_, c / CHUNKS_OF_SECTION - 1);
        for (int i = 0; i < count_; ++i) {
            Sums ended = all_begin_ ? kept_.of(first_ + i, DIMENSIONS) : Sums{nullptr, total() + i * LANES, bases_ + i};
            store(ended.total, load(totals_[c % 2][i]));
            *ended.base = queries_.base[first_ + i];
            if (queries_.position[first_ + i] < c * KEYS) continue;
            queries_.base[first_ + i] = UNSEEN;
            store(totals_[c % 2][i], Floats{});
        }
    }
    [[gnu::noinline]] void end_section(int64_t c) {
        if (all_begin_) {
            store_outputs(kept_.of(first_, DIMENSIONS).output, kept_.stride() * sizeof(float));
            return zero_sums();
        }
        store_outputs();
        for (int i = 0; i < count_; ++i) {
            int n = first_ + i;
            Sums ended = sums_of(queries_, n);
            ended.base = bases_ + i;
            if (kept_.keep(call_, n, queries_.position[n], ended, DIMENSIONS, c / CHUNKS_OF_SECTION - 1)) std::memset(ended.output, 0, ROW_BYTES);
        }
        load_outputs();
    }

    // Of queries that have none and see all of the chunk, as `weigh` would begin with, but for all of them at once.
    void begin_bases(int64_t c) {
        for (int n = 0; n < TILE_ROWS; n += LANES) {
            Floats tops[LANES];
            for (int i = 0; i < LANES; ++i) {
                const float* scores = scores_[c % 2][n + i];
                tops[i] = load(scores) * factor_;
                for (int group = 1; group < GROUPS; ++group) tops[i] = max(tops[i], load(scores + group * LANES) * factor_);
            }
            Floats top = max_of_each(tops);
            float* bases = queries_.base + first_ + n;
            for (int i = 0; i < LANES; ++i) bases[i] = bases[i] == UNSEEN ? largest(__builtin_ceilf(top[i]), UNSEEN) : bases[i];
        }
    }

    // Values of the chunk before `c`, and scores of the one after it, where there are any.
    void multiply_around(int64_t c, int64_t begin, int64_t end) {
        if (c > begin) multiply<true, false>(c, [](int) {});
        if (c + 1 < end) multiply<false, true>(c, [](int) {});
    }

    // `then(i)` for queries, one or two after each product: for all 16 where there are both.
    template <bool VALUES, bool SCORES, typename Then>
    [[gnu::always_inline]] void multiply(int64_t c, Then&& then) {
        auto after = [&]<int PRODUCT>(std::integral_constant<int, PRODUCT>) __attribute__((always_inline)) {
            for (int i = 0; i < QUERIES_A_PRODUCT; ++i) then(PRODUCT * QUERIES_A_PRODUCT + i);
        };
        constexpr int OF_VALUES = PARTS_OF_CHUNK * COLUMN_TILES;
        if constexpr (VALUES) multiply_values(weights_[(c - 1) % 2][0], span_.values(c - 1), after, std::make_integer_sequence<int, OF_VALUES>());
        if constexpr (SCORES) multiply_keys<OF_VALUES>(c + 1, after, std::make_integer_sequence<int, PANELS * STEPS>());
    }

    template <int PRODUCT>
    [[gnu::always_inline]] static void load_values(const int32_t* values) {
        constexpr int PART = PRODUCT / COLUMN_TILES, COLUMN = PRODUCT % COLUMN_TILES;
        if constexpr (PART < PARTS_OF_CHUNK) load_passing_tile<5 + PRODUCT % 3>(values + PART * UNITS_OF_TILE * DIMENSIONS + COLUMN * COLUMNS, ROW_BYTES);
    }

    // Each tile is loaded two products ahead.
    template <typename After, int... PRODUCT>
    [[gnu::always_inline]] static void multiply_values(const BFloat16* weights, const int32_t* values, After&& after, std::integer_sequence<int, PRODUCT...>) {
        constexpr int LAST_COLUMN = COLUMN_TILES - 1;
        auto load_weights = [&](int part) __attribute__((always_inline)) { load_tile<4>(weights + part * 2 * UNITS_OF_TILE, KEYS * sizeof(BFloat16)); };
        load_weights(0);
        load_values<0>(values);
        load_values<1>(values);
        auto one = [&]<int P>(std::integral_constant<int, P> product) __attribute__((always_inline)) {
            multiply_tiles<P % COLUMN_TILES, 4, 5 + P % 3>();
            load_values<P + 2>(values);
            if constexpr (P % COLUMN_TILES == LAST_COLUMN && P + 1 < sizeof...(PRODUCT)) load_weights(P / COLUMN_TILES + 1);
            after(product);
        };
        (one(std::integral_constant<int, PRODUCT>()), ...);
    }

    template <int FIRST, typename After, int... PRODUCT>
    [[gnu::always_inline]] void multiply_keys(int64_t c, After&& after, std::integer_sequence<int, PRODUCT...>) {
        const int32_t* keys[PANELS];
        for (int panel = 0; panel < PANELS; ++panel) keys[panel] = span_.keys(c, panel);
        int64_t stride = call_.layout.block_size * UNIT, step = UNITS_OF_TILE * call_.layout.block_size;
        float* scores = scores_[c % 2][0];
        const int32_t* values = queries_.values + first_ * queries_.num_words;
        load_passing_tile<7>(keys[0], stride);
        load_tile<5>(values, ROW_BYTES / 2);
        if constexpr (STEPS == 2) load_tile<6>(values + UNITS_OF_TILE, ROW_BYTES / 2);
        auto one = [&]<int P>(std::integral_constant<int, P>) __attribute__((always_inline)) {
            constexpr int PANEL = P / STEPS, STEP = P % STEPS, NEXT = P + 1;
            if constexpr (STEP == 0) zero_tile<4>();
            multiply_tiles<4, 5 + STEP, 7>();
            if constexpr (NEXT < PANELS * STEPS) load_passing_tile<7>(keys[NEXT / STEPS] + NEXT % STEPS * step, stride);
            after(std::integral_constant<int, FIRST + P>());
            if constexpr (STEP == STEPS - 1) store_tile<4>(scores + PANEL * COLUMNS, sizeof scores_[0][0]);
        };
        (one(std::integral_constant<int, PRODUCT>()), ...);
    }

    // As `weigh` in attention_queries.h, if the base may stay; the total is kept too, for if it may not. Its values are the caller's own,
    // so that they stay in registers between products.
    class Weighing {
    public:
        Weighing(Pass& pass, int64_t c)
            : scores_(pass.scores_[c % 2][0]), weights_(pass.weights_[c % 2][0]), before_(pass.totals_[c % 2][0]), after_(pass.totals_[(c + 1) % 2][0]),
              base_(pass.queries_.base + pass.first_), factor_(fill(pass.factor_)) {}

        // One that has a base and sees all of the chunk.
        [[gnu::always_inline]] void weigh_whole(int i, Ints& most) const {
            Floats v[GROUPS];
            for (int group = 0; group < GROUPS; ++group) v[group] = under(i, group, fill(base_[i]));
            put(i, v, most);
        }
        void weigh(int i, Seen seen, Ints& most) const {
            auto score = [&](int group, Floats base) { return under(i, group, base); };
            if (base_[i] == UNSEEN) base_[i] = whole_top(score, seen);  // no sums yet that would follow
            Floats v[GROUPS];
            put_under(base_[i], score, seen, v);
            put(i, v, most);
        }

    private:
        [[gnu::always_inline]] Floats under(int i, int group, Floats base) const { return multiply_subtract(load(scores_ + i * KEYS + group * LANES), factor_, base); }
        [[gnu::always_inline]] void put(int i, Floats (&v)[GROUPS], Ints& most) const {
            Floats sum = put_weights<InBFloat16::WEIGHT_DEGREE>(v);
            InBFloat16::put_weights(v, {}, {}, reinterpret_cast<float*>(weights_ + i * KEYS));
            store(after_ + i * LANES, load(before_ + i * LANES) + sum);
            most = max(most, (Ints)sum);  // a comparison would keep products waiting
        }

        const float* scores_;
        BFloat16* weights_;
        const float* before_;
        float* after_;
        float* base_;
        Floats factor_;
    };

    // The base follows, and with it what there is of sums.
    void weigh_one_by_one(int64_t c) {
        store_outputs();
        std::memcpy(total(), totals_[c % 2], sizeof totals_[0]);
        for (int i = 0; i < count_; ++i)
            weigh<InBFloat16>(scores_under(scores_[c % 2][i], factor_), queries_, first_ + i, group_.seen_by(i), {}, place_of_weights(c, i));
        std::memcpy(totals_[(c + 1) % 2], total(), sizeof totals_[0]);
        load_outputs();
    }
    float* place_of_weights(int64_t c, int i) { return reinterpret_cast<float*>(weights_[c % 2][i]); }

    void load_outputs() {
        const float* output = queries_.output + first_ * DIMENSIONS;
        load_tile<0>(output, ROW_BYTES);
        load_tile<1>(output + COLUMNS, ROW_BYTES);
        if constexpr (COLUMN_TILES == 4) load_tile<2>(output + 2 * COLUMNS, ROW_BYTES);
        if constexpr (COLUMN_TILES == 4) load_tile<3>(output + 3 * COLUMNS, ROW_BYTES);
    }
    // Rows behind the last query are nobody's.
    void store_outputs() { store_outputs(queries_.output + first_ * DIMENSIONS, ROW_BYTES); }
    void store_outputs(float* output, int64_t stride) {
        store_tile<0>(output, stride);
        store_tile<1>(output + COLUMNS, stride);
        if constexpr (COLUMN_TILES == 4) store_tile<2>(output + 2 * COLUMNS, stride);
        if constexpr (COLUMN_TILES == 4) store_tile<3>(output + 3 * COLUMNS, stride);
    }

    const AttentionCall& call_;
    const Span& span_;
    const Kept& kept_;
    Queries& queries_;
    int first_, count_;
    float factor_;
    TileQueries group_;
    // Of a chunk and of the next one.
    alignas(64) float scores_[2][TILE_ROWS][KEYS];
    alignas(64) BFloat16 weights_[2][TILE_ROWS][KEYS];
    alignas(64) float totals_[2][TILE_ROWS][LANES];
    float bases_[TILE_ROWS];  // of the section that ends
    bool all_begin_;
};

}  // namespace quire::QUIRE_TILES
