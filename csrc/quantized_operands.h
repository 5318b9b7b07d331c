// What tiles multiply where weights have few bits: a pair of panels as bytes with their scales, and tiles of rows as integers with
// their outliers.
#pragma once

#include <optional>
#include <vector>

#include "integer_rows.h"
#include "kernels.h"
#include "stretches.h"
#include "tiles.h"
#include "weight_codes.h"

namespace quire::QUIRE_TILES {

using namespace quire::QUIRE_ISA;

// Of rows that stay in a core's second cache while the panels pass.
constexpr int64_t BLOCK_BYTES = 820 << 10;

constexpr int64_t FEWEST_OWN_TILES = 4;  // of rows, from which on a member passes all panels

constexpr int CHUNK = 4;  // rows whose results are computed at one time

typedef int32_t Sums[TILE_ROWS][PANEL];

constexpr int PIECE_UNITS = 8;     // the inputs of which one may be an outlier
constexpr int UNIT_BYTES = UNIT * PANEL;  // of a panel's codes

struct Shape {
    int rows;   // of a tile of x: as few as are enough for all, and the same in each
    int units;  // of a tile of weights: it ends with the group
    int64_t num_row_tiles, num_groups, tiles_of_group, pieces_of_group;
    int64_t x_stride, x_step;  // bytes from a row of a tile of x to the next, and from a tile to that of the next inputs
};

// What a panel is multiplied by and then scaled with.
struct Panel {
    const uint8_t* codes;
    const float *scales, *minima;  // [groups, PANEL]; minima or null
};

// One member's memory for `count` panels: codes of 8 bits where they have 4, scales and minima.
class PanelMemory {
public:
    PanelMemory(const QuantizedWeight& weight, int count)
        : weight_(weight), code_lines_(weight.bits == 4 ? num_lines(weight.num_inputs * PANEL / 4) : 0),
          group_lines_(weight.num_inputs / weight.group_size), lines_(count * (code_lines_ + 2 * group_lines_)) {}

    Panel load(int64_t index, int place) {
        const uint8_t* panel = weight_.panels + index * weight_.panel_bytes;
        Line* to = lines_.data() + place * (code_lines_ + 2 * group_lines_);
        float *scales = to[code_lines_].lanes, *minima = weight_.has_minimum ? to[code_lines_ + group_lines_].lanes : nullptr;
        load_scales(panel + weight_.header_offset, scales, minima);
        if (weight_.bits == 8) return {panel, scales, minima};
        uint8_t* codes = reinterpret_cast<uint8_t*>(to);
        for (int64_t pair = 0; pair < weight_.num_inputs / (2 * UNIT); ++pair, codes += 2 * UNIT_BYTES)
            for (int part = 0; part < PARTS; ++part) {
                Bytes first, second;
                load_pair<4>(panel + pair * UNIT_BYTES, 0, part, first, second);
                std::memcpy(codes + part * sizeof first, &first, sizeof first);
                std::memcpy(codes + UNIT_BYTES + part * sizeof second, &second, sizeof second);
            }
        return {reinterpret_cast<uint8_t*>(to), scales, minima};
    }

private:
    void load_scales(const uint8_t* header, float* scales, float* minima) const {
        int num_small = weight_.groups_per_block > 1 ? weight_.groups_per_block : 0;
        for (int64_t block = 0; block < group_lines_ / weight_.groups_per_block; ++block) {
            Floats d[PARTS], m[PARTS];
            for (int p = 0; p < PARTS; ++p) d[p] = load_half(header + 2 * p * LANES);
            header += 2 * PANEL;
            if (minima) {
                for (int p = 0; p < PARTS; ++p) m[p] = load_half(header + 2 * p * LANES);
                header += 2 * PANEL;
            }
            for (int i = 0; i < weight_.groups_per_block; ++i)
                for (int p = 0; p < PARTS; ++p) {
                    const uint8_t* small = header + i * (minima ? 2 : 1) * PANEL + p * LANES;
                    int64_t at = (block * weight_.groups_per_block + i) * PANEL + p * LANES;
                    store(scales + at, num_small ? d[p] * load_small(small) : d[p]);
                    if (minima) store(minima + at, num_small ? m[p] * load_small(small + PANEL) : m[p]);
                }
            header += num_small * (minima ? 2 : 1) * PANEL;
        }
    }

