// Linear layers with weights of 4 or 8 bits by tiles: a panel's 16 units are a tile of weights as they lie, and 4 bits become bytes
// once for many rows. Sums of integers are exact in any order, and the groups' are added as quantized.cpp adds them: so a row's
// results have the same bits here and there, and what is faster for so many rows may compute them.
#include "activations.h"
#include "quantized_operands.h"

namespace quire::QUIRE_TILES {
namespace {

// Of rows that stay in a core's second cache while the panels pass.
constexpr int64_t BLOCK_BYTES = 256 << 10;

// From so many rows on tiles are faster: of weights with one group, with several, and with groups of one piece, where scaling the
// sums takes longer than multiplying.
constexpr int64_t FEWEST_ROWS = 4, FEWEST_ROWS_OF_GROUPS = 8, FEWEST_ROWS_OF_PIECES = 16;

constexpr int CHUNK = 4;  // rows whose results are computed at one time

// What M rows' gates let through, rounded as if they had been stored: the bits are those of `gated`.
template <typename T, int M>
void put_gated(const GateCall& call, int64_t row, int64_t output, const Floats (&gates)[M][PARTS], const Floats (&ups)[M][PARTS]) {
    with_activation<T>(call.activation, [&](auto activation) {
        for (int m = 0; m < M; ++m)
            for (int p = 0; p < PARTS; ++p) {
                T* to = static_cast<T*>(call.y.data) + (row + m) * call.y.token_stride + output + p * LANES;
                store(to, activation(rounded_to<T>(gates[m][p])) * rounded_to<T>(ups[m][p]));
            }
    });
}

template <int M>
void put_gated(const GateCall& call, int64_t row, int64_t output, const Floats (&gates)[M][PARTS], const Floats (&ups)[M][PARTS]) {
    if (call.bfloat16) put_gated<BFloat16>(call, row, output, gates, ups);
    else put_gated<float>(call, row, output, gates, ups);
}

typedef int32_t Sums[TILE_ROWS][PANEL];

// One group's sums of one tile of rows and one panel, into `sums`.
inline void multiply_group(const Work& work, const uint8_t* x, const uint8_t* codes, Sums& sums) {
    const Shape& shape = work.shape;
    int64_t stride = work.x.num_inputs;
    zero_tile<0>();
    for (int64_t t = 0; t < shape.tiles_of_group; ++t) {
        load_tile<6>(codes + t * shape.units * UNIT_BYTES, UNIT_BYTES);
        load_tile<4>(x + t * shape.units * UNIT, stride);
        multiply_tiles_of_bytes<0, 4, 6>();
    }
    store_tile<0>(sums, sizeof sums[0]);
}

// Several groups: one tile of rows times one panel, up to M rows, their totals in registers. While one group's sums are scaled
// the next one's are multiplied.
template <int M, bool ZERO, bool MINIMUM>
void multiply_groups(const Work& work, int64_t tile, const Panel& panel, Ahead& ahead, Floats (&y)[M][PARTS]) {
    const Shape& shape = work.shape;
    const auto* x = reinterpret_cast<const uint8_t*>(work.x.codes(tile * shape.rows));
    const auto* group = work.groups(tile);
    const auto* outliers = work.outliers(tile);
    const uint8_t* codes = panel.codes;
    const float *scales = panel.scales, *minima = panel.minima;
    int64_t group_bytes = shape.tiles_of_group * shape.units * UNIT, codes_bytes = group_bytes * PANEL;
    alignas(64) Sums sums[2];
    // Rows that the tile does not have are scaled too, by zero.
    for (int i = shape.rows; i < TILE_ROWS; ++i) std::memset(sums[0][i], 0, sizeof sums[0][i]), std::memset(sums[1][i], 0, sizeof sums[1][i]);
    Floats totals[M * PARTS];
#pragma GCC unroll 64
    for (int s = 0; s < M * PARTS; ++s) totals[s] = Floats{};
    multiply_group(work, x, codes, sums[0]);
    int64_t g = 0;
    do {
        Sums& now = sums[g % 2];
        if (g + 1 < shape.num_groups) multiply_group(work, x + (g + 1) * group_bytes, codes + (g + 1) * codes_bytes, sums[(g + 1) % 2]);
        for (int64_t line = 0; line < ahead.step; line += 64) prefetch(ahead.from + line);
        ahead.from += ahead.step;
        for (unsigned found = rows_with_outliers(outliers); found; found &= found - 1) {
            int i = __builtin_ctz(found);
            add_outliers(now[i], codes + g * codes_bytes, outliers, shape.pieces_of_group, i);
        }
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; ++p) {
            Floats scale = load(scales + p * LANES), minimum = {};
            if constexpr (MINIMUM) minimum = load(minima + p * LANES);
#pragma GCC unroll 16
            for (int i = 0; i < M; ++i) {
                Floats& total = totals[i * PARTS + p];
                Ints whole = load_units(now[i] + p * LANES);
                if constexpr (ZERO) whole += group->minus_zero[i];
                total += __builtin_convertvector(whole, Floats) * (scale * group->scales[i]);
                if constexpr (MINIMUM) total += minimum * group->sums[i];
            }
        }
        scales += PANEL;
        if constexpr (MINIMUM) minima += PANEL;
        outliers += shape.pieces_of_group;
        ++group;
    } while (++g < shape.num_groups);
#pragma GCC unroll 64
    for (int s = 0; s < M * PARTS; ++s) y[s / PARTS][s % PARTS] = totals[s];
}

// One tile of rows times a pair of panels.
template <int M, bool ZERO, bool MINIMUM>
void multiply_pair(const Work& work, int64_t tile, int64_t pair, const Panel (&panels)[2], Ahead (&aheads)[2]) {
    const LinearRows& rows = work.call.rows;
    int64_t row = tile * work.shape.rows, index = work.first_of(pair);
    Floats first[M][PARTS], second[M][PARTS];
    auto each_row = [&](auto&& put) { in_groups<CHUNK>(0, work.rows_of(tile), put); };
    auto store = [&](int64_t panel, const Floats (&y)[M][PARTS]) {
        each_row([&](int64_t i, auto N) {
            store_rows(rows, work.call.weight.num_outputs, row + i, panel * PANEL, reinterpret_cast<const Floats(&)[N][PARTS]>(y[i]), 0);
        });
    };
    multiply_groups<M, ZERO, MINIMUM>(work, tile, panels[0], aheads[0], first);
    if (!work.gate) store(index, first);
    if (!work.has_second(pair)) return;
    multiply_groups<M, ZERO, MINIMUM>(work, tile, panels[1], aheads[1], second);
    if (!work.gate) return store(index + 1, second);
    each_row([&](int64_t i, auto N) {
        put_gated<N>(*work.gate, row + i, index * PANEL, reinterpret_cast<const Floats(&)[N][PARTS]>(first[i]),
                     reinterpret_cast<const Floats(&)[N][PARTS]>(second[i]));
    });
}

template <bool ZERO, bool MINIMUM>
void several_groups(const Work& work, const Team& team) {
    const QuantizedWeight& weight = work.call.weight;
    const Shape& shape = work.shape;
    int64_t block = largest<int64_t>(1, BLOCK_BYTES / (work.x.row_bytes() * shape.rows));
    // Two panels, one after the other: their results lie in the same lines, and rows are still in the first cache.
    PanelMemory memory(weight, 2);
    hand_out_blocks(team, shape.num_row_tiles, block, work.num_pairs(), 2 * weight.panel_bytes * 4,
                    [&](int64_t first, int64_t count, int64_t pair) {
        int64_t index = work.first_of(pair), step = work.from_first_to_second();
        Panel panels[2] = {memory.load(index, 0)};
        Ahead aheads[2] = {work.next_pair(pair, shape.num_groups, count)};
        if (work.has_second(pair)) panels[1] = memory.load(index + step, 1);
        aheads[1] = {aheads[0].from + step * weight.panel_bytes, aheads[0].step};
        for (int64_t tile = first; tile < first + count; ++tile) {
            if (shape.rows > 12) multiply_pair<16, ZERO, MINIMUM>(work, tile, pair, panels, aheads);
            else if (shape.rows > 8) multiply_pair<12, ZERO, MINIMUM>(work, tile, pair, panels, aheads);
            else multiply_pair<8, ZERO, MINIMUM>(work, tile, pair, panels, aheads);
        }
    });
}

// Tiles: sums in 0 to 3, x in 4 and 5, weights in 6 and 7. Up to two of rows times up to two panels.
template <int ROW_TILES, int PANELS>
void store_sums(Sums (&sums)[2][2]) {
    store_tile<0>(sums[0][0], sizeof sums[0][0][0]);
    if constexpr (PANELS == 2) store_tile<1>(sums[0][1], sizeof sums[0][0][0]);
    if constexpr (ROW_TILES == 2) store_tile<2>(sums[1][0], sizeof sums[0][0][0]);
    if constexpr (ROW_TILES == 2 && PANELS == 2) store_tile<3>(sums[1][1], sizeof sums[0][0][0]);
}

inline void zero_sums() {
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
}

// Adds to the sums of one tile of rows what its outliers add, but for the factor OUTLIER.
template <int X, int PANELS>
void multiply_outliers(const Shape& shape, const OutlierTiles& outliers, const Panel (&panels)[2]) {
    constexpr int SUMS = X == 4 ? 0 : 2;
    for (int64_t t = 0; t < outliers.num_tiles; ++t) {
        alignas(64) uint8_t weights[PANELS][TILE_ROWS][UNIT_BYTES];
        for (int p = 0; p < PANELS; ++p)
            for (int u = 0; u < shape.units; ++u)
                std::memcpy(weights[p][u], panels[p].codes + outliers.units[t * shape.units + u] * UNIT_BYTES, UNIT_BYTES);
        load_tile<X>(outliers.codes + t * TILE_ROWS * shape.units * UNIT, shape.units * UNIT);
        load_tile<6>(weights[0], UNIT_BYTES);
        multiply_tiles_of_bytes<SUMS, X, 6>();
        if constexpr (PANELS == 2) {
            load_tile<7>(weights[1], UNIT_BYTES);
            multiply_tiles_of_bytes<SUMS + 1, X, 7>();
        }
    }
}

// One group: sums of up to two tiles of rows and two panels, whose results are computed while the next ones are multiplied.
class Finished {
public:
    explicit Finished(const Work& work) : work_(work), chunks_of_tile_((work.shape.rows + CHUNK - 1) / CHUNK) {}

