// Rows become integers (integer_rows.h). Sums within a group are exact; the groups' are added in float32 in their order. So a
// row's results have the same bits whatever the other rows are.
#include "quantized.h"

#include "code_products.h"
#include "gates.h"
#include "integer_rows.h"
#include "kernels.h"
#include "stretches.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int ROWS = LANES == 16 ? 8 : LANES * NUM_REGISTERS >= 128 ? 4 : 1;  // whose sums are in registers at one time

// Of rows that stay in a core's second cache while the panels pass.
constexpr int64_t BLOCK_BYTES = 256 << 10;

// Panels that are multiplied at one time: of one row two, for two streams of memory and two chains of sums are faster than one.
constexpr int PANELS = 2;
// Of so many rows as many as sums leave room for: where there are groups, their totals are kept beside them. Fewer wait for memory.
constexpr int MANY_ROWS = 2 * ROWS + 1;
constexpr int MOST_RESULTS = (ROWS * PANELS_OF_SUMS > PANELS ? ROWS * PANELS_OF_SUMS : PANELS) * PARTS;  // registers

template <int BITS, int M, int N>
[[gnu::always_inline]] inline void add_outliers(const uint8_t* panel, int64_t panel_bytes, const Outliers<M>& outliers,
                                                Ints (&sums)[M * N * PARTS]) {
    constexpr int ALL = N * PARTS;
#pragma GCC unroll MAX_SUMS
    for (int i = 0; i < M; ++i) {
        if (!outliers.codes[i]) continue;
#pragma GCC unroll MAX_SUMS
        for (int p = 0; p < ALL; ++p)
            sums[i * ALL + p] += products_of_unit<BITS>(panel + p / PARTS * panel_bytes, outliers.units[i], p % PARTS, outliers.codes[i]) * OUTLIER;
    }
}

// Rows from `row` on times the weights of panels from `index` on: a row's registers follow each other in `y`.
using Multiply = void (*)(const QuantizedWeight& weight, const IntegerRows& rows, int64_t row, int64_t index, const Stretch& stretch,
                          const NextPanels& ahead, Floats* y);

// M rows times N panels. Sums are arrays with one index, their loops unrolled early, and the loops around those run
// at least once: else GCC keeps them in memory. A function of its own: see dense.cpp.
template <int BITS, int UNITS, bool MINIMUM, bool BLOCKS, bool ROTATED, int M, int N>
void multiply(const QuantizedWeight& weight, const IntegerRows& rows, int64_t row, int64_t index, const Stretch& stretch, const NextPanels& ahead,
              Floats* y) {
    constexpr int ALL = N * PARTS, SUMS = M * ALL;
    constexpr int PIECE_BYTES = UNITS * UNIT * PANEL * BITS / 8;  // of codes, in a panel
    auto panel_of = [&](int p) { return p / PARTS * weight.panel_bytes; };
    const int32_t* x = rows.codes(row) + stretch.first * M;
    const auto* group = reinterpret_cast<const Group<M>*>(rows.groups(row));
    const auto* outliers = reinterpret_cast<const Outliers<M>*>(rows.outliers(row));
    const uint8_t *panel = weight.panels + index * weight.panel_bytes, *header = panel + weight.header_offset, *next = ahead.from;
    int64_t num_pieces = ROTATED ? stretch.count / UNITS : rows.num_pieces;
    panel += stretch.first / UNITS * PIECE_BYTES;
    Floats totals[SUMS];  // of its own, not y: so it stays in registers
#pragma GCC unroll MAX_SUMS
    for (int s = 0; s < SUMS; ++s) totals[s] = Floats{};
    int64_t block = 0;
    do {
        Floats d[ALL], m[ALL];
#pragma GCC unroll MAX_SUMS
        for (int p = 0; p < ALL; ++p) d[p] = load_half(header + panel_of(p) + 2 * (p % PARTS) * LANES);
        header += 2 * PANEL;
        if constexpr (MINIMUM) {
#pragma GCC unroll MAX_SUMS
            for (int p = 0; p < ALL; ++p) m[p] = load_half(header + panel_of(p) + 2 * (p % PARTS) * LANES);
            header += 2 * PANEL;
        }
        int in_block = 0;
        do {
            Ints sums[SUMS];
#pragma GCC unroll MAX_SUMS
            for (int s = 0; s < SUMS; ++s) sums[s] = Ints{} + group->minus_zero[s / ALL];
            if (ROTATED && !stretch.begins) stretch.kept.load<M, ALL>(row, index, sums);
            int64_t piece = 0;
            do {
                for (int n = 0; n < N; ++n)
                    for (int64_t line = 0; line < ahead.step; line += 64) prefetch(next + n * weight.panel_bytes + line);
                next += ahead.step;
                PanelProducts<BITS, UNITS, M, N>::add(panel, weight.panel_bytes, x, sums);
                if constexpr (!ROTATED) add_outliers<BITS, M, N>(panel, weight.panel_bytes, *outliers++, sums);
                x += UNITS * M;
                panel += PIECE_BYTES;
            } while (++piece < num_pieces);
            if (ROTATED && !stretch.ends) return stretch.kept.store<M, ALL>(row, index, sums);
#pragma GCC unroll MAX_SUMS
            for (int p = 0; p < ALL; ++p) {
                const uint8_t* small = header + panel_of(p) + p % PARTS * LANES;
                Floats scale = BLOCKS ? d[p] * load_small(small) : d[p];
                Floats minimum = !MINIMUM ? Floats{} : BLOCKS ? m[p] * load_small(small + PANEL) : m[p];
#pragma GCC unroll MAX_SUMS
                for (int i = 0; i < M; ++i) {
                    Floats& total = totals[i * ALL + p];
                    total = multiply_add(__builtin_convertvector(sums[i * ALL + p], Floats), scale * group->scales[i], total);
                    if constexpr (MINIMUM) total = multiply_add(minimum, fill(group->sums[i]), total);
                }
            }
            if constexpr (BLOCKS) header += MINIMUM ? 2 * PANEL : PANEL;
            ++group;
        } while (BLOCKS && ++in_block < weight.groups_per_block);
        block += weight.groups_per_block;
    } while (!ROTATED && block < rows.num_groups);
#pragma GCC unroll MAX_SUMS
    for (int s = 0; s < SUMS; ++s) y[s] = totals[s];
}

