// What tiles multiply where weights are bfloat16: a panel's 16 units are a tile of weights as they lie.
#pragma once

#include <cstring>

#include "dense.h"
#include "stretches.h"
#include "tiles.h"

namespace quire::QUIRE_TILES {

// Where there is more than one stretch (stretches.h).
void dense_linear_in_stretches(DenseCall call, const Team& team);

// Of each file its own: so the compiler makes the same code of a file's kernels whoever else includes this.
namespace {

using namespace quire::QUIRE_ISA;

constexpr int64_t BLOCK_BYTES = 1100 << 10;  // of rows that stay in a core's second cache while the panels pass
constexpr int64_t FEWEST_OWN_ROWS = 128;  // from which on a member passes all panels
constexpr int UNITS_OF_TILE = TILE_BYTES / UNIT;
constexpr int64_t TILE_OF_WEIGHTS = UNITS_OF_TILE * UNIT * PANEL;  // bytes

// Rows of x as tiles read them: 16 at a time and whole tiles wide.
struct Rows {
    const uint8_t* x;
    int64_t bytes;  // from one to the next
};

// What is not 16 whole rows of whole tiles is copied, and filled up with zeros.
struct Shape {
    int64_t num_tiles, num_rows, panel_bytes;
    int64_t neighbours, partner_bytes;  // of the two panels multiplied together: how many lie side by side, and how far apart they are
    Rows rows;
    int64_t first_copied;  // row
    Rows copied;

    Rows rows_from(int64_t row) const {
        const Rows& found = row < first_copied ? rows : copied;
        return {found.x + (row < first_copied ? row : row - first_copied) * found.bytes, found.bytes};
    }
};

int64_t whole(int64_t count, int64_t size) { return (count + size - 1) / size; }

// With `halves` a panel's partner is that of the second half of outputs.
Shape shape_of(const DenseCall& call, bool halves) {
    int64_t num_units = (call.weight.num_inputs + 1) / 2, num_tiles = whole(num_units, UNITS_OF_TILE), num_rows = call.rows.num_rows;
    int64_t panel_bytes = num_units * UNIT * PANEL;
    bool fits = call.weight.num_inputs * 2 == num_tiles * TILE_BYTES;
    return {num_tiles,
            num_rows,
            panel_bytes,
            halves ? 1 : 2,
            halves ? call.weight.num_outputs / 2 / PANEL * panel_bytes : panel_bytes,
            {static_cast<const uint8_t*>(call.rows.x), call.rows.x_stride * 2},
            fits ? num_rows / TILE_ROWS * TILE_ROWS : 0,
            {static_cast<const uint8_t*>(call.rows.scratch), num_tiles * TILE_BYTES}};
}

void copy_rows(const DenseCall& call, const Shape& shape, const Team& team) {
    int64_t bytes = call.weight.num_inputs * 2;
    uint8_t* to = static_cast<uint8_t*>(call.rows.scratch);
    share(team, whole(shape.num_rows, TILE_ROWS) * TILE_ROWS - shape.first_copied, [&](int64_t i) {
        int64_t row = shape.first_copied + i, filled = row < shape.num_rows ? bytes : 0;
        uint8_t* place = to + i * shape.copied.bytes;
        if (filled) std::memcpy(place, shape.rows.x + row * shape.rows.bytes, filled);
        std::memset(place + filled, 0, shape.copied.bytes - filled);
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

}  // namespace
}  // namespace quire::QUIRE_TILES