    template <int ROW_TILES, int PANELS>
    void take(int64_t tile, int64_t index, const Panel (&panels)[2]) {
        finish();
        store_sums<ROW_TILES, PANELS>(sums_);
        zero_sums();
        multiply_outliers<4, PANELS>(work_.shape, work_.outlier_memory.tiles(tile), panels);
        if constexpr (ROW_TILES == 2) multiply_outliers<5, PANELS>(work_.shape, work_.outlier_memory.tiles(tile + 1), panels);
        store_sums<ROW_TILES, PANELS>(of_outliers_);
        tile_ = tile;
        index_ = index;
        num_panels_ = PANELS;
        for (int p = 0; p < PANELS; ++p) panels_[p] = panels[p];
        chunks_left_ = ROW_TILES * chunks_of_tile_;
        t_ = first_ = 0;
    }
    void advance(int64_t num_chunks) {
        for (; num_chunks > 0 && chunks_left_ > 0; --num_chunks, --chunks_left_) compute();
    }
    void finish() { advance(chunks_left_); }
    // Of one `advance`, so that all are computed in so many.
    int64_t chunks_of(int64_t num_steps) const { return (chunks_left_ + num_steps - 1) / num_steps; }

private:
    void compute() {
        int left = work_.rows_of(tile_ + t_) - first_;
        if (left > 0) at_once<CHUNK>(first_, left, [&](int64_t first, auto M) {
            if (panels_[0].minima) compute_rows<M, true>(static_cast<int>(first));
            else compute_rows<M, false>(static_cast<int>(first));
        });
        first_ += CHUNK;
        if (first_ >= work_.shape.rows) ++t_, first_ = 0;
    }