// What weights differ in: all else is compiled once for all of them.
struct Kind {
    int units;   // of a piece
    int raised;  // what is taken from codes before they are multiplied
    bool rotated;
    Multiply one_row;                              // times PANELS
    Multiply by_rows[ROWS], by_rows_of_many[ROWS];  // 1 row, 2, 3, ... times one panel, and times as many as sums leave room for

    Multiply multiply(int num_rows, int num_panels) const {
        if (num_rows == 1 && num_panels == PANELS) return one_row;
        return (num_panels == 1 ? by_rows : by_rows_of_many)[num_rows - 1];
    }
};

template <int BITS, int UNITS, bool MINIMUM, bool BLOCKS, bool ROTATED, std::size_t... I>
constexpr Kind kind_of(std::index_sequence<I...>) {
    constexpr int AT_ONCE = ROTATED ? PANELS_OF_SUMS : 1;
    return {UNITS, RAISED<BITS>, ROTATED, multiply<BITS, UNITS, MINIMUM, BLOCKS, ROTATED, 1, PANELS>,
            {multiply<BITS, UNITS, MINIMUM, BLOCKS, ROTATED, I + 1, 1>...}, {multiply<BITS, UNITS, MINIMUM, BLOCKS, ROTATED, I + 1, AT_ONCE>...}};
}

template <int BITS, int UNITS, bool MINIMUM, bool BLOCKS, bool ROTATED = false>
constexpr Kind KIND = kind_of<BITS, UNITS, MINIMUM, BLOCKS, ROTATED>(std::make_index_sequence<ROWS>());

// Of one group or more, of whole pieces.
template <int BITS>
const Kind& kind_of(const QuantizedWeight& weight) {
    if (weight.groups_per_block > 1) return KIND<BITS, 8, true, true>;
    return weight.has_minimum ? KIND<BITS, 8, true, false> : KIND<BITS, 8, false, false>;
}

const Kind& kind_of(const QuantizedWeight& weight) {
    if (weight.rotated) return KIND<8, 8, false, false, true>;
    if (weight.group_size == 16) return KIND<8, 4, false, true>;
    return weight.bits == 4 ? kind_of<4>(weight) : kind_of<8>(weight);
}

template <typename T>
void to_integers(const QuantizedCall& call, const Kind& kind, const IntegerRows& x, Range panels, const Team& team) {
    int zero = call.weight.zero - kind.raised;
    if (kind.rotated) quantize_rotated_rows<T, ROWS>(call.rows, RowRotation(call.weight), zero, x, Ahead(team, panels, MOST_FIRST_PANELS), team);
    else if (kind.units == 4) quantize_rows<T, 4, ROWS>(call.rows, zero, x, team);
    else quantize_rows<T, 8, ROWS>(call.rows, zero, x, team);
}

