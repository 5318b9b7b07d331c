// Linear layers of bfloat16 by tiles: a panel's 16 units are a tile of weights as they lie. Each output of each row is one sum
// over the inputs in their order, whatever the other rows are.
#include <cstring>

#include "dense.h"
#include "kernels.h"
#include "linear_rows.h"
#include "tiles.h"

namespace quire::QUIRE_TILES {
namespace {

using namespace quire::QUIRE_ISA;

constexpr int64_t BLOCK = 256;  // rows that stay in a core's second cache while the panels pass
constexpr int UNITS_OF_TILE = TILE_BYTES / UNIT;
constexpr int64_t TILE_OF_WEIGHTS = UNITS_OF_TILE * UNIT * PANEL;  // bytes
constexpr int64_t AHEAD = 4 * TILE_OF_WEIGHTS;  // memory is asked for so much before it is needed

struct Shape {
    int64_t num_units, num_tiles, row_bytes;  // of a row of x in scratch, which is filled up to whole tiles with zeros
    int64_t num_rows, panel_bytes;
};

int64_t whole(int64_t count, int64_t size) { return (count + size - 1) / size; }

void copy_rows(const DenseCall& call, const Shape& shape, uint8_t* to, const Team& team) {
    int64_t bytes = call.weight.num_inputs * 2;
    share(team, whole(shape.num_rows, TILE_ROWS) * TILE_ROWS, [&](int64_t row) {
        uint8_t* place = to + row * shape.row_bytes;
        int64_t filled = row < shape.num_rows ? bytes : 0;
        if (filled) std::memcpy(place, static_cast<const uint8_t*>(call.rows.x) + row * call.rows.x_stride * 2, filled);
        std::memset(place + filled, 0, shape.row_bytes - filled);
    });
}

// The last tile of a panel, where that does not end with it: what follows must not be multiplied, be it by zero.
const uint8_t* weights_of(const Shape& shape, const uint8_t* panel, int64_t tile, uint8_t* copy) {
    int64_t left = shape.panel_bytes - tile * TILE_OF_WEIGHTS;
    if (left >= TILE_OF_WEIGHTS) return panel + tile * TILE_OF_WEIGHTS;
    std::memcpy(copy, panel + tile * TILE_OF_WEIGHTS, left);
    std::memset(copy + left, 0, TILE_OF_WEIGHTS - left);
    return copy;
}

template <int SUMS>
void store_sums(const DenseCall& call, int64_t row, int64_t panel) {
    alignas(64) float sums[TILE_ROWS][PANEL];
    store_tile<SUMS>(sums, sizeof sums[0]);
    int64_t count = call.rows.num_rows - row < TILE_ROWS ? call.rows.num_rows - row : TILE_ROWS;
    for (int64_t i = 0; i < count; ++i) {
        Floats y[1][PARTS];
        for (int p = 0; p < PARTS; ++p) y[0][p] = load(sums[i] + p * LANES);
        store_rows(call.rows, call.weight.num_outputs, row + i, panel * PANEL, y, 0);
    }
}

// Tiles: sums in 0 to 3, x in 4 and 5, weights in 6 and 7. Up to two of rows times up to two panels.
template <int ROW_TILES, int PANELS>
void multiply(const DenseCall& call, const Shape& shape, const uint8_t* x, int64_t row, int64_t panel) {
    const uint8_t* rows = x + row * shape.row_bytes;
    const uint8_t* panels = static_cast<const uint8_t*>(call.weight.panels) + panel * shape.panel_bytes;
    alignas(64) uint8_t copies[2][TILE_OF_WEIGHTS];
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
    for (int64_t tile = 0; tile < shape.num_tiles; ++tile) {
        load_tile<6>(weights_of(shape, panels, tile, copies[0]), UNIT * PANEL);
        if constexpr (PANELS == 2) load_tile<7>(weights_of(shape, panels + shape.panel_bytes, tile, copies[1]), UNIT * PANEL);
        if constexpr (ROW_TILES == 1)
            for (int line = 0; line < PANELS * TILE_OF_WEIGHTS; line += 64)
                __builtin_prefetch(panels + line / TILE_OF_WEIGHTS * shape.panel_bytes + tile * TILE_OF_WEIGHTS + line % TILE_OF_WEIGHTS + AHEAD);
        load_tile<4>(rows + tile * TILE_BYTES, shape.row_bytes);
        multiply_tiles<0, 4, 6>();
        if constexpr (PANELS == 2) multiply_tiles<1, 4, 7>();
        if constexpr (ROW_TILES == 2) {
            load_tile<5>(rows + TILE_ROWS * shape.row_bytes + tile * TILE_BYTES, shape.row_bytes);
            multiply_tiles<2, 5, 6>();
            if constexpr (PANELS == 2) multiply_tiles<3, 5, 7>();
        }
    }
    store_sums<0>(call, row, panel);
    if constexpr (PANELS == 2) store_sums<1>(call, row, panel + 1);
    if constexpr (ROW_TILES == 2) store_sums<2>(call, row + TILE_ROWS, panel);
    if constexpr (ROW_TILES == 2 && PANELS == 2) store_sums<3>(call, row + TILE_ROWS, panel + 1);
}

template <int PANELS>
void multiply_rows(const DenseCall& call, const Shape& shape, const uint8_t* x, int64_t first, int64_t last, int64_t panel) {
    int64_t row = first;
    for (; row + TILE_ROWS < last; row += 2 * TILE_ROWS) multiply<2, PANELS>(call, shape, x, row, panel);
    if (row < last) multiply<1, PANELS>(call, shape, x, row, panel);
}

}  // namespace

void dense_linear(const DenseCall& call, const Team& team) {
    if (!call.weight.bfloat16) return QUIRE_ISA::dense_linear(call, team);
    Shape shape;
    shape.num_units = (call.weight.num_inputs + 1) / 2;
    shape.num_tiles = whole(shape.num_units, UNITS_OF_TILE);
    shape.row_bytes = shape.num_tiles * TILE_BYTES;
    shape.num_rows = call.rows.num_rows;
    shape.panel_bytes = shape.num_units * UNIT * PANEL;
    uint8_t* x = static_cast<uint8_t*>(call.rows.scratch);
    copy_rows(call, shape, x, team);
    team.wait();
    int64_t num_panels = whole(call.weight.num_outputs, PANEL), num_pairs = whole(num_panels, 2);
    begin_tiles();
    hand_out_blocks(team, shape.num_rows, BLOCK, num_pairs, 2 * shape.panel_bytes, [&](int64_t first, int64_t count, int64_t pair) {
        int64_t panel = pair * 2, last = first + count;
        if (panel + 1 < num_panels) multiply_rows<2>(call, shape, x, first, last, panel);
        else multiply_rows<1>(call, shape, x, first, last, panel);
    });
    end_tiles();
}

}  // namespace quire::QUIRE_TILES