    template <int M, bool MINIMUM>
    void compute_rows(int first) {
        int64_t tile = tile_ + t_, row = tile * work_.shape.rows + first;
        const auto* group = work_.groups(tile);
        Floats results[2][M][PARTS];
        for (int p = 0; p < num_panels_; ++p) {
            const Panel& panel = panels_[p];
            auto& y = results[p];
            for (int part = 0; part < PARTS; ++part) {
                Floats scale = load(panel.scales + part * LANES), minimum = {};
                if constexpr (MINIMUM) minimum = load(panel.minima + part * LANES);
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
                    int i = first + m;
                    Ints whole = load_units(sums_[t_][p][i] + part * LANES) + group->minus_zero[i];
                    whole += load_units(of_outliers_[t_][p][i] + part * LANES) * OUTLIER;
                    Floats total = {};
                    total += __builtin_convertvector(whole, Floats) * (scale * group->scales[i]);
                    if constexpr (MINIMUM) total += minimum * group->sums[i];
                    y[m][part] = total;
                }
            }
            if (!work_.gate) store_rows(work_.call.rows, work_.call.weight.num_outputs, row, (index_ + p) * PANEL, y, 0);
        }
        if (work_.gate) put_gated<M>(*work_.gate, row, index_ * PANEL, results[0], results[1]);
    }