void multiply_stretch(const QuantizedCall& call, const Kind& kind, const GatedRows& gated, const IntegerRows& x, const Stretch& stretch,
                      const Team& team) {
    const QuantizedWeight& weight = call.weight;
    int64_t num_panels = gated.num_panels, num_parts = stretch.count / kind.units;
    int64_t halves = gated.gate ? 2 : 1, first_byte = stretch.first * UNIT * PANEL * weight.bits / 8;
    int64_t num_bytes = stretch.ends ? weight.panel_bytes - first_byte : stretch.count * UNIT * PANEL * weight.bits / 8;
    int64_t row_bytes = x.row_bytes() * stretch.count * UNIT / weight.num_inputs;
    int64_t block = largest<int64_t>(1, BLOCK_BYTES / (row_bytes * ROWS)) * ROWS;
    auto rows_of_panels = [&](int64_t first, int64_t count, int64_t index, int panels) {
        const uint8_t* panel = weight.panels + index * weight.panel_bytes + first_byte;
        NextPanels ahead = next_panels(panel, panels, weight.panel_bytes, num_bytes, num_parts, (count + ROWS - 1) / ROWS);
        for (int64_t row = first; row < first + count; row += ROWS) {
            int num_rows = static_cast<int>(smallest<int64_t>(first + count - row, ROWS));
            Multiply multiply = kind.multiply(num_rows, panels);
            Floats y[MOST_RESULTS], ups[MOST_RESULTS];
            if (stretch.ends) prefetch_results(gated.results, row, num_rows, index, panels);
            multiply(weight, x, row, index, stretch, ahead, y);
            if (gated.gate) multiply(weight, x, row, index + num_panels, stretch, {ahead.from + num_panels * weight.panel_bytes, ahead.step}, ups);
            ahead.from += num_parts * ahead.step;
            if (!stretch.ends) continue;
            if (gated.gate) let_through(*gated.gate, y, ups, num_rows * panels * PARTS);
            for (int n = 0; n < panels; ++n)
                store_rows(gated.results, gated.num_outputs, row, num_rows, (index + n) * PANEL, y + n * PARTS, panels * PARTS);
        }
    };
    if (x.num_rows == 1 && !call.rows.panels) {
        hand_out_blocks(team, 1, 1, (num_panels + PANELS - 1) / PANELS, halves * PANELS * weight.panel_bytes, [&](int64_t, int64_t, int64_t group) {
            rows_of_panels(0, 1, group * PANELS, static_cast<int>(smallest<int64_t>(num_panels - group * PANELS, PANELS)));
        });
        return;
    }
    constexpr int AT_ONCE = PANELS_OF_SUMS;
    if (AT_ONCE > 1 && kind.rotated && x.num_rows >= MANY_ROWS && !call.rows.panels) {
        hand_out_blocks(team, x.num_rows, block, (num_panels + AT_ONCE - 1) / AT_ONCE, halves * AT_ONCE * num_bytes, [&](int64_t first, int64_t count, int64_t group) {
            int64_t panel = group * AT_ONCE, end = smallest<int64_t>(panel + AT_ONCE, num_panels);
            if (end - panel == AT_ONCE) return rows_of_panels(first, count, panel, AT_ONCE);
            for (; panel < end; ++panel) rows_of_panels(first, count, panel, 1);
        });
        return;
    }
    hand_out_blocks(team, x.num_rows, block, num_panels, halves * num_bytes, [&](int64_t first, int64_t count, int64_t panel) {
        rows_of_panels(first, count, call.rows.panel(panel), 1);
    });
}

void linear(const QuantizedCall& call, const GateCall* gate, const Team& team) {
    const QuantizedWeight& weight = call.weight;
    const Kind& kind = kind_of(weight);
    int64_t num_groups = weight.num_inputs / weight.group_size, num_pieces = weight.group_size / (kind.units * UNIT);
    int64_t num_units = weight.num_inputs / UNIT;
    Stretches stretches = kind.rotated ? Stretches(call.rows, num_units, weight.num_inputs, weight.num_outputs) : Stretches(call.rows, num_units);
    IntegerRows x{weight.num_inputs, num_groups, num_pieces, call.rows.num_rows, stretches.scratch()};
    GatedRows gated(call.rows, weight.num_outputs, gate);
    int64_t num_panels = call.rows.num_panels(weight.num_outputs);
    Range panels{weight.panels, call.rows.panels ? 0 : num_panels * weight.panel_bytes, gate ? 2 : 1};
    if (call.rows.x_bfloat16) to_integers<BFloat16>(call, kind, x, panels, team);
    else to_integers<float>(call, kind, x, panels, team);
    team.wait(panels);
    stretches.each(team, [&](const Stretch& stretch) { multiply_stretch(call, kind, gated, x, stretch, team); });
}