    const QuantizedWeight& weight_;
    int64_t code_lines_, group_lines_;
    std::vector<Line> lines_;
};

// Codes row by row. Groups and outliers of TILE_ROWS rows side by side for each tile of rows, which need not be full.
template <typename T>
void quantize_tiles(const LinearRows& rows, int zero, const Shape& shape, const IntegerRows& x, const Team& team) {
    int num_pieces = static_cast<int>(x.num_pieces);
    int64_t group_size = x.num_inputs / x.num_groups;
    Runs runs(x, team);
    share(team, x.num_rows * runs.count, [&](int64_t item) {
        int64_t first = item % runs.count * runs.groups, tile = item / runs.count / TILE_ROWS;
        int num_groups = runs.groups_of(x, item % runs.count), i = static_cast<int>(item / runs.count % TILE_ROWS);
        int64_t row = tile * shape.rows + i;
        bool is_row = i < shape.rows && row < rows.num_rows;
        const T* from = static_cast<const T*>(rows.x) + row * rows.x_stride + first * group_size;
        int32_t tops[MAX_PIECES], others[MAX_PIECES];
        if (is_row) two_largest_of_pieces<PIECE_UNITS>(from, num_groups * num_pieces, tops, others);
        GroupOfRow to{x.codes(tile * shape.rows) + (i * x.num_inputs + first * group_size) / UNIT,
                      x.groups(tile * TILE_ROWS) + first * IntegerRows::WORDS_OF_GROUP * TILE_ROWS,
                      x.outliers(tile * TILE_ROWS) + first * num_pieces * IntegerRows::WORDS_OF_PIECE * TILE_ROWS, TILE_ROWS, i, GroupOfRow::RUN};
        for (int g = 0; g < num_groups; ++g) {
            if (is_row) {
                quantize<T, PIECE_UNITS, true>(from + g * group_size, tops + g * num_pieces, others + g * num_pieces, num_pieces, zero, to);
            } else {
                to.put_scale(0.0f, 0.0f, 0);
                to.put_outlier(0, 0, 0);
            }
            to.advance(group_size / UNIT, num_pieces);
        }
    });
}

// Of rotated rows: tile by tile where these are whole, for their lines are then neighbours. Each member makes its own rows, as kernels
// do that go row by row. The next row is rotated before one becomes integers: what this waits for, sums across lanes, is then there.
template <typename T>
void quantize_rotated_tiles(const LinearRows& rows, const RowRotation& rotation, int zero, const Shape& shape, const IntegerRows& x, Ahead panels,
                            const Team& team) {
    int64_t lines_of_row = static_cast<int64_t>(num_lines(x.num_inputs)), step = shape.x_stride == TILE_BYTES ? shape.x_step / UNIT : GroupOfRow::RUN;
    std::vector<Line> rotated(2 * lines_of_row);
    Rotated found[2];
    auto memory = [&](int64_t row) { return rotated[row % 2 * lines_of_row].lanes; };
    auto put_row = [&](int64_t row) {
        int64_t tile = row / shape.rows;
        int i = static_cast<int>(row % shape.rows);
        GroupOfRow to{x.codes(tile * shape.rows) + i * shape.x_stride / UNIT, x.groups(tile * TILE_ROWS), nullptr, TILE_ROWS, i, step};
        put_rotated<true>(memory(row), found[row % 2], x.num_inputs, zero, to);
        if (i + 1 < shape.rows && row + 1 < rows.num_rows) return;
        while (++to.i < TILE_ROWS) to.put_scale(0.0f, 0.0f, 0);  // of nobody
    };
    std::optional<int64_t> previous;
    share(team, rows.num_rows, [&](int64_t row) {
        found[row % 2] = rotate_row<T>(rows, row, x.num_inputs, rotation, memory(row));
        if (previous) put_row(*previous);
        previous = row;
        panels.ask(ASKED_PER_INPUT * x.num_inputs);
    });
    if (previous) put_row(*previous);
}

// Rows of a tile that have an outlier in a group, as bits.
inline unsigned rows_with_outliers(const Outliers<TILE_ROWS>* outliers) {
#if defined(__AVX512F__)
    __m512i codes = _mm512_loadu_si512(outliers->codes);
    return _mm512_test_epi32_mask(codes, codes);
#else
    unsigned found = 0;
    // Not (codes ? 1 : 0) << i: GCC 12 makes that 0 under its sanitizers of shifts and bounds.
    for (int i = 0; i < TILE_ROWS; ++i) found |= outliers->codes[i] ? 1u << i : 0u;
    return found;
#endif
}

// Adds to the sums of row `i`, of PANEL outputs, what its outliers in a group add: it has at least one.
inline void add_outliers(int32_t* sums, const uint8_t* codes, const Outliers<TILE_ROWS>* outliers, int64_t num_pieces, int i) {
    for (int part = 0; part < PARTS; ++part, sums += LANES) {
        Ints whole = load_units(sums);
        int64_t n = 0;
        do {
            Bytes unit = load_bytes(codes + outliers[n].units[i] * UNIT_BYTES + part * UNIT * LANES);
            whole += add_unsigned_products(Ints{}, unit, outliers[n].codes[i]) * OUTLIER;
        } while (++n < num_pieces && outliers[n].codes[i]);  // behind the last one lies what was there before
        std::memcpy(sums, &whole, sizeof whole);
    }
}

// Panels are multiplied two at a time: neighbours, or with a `gate` one of each half of the outputs.
struct Work {
    const QuantizedCall& call;
    const GateCall* gate;
    Shape shape;
    IntegerRows x;