    const Work& work_;
    alignas(64) Sums sums_[2][2];
    alignas(64) Sums of_outliers_[2][2];
    Panel panels_[2];
    int64_t tile_ = 0, index_ = 0;
    int num_panels_ = 1, chunks_of_tile_, chunks_left_ = 0;
    int t_ = 0, first_ = 0;  // of the next chunk: the tile, and the row in it
};

template <int ROW_TILES, int PANELS>
void multiply_whole(const Work& work, int64_t tile, const Panel (&panels)[2], int64_t index, Ahead& ahead, Finished& finished) {
    const Shape& shape = work.shape;
    int64_t stride = work.x.num_inputs;
    const auto* x = reinterpret_cast<const uint8_t*>(work.x.codes(tile * shape.rows));
    zero_sums();
    int64_t chunks = finished.chunks_of(shape.tiles_of_group);
    // Results' lines are asked for, a few with each step, for the second cache: the first one's few places are for x and weights.
    const LinearRows& rows = work.call.rows;
    int64_t row = tile * shape.rows, left = rows.num_rows - row, most = ROW_TILES * shape.rows, width = rows.y_bfloat16 ? 2 : 4;
    int64_t rows_left = left < most ? left : most, rows_of_step = (rows_left + shape.tiles_of_group - 1) / shape.tiles_of_group;
    int64_t y_stride = (work.gate ? work.gate->y.token_stride : rows.y_stride) * width, y_bytes = (work.gate ? 1 : PANELS) * PANEL * width;
    const char* y = static_cast<const char*>(work.gate ? work.gate->y.data : rows.y) + row * y_stride + index * PANEL * width;
    int64_t partner_bytes = work.from_first_to_second() * work.call.weight.panel_bytes;
    for (int64_t t = 0; t < shape.tiles_of_group; ++t) {
        int64_t at = t * shape.units * UNIT;
        load_tile<6>(panels[0].codes + at * PANEL, UNIT_BYTES);
        load_tile<4>(x + at, stride);
        multiply_tiles_of_bytes<0, 4, 6>();
        if constexpr (PANELS == 2) {
            load_tile<7>(panels[1].codes + at * PANEL, UNIT_BYTES);
            multiply_tiles_of_bytes<1, 4, 7>();
        }
        if constexpr (ROW_TILES == 2) {
            load_tile<5>(x + shape.rows * stride + at, stride);
            multiply_tiles_of_bytes<2, 5, 6>();
            if constexpr (PANELS == 2) multiply_tiles_of_bytes<3, 5, 7>();
        }
        for (int p = 0; p < PANELS; ++p)
            for (int64_t line = 0; line < ahead.step; line += 64) prefetch(ahead.from + p * partner_bytes + line);
        ahead.from += ahead.step;
        for (int64_t i = 0; i < rows_of_step && rows_left > 0; ++i, --rows_left, y += y_stride)
            for (int64_t line = 0; line < y_bytes; line += 64) prefetch(y + line);
        finished.advance(chunks);
    }
    finished.take<ROW_TILES, PANELS>(tile, index, panels);
}

