// Linear layers by tiles whose weights are rotated, a stretch of inputs at a time.
#include "quantized_operands.h"
#include "stretch_tiles.h"

namespace quire::QUIRE_TILES {
namespace {

struct Operands {
    const Work& work;
    int units;
    int64_t num_row_tiles, num_panels, panel_bytes;
    const uint8_t* panels;

    explicit Operands(const Work& all)
        : work(all), units(all.shape.units), num_row_tiles(all.shape.num_row_tiles), num_panels(all.num_panels()), panel_bytes(all.call.weight.panel_bytes),
          panels(all.panel(0)) {}

    int64_t rows_of(int64_t tile) const { return work.rows_of(tile); }

    template <int TILE>
    void load_x(int64_t tile, int64_t t) const {
        load_passing_tile<TILE>(reinterpret_cast<const uint8_t*>(work.x.codes(tile * work.shape.rows)) + t * work.shape.x_step, work.shape.x_stride);
    }
    template <int TILE>
    void load_weights(int64_t panel, int64_t t) const {
        load_tile<TILE>(panels + panel * panel_bytes + t * units * UNIT_BYTES, UNIT_BYTES);
    }
    template <int SUMS, int X, int WEIGHTS>
    void multiply() const {
        multiply_tiles_of_bytes<SUMS, X, WEIGHTS>();
    }
    // Apart, so that it takes no registers from products.
    template <int M>
    [[gnu::noinline]] void put(int64_t tile, int i, int64_t panel, const KeptSums& kept) const {
        const QuantizedWeight& weight = work.call.weight;
        const auto* group = work.groups(tile);
        Ints sums[M][PARTS];
        Floats y[M][PARTS];
        kept.load<M, PARTS>(tile * TILE_ROWS + i, panel, sums[0]);
        for (int part = 0; part < PARTS; ++part) {
            Floats scale = load_half(panels + panel * panel_bytes + weight.header_offset + 2 * part * LANES);
            for (int m = 0; m < M; ++m)
                y[m][part] = multiply_add(__builtin_convertvector(sums[m][part] + group->minus_zero[i + m], Floats), scale * group->scales[i + m], Floats{});
        }
        store_rows(work.call.rows, weight.num_outputs, tile * work.shape.rows + i, M, panel * PANEL, y[0], PARTS);
    }
};

}  // namespace

void quantized_linear_in_stretches(QuantizedCall call, const Team& team) {
    Stretches stretches = stretches_of(call);
    call.rows.scratch = stretches.scratch();
    Work work = work_of(call, nullptr);
    Operands operands(work);
    begin(work, team);
    stretches.each(team, [&](const Stretch& stretch) { multiply_stretch(operands, stretch, team); });
    end_tiles();
}

}  // namespace quire::QUIRE_TILES