    int64_t num_panels() const { return (call.weight.num_outputs + PANEL - 1) / PANEL; }
    int64_t num_pairs() const { return (num_panels() + 1) / 2; }
    int64_t first_of(int64_t pair) const { return gate ? pair : 2 * pair; }
    int64_t from_first_to_second() const { return gate ? num_panels() / 2 : 1; }
    bool has_second(int64_t pair) const { return gate || 2 * pair + 1 < num_panels(); }
    const uint8_t* panel(int64_t index) const { return call.weight.panels + index * call.weight.panel_bytes; }
    // What is asked for while a pair is multiplied.
    NextPanels next_pair(int64_t pair, int64_t num_parts, int64_t num_passes) const {
        return next_panels(panel(first_of(pair)), gate ? 1 : 2, call.weight.panel_bytes, num_parts, num_passes);
    }

    const Group<TILE_ROWS>* groups(int64_t tile) const { return reinterpret_cast<const Group<TILE_ROWS>*>(x.groups(tile * TILE_ROWS)); }
    Outliers<TILE_ROWS>* outliers(int64_t tile) const { return reinterpret_cast<Outliers<TILE_ROWS>*>(x.outliers(tile * TILE_ROWS)); }
    int rows_of(int64_t tile) const {
        int64_t left = call.rows.num_rows - tile * shape.rows;
        return static_cast<int>(left < shape.rows ? left : shape.rows);
    }
};

// Those of one group are multiplied in stretches.
inline Stretches stretches_of(const QuantizedCall& call) {
    int64_t num_units = call.weight.num_inputs / UNIT;
    return call.weight.rotated ? Stretches(call.rows, num_units, call.weight.num_inputs, call.weight.num_outputs) : Stretches(call.rows, num_units);
}

// Where there is more than one.
void quantized_linear_in_stretches(QuantizedCall call, const Team& team);

// Of each file its own, and a part of what calls it: so the compiler makes the same code of a file's kernels whoever else includes this.
namespace {

template <typename T>
void to_integers(const QuantizedCall& call, const Shape& shape, const IntegerRows& x, Range panels, const Team& team) {
    const QuantizedWeight& weight = call.weight;
    if (weight.rotated) quantize_rotated_tiles<T>(call.rows, RowRotation(weight), weight.zero, shape, x, Ahead(team, panels, MOST_FIRST_PANELS), team);
    else quantize_tiles<T>(call.rows, weight.zero, shape, x, team);
}

[[gnu::always_inline]] inline Work work_of(const QuantizedCall& call, const GateCall* gate) {
    const QuantizedWeight& weight = call.weight;
    Shape shape;
    shape.num_row_tiles = (call.rows.num_rows + TILE_ROWS - 1) / TILE_ROWS;
    shape.rows = static_cast<int>((call.rows.num_rows + shape.num_row_tiles - 1) / shape.num_row_tiles);
    shape.units = weight.group_size % TILE_BYTES ? PIECE_UNITS : TILE_BYTES / UNIT;
    shape.num_groups = weight.num_inputs / weight.group_size;
    shape.tiles_of_group = weight.group_size / (shape.units * UNIT);
    shape.pieces_of_group = weight.group_size / (PIECE_UNITS * UNIT);
    bool tile_by_tile = weight.rotated && shape.units * UNIT == TILE_BYTES;
    shape.x_stride = tile_by_tile ? TILE_BYTES : weight.num_inputs;
    shape.x_step = shape.units * UNIT * (tile_by_tile ? shape.rows : 1);
    IntegerRows x{weight.num_inputs, shape.num_groups, shape.pieces_of_group, shape.num_row_tiles * TILE_ROWS,
                  static_cast<uint8_t*>(call.rows.scratch)};
    return {call, gate, shape, x};
}

// Rows become integers, and tiles are as large as they are.
[[gnu::always_inline]] inline void begin(const Work& work, const Team& team) {
    const QuantizedCall& call = work.call;
    const Shape& shape = work.shape;
    Range panels{call.weight.panels, work.num_panels() * call.weight.panel_bytes, work.gate ? 2 : 1};
    if (call.rows.x_bfloat16) to_integers<BFloat16>(call, shape, work.x, panels, team);
    else to_integers<float>(call, shape, work.x, panels, team);
    TileShape of_sums{shape.rows, TILE_BYTES}, of_x{shape.rows, shape.units * UNIT}, of_weights{shape.units, TILE_BYTES};
    begin_tiles({of_sums, of_sums, of_sums, of_sums, of_x, of_x, of_weights, of_weights});
    keep_awake<0, 4, 6>();
    team.wait(panels);
}

}  // namespace

}  // namespace quire::QUIRE_TILES