// One output's weights, all of its groups.
void dequantize_row(const QuantizedWeight& weight, int64_t index, float* y) {
    const uint8_t* panel = weight.panels + index / PANEL * weight.panel_bytes;
    const uint8_t* header = panel + weight.header_offset;
    int lane = index % PANEL, group_bytes = weight.group_size * PANEL * weight.bits / 8;
    auto half = [&](const uint8_t* from) {
        uint8_t lanes[2 * LANES] = {};
        std::memcpy(lanes, from + 2 * lane, 2);
        return load_half(lanes)[0];
    };
    auto small = [&](const uint8_t* from) { return static_cast<float>(reinterpret_cast<const int8_t*>(from)[lane]); };
    bool blocks = weight.groups_per_block > 1;
    for (int64_t group = 0; group < weight.num_inputs / weight.group_size;) {
        float d = half(header), m = weight.has_minimum ? half(header + 2 * PANEL) : 0.0f;
        header += weight.has_minimum ? 4 * PANEL : 2 * PANEL;
        for (int i = 0; i < weight.groups_per_block; ++i, ++group) {
            float scale = blocks ? d * small(header) : d;
            float minimum = blocks && weight.has_minimum ? m * small(header + PANEL) : m;
            if (blocks) header += weight.has_minimum ? 2 * PANEL : PANEL;
            const uint8_t* codes = panel + group * group_bytes + lane * UNIT;
            float* to = y + group * weight.group_size;
            if (weight.bits == 8) {
                for (int k = 0; k < weight.group_size; k += LANES, codes += LANES * PANEL) {
                    UnsignedQuarterBytes several;
                    for (int unit = 0; unit < LANES / UNIT; ++unit) std::memcpy(reinterpret_cast<uint8_t*>(&several) + unit * UNIT, codes + unit * UNIT * PANEL, UNIT);
                    store(to + k, scale * __builtin_convertvector(__builtin_convertvector(several, Ints) - weight.zero, Floats) + minimum);
                }
                continue;
            }
            for (int k = 0; k < weight.group_size; ++k) {
                int unit = k / UNIT, code = codes[unit / 2 * UNIT * PANEL + k % UNIT] >> (unit % 2 * 4) & 0x0f;
                to[k] = scale * static_cast<float>(code - weight.zero) + minimum;
            }
        }
    }
}

// Each unit of a row's codes of 8 bits, or two of 4, is on a line of its own.
void ask_for_row(const QuantizedWeight& weight, int64_t index) {
    const uint8_t* codes = weight.panels + index / PANEL * weight.panel_bytes + index % PANEL * UNIT;
    for (int64_t line = 0; line < weight.num_inputs * PANEL * weight.bits / 8; line += CACHE_LINE) prefetch(codes + line);
}

}  // namespace

void panel_rows(const PanelRowsCall& call, const Team& team) {
    int64_t width = call.weight.num_inputs;
    std::vector<Line> memory(num_lines(width));
    float* row = memory.data()->lanes;
    share(team, call.num_indices, [&](int64_t t) {
        if (t + 1 < call.num_indices) ask_for_row(call.weight, call.indices[t + 1]);
        dequantize_row(call.weight, call.indices[t], row);
        if (call.weight.rotated && !call.weight.inputs_rotated) QUIRE_ROTATION::rotate_back(row, width);
        for (int64_t k = 0; k < width; k += LANES) {
            if (call.y_bfloat16) store(static_cast<BFloat16*>(call.y) + t * width + k, load(row + k));
            else store(static_cast<float*>(call.y) + t * width + k, load(row + k));
        }
    });
}

void quantized_linear(const QuantizedCall& call, const Team& team) { linear(call, nullptr, team); }

void quantized_gated(const QuantizedGatedCall& call, const Team& team) {
    const QuantizedWeight& weight = call.linear.weight;
    if (gates_are_panels(weight.num_outputs)) return linear(call.linear, &call.gate, team);
    quantized_linear(call.linear, team);
    team.wait();
    QUIRE_ISA::gated(call.gate, team);
}

void quantized_most_likely(const QuantizedMostLikelyCall& call, const Team& team) {
    find_largest(call.most_likely, call.linear.rows, team, [&](const LinearRows& rows) { quantized_linear({call.linear.weight, rows}, team); });
}

}  // namespace quire::QUIRE_ISA
