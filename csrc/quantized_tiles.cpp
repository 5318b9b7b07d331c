// Linear layers with weights of 4 or 8 bits by tiles: a panel's 16 units are a tile of weights as they lie, and 4 bits become bytes
// once for many rows. Sums of integers are exact in any order, and the groups' are added as quantized.cpp adds them: so a row's
// results have the same bits here and there, and what is faster for so many rows may compute them.
#include "one_group_tiles.h"

namespace quire::QUIRE_TILES {
namespace {

// From so many rows on tiles are faster: of weights that are rotated, with groups, and with groups of one piece, where scaling the
// sums takes longer than multiplying.
constexpr int64_t FEWEST_ROWS = 4, FEWEST_ROWS_OF_GROUPS = 8, FEWEST_ROWS_OF_PIECES = 16;

// One group's sums of one tile of rows and one panel, into `sums`.
inline void multiply_group(const Work& work, const uint8_t* x, const uint8_t* codes, Sums& sums) {
    const Shape& shape = work.shape;
    zero_tile<0>();
    for (int64_t t = 0; t < shape.tiles_of_group; ++t) {
        load_tile<6>(codes + t * shape.units * UNIT_BYTES, UNIT_BYTES);
        load_tile<4>(x + t * shape.x_step, shape.x_stride);
        multiply_tiles_of_bytes<0, 4, 6>();
    }
    store_tile<0>(sums, sizeof sums[0]);
}

// Groups: one tile of rows times one panel, up to M rows, their totals in registers. While one group's sums are scaled
// the next one's are multiplied.
template <int M, bool ZERO, bool MINIMUM>
void multiply_groups(const Work& work, int64_t tile, const Panel& panel, NextPanels& ahead, Floats (&y)[M][PARTS]) {
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
                total = multiply_add(__builtin_convertvector(whole, Floats), scale * group->scales[i], total);
                if constexpr (MINIMUM) total = multiply_add(minimum, fill(group->sums[i]), total);
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
void multiply_pair(const Work& work, int64_t tile, int64_t pair, const Panel (&panels)[2], NextPanels (&aheads)[2]) {
    const LinearRows& rows = work.call.rows;
    int64_t row = tile * work.shape.rows, index = work.first_of(pair);
    Floats first[M][PARTS], second[M][PARTS];
    auto each_row = [&](auto&& put) { in_groups<CHUNK>(0, work.rows_of(tile), put); };
    auto store = [&](int64_t panel, const Floats (&y)[M][PARTS]) {
        each_row([&](int64_t i, auto N) {
            store_rows(rows, work.call.weight.num_outputs, row + i, N, panel * PANEL, y[i], PARTS);
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
void groups(const Work& work, const Team& team) {
    const QuantizedWeight& weight = work.call.weight;
    const Shape& shape = work.shape;
    int64_t block = largest<int64_t>(1, BLOCK_BYTES / (work.x.row_bytes() * shape.rows));
    block = rows_of_block(shape.num_row_tiles, 2, FEWEST_OWN_TILES, block, team);
    // Two panels, one after the other: their results lie in the same lines, and rows are still in the first cache.
    PanelMemory memory(weight, 2);
    hand_out_blocks(team, shape.num_row_tiles, block, work.num_pairs(), 2 * weight.panel_bytes * 4,
                    [&](int64_t first, int64_t count, int64_t pair) {
        int64_t index = work.first_of(pair), step = work.from_first_to_second();
        Panel panels[2] = {memory.load(index, 0)};
        NextPanels aheads[2] = {work.next_pair(pair, shape.num_groups, count)};
        if (work.has_second(pair)) panels[1] = memory.load(index + step, 1);
        aheads[1] = {aheads[0].from + step * weight.panel_bytes, aheads[0].step};
        for (int64_t tile = first; tile < first + count; ++tile) {
            if (shape.rows > 12) multiply_pair<16, ZERO, MINIMUM>(work, tile, pair, panels, aheads);
            else if (shape.rows > 8) multiply_pair<12, ZERO, MINIMUM>(work, tile, pair, panels, aheads);
            else multiply_pair<8, ZERO, MINIMUM>(work, tile, pair, panels, aheads);
        }
    });
}

// Weights whose groups are not made of whole pieces are left to the other kernel.
bool is_faster(const QuantizedWeight& weight, int64_t num_rows) {
    if (weight.group_size % (PIECE_UNITS * UNIT)) return false;
    if (weight.rotated) return num_rows >= FEWEST_ROWS;
    return num_rows >= (weight.group_size > PIECE_UNITS * UNIT ? FEWEST_ROWS_OF_GROUPS : FEWEST_ROWS_OF_PIECES);
}

void multiply_all(const QuantizedCall& call, const GateCall* gate, const Team& team) {
    const QuantizedWeight& weight = call.weight;
    Work work = work_of(call, gate);
    begin(work, team);
    if (weight.rotated) one_group(work, team);
    else if (weight.has_minimum && weight.zero) groups<true, true>(work, team);
    else if (weight.has_minimum) groups<false, true>(work, team);
    else groups<true, false>(work, team);
    end_tiles();
}

}  // namespace

void quantized_linear(const QuantizedCall& call, const Team& team) {
    if (call.rows.panels || !is_faster(call.weight, call.rows.num_rows)) return QUIRE_ISA::quantized_linear(call, team);
    if (!stretches_of(call).one()) return quantized_linear_in_stretches(call, team);
    multiply_all(call, nullptr, team);
}

void quantized_gated(const QuantizedGatedCall& call, const Team& team) {
    bool tiles = is_faster(call.linear.weight, call.linear.rows.num_rows);
    if (!tiles) return QUIRE_ISA::quantized_gated(call, team);
    if (gates_are_panels(call.linear.weight.num_outputs)) return multiply_all(call.linear, &call.gate, team);
    QUIRE_TILES::quantized_linear(call.linear, team);
    team.wait();
    QUIRE_ISA::gated(call.gate, team);
}

void quantized_most_likely(const QuantizedMostLikelyCall& call, const Team& team) {
    find_largest(call.most_likely, call.linear.rows, team, [&](const LinearRows& rows) { QUIRE_TILES::quantized_linear({call.linear.weight, rows}, team); });
}

}  // namespace quire::QUIRE_TILES
