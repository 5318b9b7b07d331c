// Linear layers of bfloat16 by tiles, a stretch of inputs at a time.
#include "dense_operands.h"
#include "kernels.h"
#include "stretch_tiles.h"

namespace quire::QUIRE_TILES {
namespace {

struct Operands {
    static constexpr int units = UNITS_OF_TILE;

    const LinearRows& rows;
    const DenseWeight& weight;
    Shape shape;
    int64_t num_row_tiles, num_panels, panel_bytes;
    const uint8_t* panels;

    Operands(const DenseCall& call, const Shape& found)
        : rows(call.rows), weight(call.weight), shape(found), num_row_tiles(whole(call.rows.num_rows, TILE_ROWS)),
          num_panels(whole(call.weight.num_outputs, PANEL)), panel_bytes(found.panel_bytes), panels(static_cast<const uint8_t*>(call.weight.panels)) {}

    int64_t rows_of(int64_t tile) const { return rows.num_rows - tile * TILE_ROWS < TILE_ROWS ? rows.num_rows - tile * TILE_ROWS : TILE_ROWS; }

    template <int TILE>
    void load_x(int64_t tile, int64_t t) const {
        Rows from = shape.rows_from(tile * TILE_ROWS);
        load_passing_tile<TILE>(from.x + t * TILE_BYTES, from.bytes);
    }
    template <int TILE>
    void load_weights(int64_t panel, int64_t t) const {
        alignas(64) uint8_t copy[TILE_OF_WEIGHTS];
        load_tile<TILE>(weights_of(shape, panels + panel * panel_bytes, t, copy), UNIT * PANEL);
    }
    template <int SUMS, int X, int WEIGHTS>
    void multiply() const {
        multiply_tiles<SUMS, X, WEIGHTS>();
    }
    // Apart, so that it takes no registers from products.
    template <int M>
    [[gnu::noinline]] void put(int64_t tile, int i, int64_t panel, const KeptSums& kept) const {
        Floats y[M][PARTS];
        kept.load<M, PARTS>(tile * TILE_ROWS + i, panel, y[0]);
        store_rows(rows, weight.num_outputs, tile * TILE_ROWS + i, M, panel * PANEL, y[0], PARTS);
    }
};

}  // namespace

void dense_linear_in_stretches(DenseCall call, const Team& team) {
    Stretches stretches(call.rows, whole(call.weight.num_inputs, 2), call.weight.num_inputs, call.weight.num_outputs);
    call.rows.scratch = stretches.scratch();
    Shape shape = shape_of(call, false);
    if (shape.first_copied < shape.num_rows) {
        copy_rows(call, shape, team);
        team.wait();
    }
    Operands operands(call, shape);
    begin_tiles();
    stretches.each(team, [&](const Stretch& stretch) { multiply_stretch(operands, stretch, team); });
    end_tiles();
}

}  // namespace quire::QUIRE_TILES