void one_group(const Work& work, const Team& team) {
    const QuantizedWeight& weight = work.call.weight;
    const Shape& shape = work.shape;
    int64_t block = largest<int64_t>(1, BLOCK_BYTES / (2 * work.x.row_bytes() * shape.rows)) * 2;
    PanelMemory memory(weight, 4);
    Finished finished(work);
    int place = 0;  // the panels of what is not yet finished stay
    hand_out_blocks(team, shape.num_row_tiles, block, work.num_pairs(), 2 * weight.panel_bytes * 4,
                    [&](int64_t first, int64_t count, int64_t pair) {
        int64_t index = work.first_of(pair), last = first + count;
        place = 2 - place;
        Panel panels[2] = {memory.load(index, place)};
        bool two = work.has_second(pair);
        if (two) panels[1] = memory.load(index + work.from_first_to_second(), place + 1);
        Ahead ahead = work.next_pair(pair, shape.tiles_of_group, (count + 1) / 2);
        for (int64_t tile = first; tile < last; tile += 2) {
            if (two && tile + 1 < last) multiply_whole<2, 2>(work, tile, panels, index, ahead, finished);
            else if (two) multiply_whole<1, 2>(work, tile, panels, index, ahead, finished);
            else if (tile + 1 < last) multiply_whole<2, 1>(work, tile, panels, index, ahead, finished);
            else multiply_whole<1, 1>(work, tile, panels, index, ahead, finished);
        }
    });
    finished.finish();
}

// Weights whose groups are not made of whole pieces are left to the other kernel.
bool is_faster(const QuantizedWeight& weight, int64_t num_rows) {
    if (weight.group_size % (PIECE_UNITS * UNIT)) return false;
    if (weight.group_size == weight.num_inputs) return num_rows >= FEWEST_ROWS;
    return num_rows >= (weight.group_size > PIECE_UNITS * UNIT ? FEWEST_ROWS_OF_GROUPS : FEWEST_ROWS_OF_PIECES);
}

void multiply_all(const QuantizedCall& call, const GateCall* gate, const Team& team) {
    const QuantizedWeight& weight = call.weight;
    Shape shape;
    shape.num_row_tiles = (call.rows.num_rows + TILE_ROWS - 1) / TILE_ROWS;
    shape.rows = static_cast<int>((call.rows.num_rows + shape.num_row_tiles - 1) / shape.num_row_tiles);
    shape.units = weight.group_size % TILE_BYTES ? PIECE_UNITS : TILE_BYTES / UNIT;
    shape.num_groups = weight.num_inputs / weight.group_size;
    shape.tiles_of_group = weight.group_size / (shape.units * UNIT);
    shape.pieces_of_group = weight.group_size / (PIECE_UNITS * UNIT);
    IntegerRows x{weight.num_inputs, shape.num_groups, shape.pieces_of_group, shape.num_row_tiles * TILE_ROWS,
                  static_cast<uint8_t*>(call.rows.scratch)};
    if (call.rows.x_bfloat16) quantize_tiles<BFloat16>(call.rows, weight.zero, shape, x, team);
    else quantize_tiles<float>(call.rows, weight.zero, shape, x, team);
    Work work{call, gate, shape, x};
    if (shape.num_groups == 1) {
        team.wait();
        lay_out_outliers(work, team);
    }
    team.wait({weight.panels, work.num_panels() * weight.panel_bytes});
    TileShape of_sums{shape.rows, TILE_BYTES}, of_x{shape.rows, shape.units * UNIT}, of_weights{shape.units, TILE_BYTES};
    begin_tiles({of_sums, of_sums, of_sums, of_sums, of_x, of_x, of_weights, of_weights});
    if (shape.num_groups == 1) one_group(work, team);
    else if (weight.has_minimum && weight.zero) several_groups<true, true>(work, team);
    else if (weight.has_minimum) several_groups<false, true>(work, team);
    else several_groups<true, false>(work, team);
    end_tiles();
}

}  // namespace

void quantized_linear(const QuantizedCall& call, const Team& team) {
    if (call.rows.panels || !is_faster(call.weight, call.rows.num_rows)) return QUIRE_ISA::quantized_linear(call, team);
    multiply_all(call, nullptr, team);
}

void quantized_gated(const QuantizedGatedCall& call, const Team& team) {
    bool halves_are_panels = call.linear.weight.num_outputs % (2 * PANEL) == 0;
    if (halves_are_panels && is_faster(call.linear.weight, call.linear.rows.num_rows)) return multiply_all(call.linear, &call.gate, team);
    QUIRE_TILES::quantized_linear(call.linear, team);
    team.wait();
    gated(call.gate, team);
}

}  // namespace quire::QUIRE_TILES
