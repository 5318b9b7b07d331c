// Rows of many inputs by tiles, a stretch of these at a time (stretches.h): whatever lies in the tiles. Results are few beside what is
// multiplied, so they are put when a block's sums are whole, and not while the next one is multiplied.
#pragma once

#include "stretches.h"
#include "tiles.h"

namespace quire::QUIRE_TILES {

using namespace quire::QUIRE_ISA;

constexpr int64_t STRETCH_BLOCK_BYTES = 820 << 10;  // of rows that stay in a core's second cache while the panels pass
constexpr int64_t FEWEST_OWN_STRETCH_TILES = 4;  // of rows, from which on a member passes all panels
constexpr int ROWS_PUT = 4;  // at one time

// Sums in tiles 0 to 3, x in 4 and 5, weights in 6 and 7. Up to two tiles of rows times up to two neighbouring panels. `Operands` loads
// x and weights of `units` units, multiplies them, and puts what whole sums are.
template <int ROW_TILES, int PANELS, typename Operands>
void multiply_block(const Operands& operands, const Stretch& stretch, int64_t tile, int64_t panel, const NextPanels& ahead) {
    int64_t first = stretch.first / operands.units, last = (stretch.first + stretch.count + operands.units - 1) / operands.units;
    // function(TILE, its rows, its panel) for all sums.
    auto each = [&](auto&& function) {
        function(std::integral_constant<int, 0>(), tile, panel);
        if constexpr (PANELS == 2) function(std::integral_constant<int, 1>(), tile, panel + 1);
        if constexpr (ROW_TILES == 2) function(std::integral_constant<int, 2>(), tile + 1, panel);
        if constexpr (ROW_TILES == 2 && PANELS == 2) function(std::integral_constant<int, 3>(), tile + 1, panel + 1);
    };
    if (stretch.begins) zero_sums();
    else each([&](auto sums, int64_t t, int64_t p) { load_tile<sums>(stretch.kept.at(t * TILE_ROWS, p), KeptSums::ROW); });
    for (int64_t t = first; t < last; ++t) {
        operands.template load_x<4>(tile, t);
        operands.template load_weights<6>(panel, t);
        operands.template multiply<0, 4, 6>();
        if constexpr (PANELS == 2) {
            operands.template load_weights<7>(panel + 1, t);
            operands.template multiply<1, 4, 7>();
        }
        if constexpr (ROW_TILES == 2) {
            operands.template load_x<5>(tile + 1, t);
            operands.template multiply<2, 5, 6>();
        }
        if constexpr (ROW_TILES == 2 && PANELS == 2) operands.template multiply<3, 5, 7>();
        for (int p = 0; p < PANELS; ++p)
            for (int64_t line = 0; line < ahead.step; line += 64) prefetch(ahead.from + p * operands.panel_bytes + (t - first) * ahead.step + line);
    }
    each([&](auto sums, int64_t t, int64_t p) { store_tile<sums>(stretch.kept.at(t * TILE_ROWS, p), KeptSums::ROW); });
    if (!stretch.ends) return;
    each([&](auto, int64_t t, int64_t p) {
        in_groups<ROWS_PUT>(0, operands.rows_of(t), [&](int64_t i, auto M) { operands.template put<M>(t, static_cast<int>(i), p, stretch.kept); });
    });
}

// Each pair of panels for each block of rows.
template <typename Operands>
void multiply_stretch(const Operands& operands, const Stretch& stretch, const Team& team) {
    int64_t num_bytes = stretch.count * UNIT * PANEL, num_tiles = (stretch.count + operands.units - 1) / operands.units;
    int64_t block = largest<int64_t>(1, STRETCH_BLOCK_BYTES / (stretch.count * UNIT * 2 * TILE_ROWS)) * 2;
    block = rows_of_block(operands.num_row_tiles, 2, FEWEST_OWN_STRETCH_TILES, block, team);
    hand_out_blocks(team, operands.num_row_tiles, block, (operands.num_panels + 1) / 2, 2 * num_bytes * TILE_ROWS,
                    [&](int64_t first, int64_t count, int64_t pair) {
        int64_t panel = 2 * pair, last = first + count;
        NextPanels ahead = next_panels(operands.panels + panel * operands.panel_bytes + stretch.first * UNIT * PANEL, 2, operands.panel_bytes, num_bytes, num_tiles, (count + 1) / 2);
        for (int64_t tile = first; tile < last; tile += 2, ahead.from += num_tiles * ahead.step) {
            bool two = panel + 1 < operands.num_panels;
            if (two && tile + 1 < last) multiply_block<2, 2>(operands, stretch, tile, panel, ahead);
            else if (two) multiply_block<1, 2>(operands, stretch, tile, panel, ahead);
            else if (tile + 1 < last) multiply_block<2, 1>(operands, stretch, tile, panel, ahead);
            else multiply_block<1, 1>(operands, stretch, tile, panel, ahead);
        }
    });
}

}  // namespace quire::QUIRE_TILES
