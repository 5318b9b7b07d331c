// Each output of each row is one sum in float32, over the inputs in their order: a row's results have the same bits whatever
// the other rows are.
#include "dense.h"

#include <vector>

#include "gates.h"
#include "kernels.h"
#include "stretches.h"
#include "units.h"

namespace quire::QUIRE_ISA {
namespace {

// Rows and panels whose sums are in registers at one time.
constexpr int ROWS = LANES == 16 ? 8 : LANES == 8 ? 5 : NUM_REGISTERS / 8;
constexpr int PANELS = LANES == 16 ? 3 : 1;
// Sums are one array and one loop, unrolled early, and the loop around it runs at least once: else GCC keeps them in memory.
constexpr int MAX_SUMS = ROWS * PANELS * PARTS;
// Of rows that stay in a core's second cache while the panels pass.
constexpr int64_t BLOCK_BYTES = 288 << 10;

// Rows from `row` on, laid out unit by unit in `x`, times the weights of panels from `panel` on, which begin at `panels`: a row's registers
// follow each other in `y`.
using Multiply = void (*)(const void* x, const Stretch& stretch, const uint8_t* panels, int64_t panel_bytes, const NextPanels& ahead, int64_t row,
                          int64_t panel, Floats* y);

// M rows times N panels. A function of its own: within loops over rows and panels there are not enough registers (a tenth of the time with AVX2).
template <typename Type, int M, int N>
void multiply(const void* words, const Stretch& stretch, const uint8_t* panels, int64_t panel_bytes, const NextPanels& ahead, int64_t row,
              int64_t panel, Floats* y) {
    constexpr int ALL = N * PARTS;
    const auto* x = static_cast<const typename Type::Word*>(words);
    int64_t num_units = stretch.count;
    Floats sums[M * ALL];  // of its own, not y: so it stays in registers
#pragma GCC unroll MAX_SUMS
    for (int s = 0; s < M * ALL; ++s) sums[s] = Floats{};
    if (!stretch.begins) stretch.kept.load<M, ALL>(row, panel, sums);
    int64_t unit = 0;
    do {
        Ints weights[ALL];
#pragma GCC unroll MAX_SUMS
        for (int p = 0; p < ALL; ++p) weights[p] = load_units(panels + p / PARTS * panel_bytes + UNIT * (unit * PANEL + p % PARTS * LANES));
        for (int n = 0; n < N; ++n) prefetch(ahead.from + n * panel_bytes + unit * ahead.step);
#pragma GCC unroll MAX_SUMS
        for (int s = 0; s < M * ALL; ++s) sums[s] = Type::add_products(sums[s], weights[s % ALL], x[unit * M + s / ALL]);
    } while (++unit < num_units);
    if (!stretch.ends) return stretch.kept.store<M, ALL>(row, panel, sums);
#pragma GCC unroll MAX_SUMS
    for (int s = 0; s < M * ALL; ++s) y[s] = sums[s];
}

// What weights and rows differ in by their types: all else is compiled once for all of them.
struct Kind {
    int64_t word_bytes;  // of a unit of a row
    Multiply multiply[PANELS][ROWS];  // by how many panels and rows, from one on
};

template <typename Type, int N, std::size_t... I>
constexpr void take_multiply(Kind& kind, std::index_sequence<I...>) {
    ((kind.multiply[N - 1][I] = multiply<Type, I + 1, N>), ...);
}

template <typename Type, std::size_t... I>
constexpr Kind kind_of(std::index_sequence<I...>) {
    Kind kind{sizeof(typename Type::Word), {}};
    (take_multiply<Type, I + 1>(kind, std::make_index_sequence<ROWS>()), ...);
    return kind;
}

template <typename Type>
constexpr Kind KIND = kind_of<Type>(std::make_index_sequence<PANELS>());

int64_t units_of(const DenseWeight& weight) { return weight.bfloat16 ? (weight.num_inputs + 1) / 2 : weight.num_inputs; }

// The units of some neighbouring rows side by side, as words. A row that ends within a unit is filled up with zeros.
template <typename Type, typename T>
void interleave(const LinearRows& rows, int64_t row, int num_rows, int64_t num_inputs, int64_t num_units, typename Type::Word* to) {
    constexpr int A_UNIT = UNIT / sizeof(T);
    int64_t whole = num_inputs / A_UNIT;
    for (int i = 0; i < num_rows; ++i) {
        const T* from = static_cast<const T*>(rows.x) + (row + i) * rows.x_stride;
        auto put = [&](int64_t unit, std::size_t num_bytes) {
            int32_t values = 0;
            std::memcpy(&values, from + unit * A_UNIT, num_bytes);
            to[unit * num_rows + i] = Type::word(values);
        };
        for (int64_t unit = 0; unit < whole; ++unit) put(unit, UNIT);
        if (whole < num_units) put(whole, sizeof(T));
    }
}

void multiply_stretch(const DenseCall& call, const Kind& kind, const GatedRows& gated, const void* x, const Stretch& stretch, const Team& team) {
    const LinearRows& rows = call.rows;
    const DenseWeight& weight = call.weight;
    int64_t num_units = units_of(weight), panel_bytes = num_units * UNIT * PANEL, stretch_bytes = stretch.count * UNIT * PANEL;
    int64_t num_panels = gated.num_panels;
    int64_t block = largest<int64_t>(1, BLOCK_BYTES / (stretch.count * kind.word_bytes * ROWS)) * ROWS;
    auto rows_of_panels = [&](int64_t first_row, int64_t count, int64_t panel, int num) {
        const uint8_t* panels = static_cast<const uint8_t*>(weight.panels) + panel * panel_bytes + stretch.first * UNIT * PANEL;
        NextPanels ahead = next_panels(panels, num, panel_bytes, stretch_bytes, stretch.count, (count + ROWS - 1) / ROWS);
        for (int64_t row = first_row; row < first_row + count; row += ROWS) {
            int num_rows = static_cast<int>(smallest<int64_t>(first_row + count - row, ROWS));
            // Of these panels, or of those `panels_on`.
            auto add_up = [&](int64_t panels_on, Floats* sums) {
                NextPanels next = {ahead.from + panels_on * panel_bytes, ahead.step};
                const uint8_t* words = static_cast<const uint8_t*>(x) + (row * num_units + stretch.first * num_rows) * kind.word_bytes;
                kind.multiply[num - 1][num_rows - 1](words, stretch, panels + panels_on * panel_bytes, panel_bytes, next, row, panel + panels_on, sums);
            };
            Floats y[MAX_SUMS], ups[MAX_SUMS];
            if (stretch.ends) prefetch_results(gated.results, row, num_rows, panel, num);
            add_up(0, y);
            if (gated.gate) add_up(num_panels, ups);
            ahead.from += stretch.count * ahead.step;
            if (!stretch.ends) continue;
            if (gated.gate) let_through(*gated.gate, y, ups, num_rows * num * PARTS);
            for (int n = 0; n < num; ++n) store_rows(gated.results, gated.num_outputs, row, num_rows, (panel + n) * PANEL, y + n * PARTS, num * PARTS);
        }
    };
    if (rows.panels) {
        hand_out_blocks(team, rows.num_rows, block, num_panels, stretch_bytes, [&](int64_t first, int64_t count, int64_t index) {
            rows_of_panels(first, count, rows.panel(index), 1);
        });
        return;
    }
    int64_t num_groups = (num_panels + PANELS - 1) / PANELS;
    hand_out_blocks(team, rows.num_rows, block, num_groups, (gated.gate ? 2 : 1) * PANELS * stretch_bytes, [&](int64_t first, int64_t count, int64_t group) {
        rows_of_panels(first, count, group * PANELS, static_cast<int>(smallest<int64_t>(num_panels - group * PANELS, PANELS)));
    });
}

void multiply_all(const DenseCall& call, const Kind& kind, const GateCall* gate, const void* x, const Stretches& stretches, const Team& team) {
    GatedRows gated(call.rows, call.weight.num_outputs, gate);
    stretches.each(team, [&](const Stretch& stretch) { multiply_stretch(call, kind, gated, x, stretch, team); });
}

// One row is met as it lies where it ends with a unit: widened or side by side, the members would have to wait for it.
template <typename Type, typename ManyRows, typename T>
void linear(const DenseCall& call, const GateCall* gate, const Team& team) {
    const LinearRows& rows = call.rows;
    int64_t num_inputs = call.weight.num_inputs, num_units = units_of(call.weight);
    Stretches stretches(rows, num_units, num_inputs, call.weight.num_outputs);
    if (rows.num_rows == 1 && num_inputs * sizeof(T) == static_cast<std::size_t>(num_units * UNIT))
        return multiply_all(call, KIND<Type>, gate, rows.x, stretches, team);
    auto* x = reinterpret_cast<typename ManyRows::Word*>(stretches.scratch());
    share(team, (rows.num_rows + ROWS - 1) / ROWS, [&](int64_t group) {
        int64_t row = group * ROWS;
        interleave<ManyRows, T>(rows, row, static_cast<int>(smallest<int64_t>(rows.num_rows - row, ROWS)), num_inputs, num_units, x + row * num_units);
    });
    team.wait();
    multiply_all(call, KIND<ManyRows>, gate, x, stretches, team);
}

void linear(const DenseCall& call, const GateCall* gate, const Team& team) {
#if defined(__AVX512BF16__)
    using ManyRows = PairOfBFloat16;
#else
    using ManyRows = PairOfWidened;
#endif
    if (call.weight.bfloat16) linear<PairOfBFloat16, ManyRows, uint16_t>(call, gate, team);
    else linear<Float32, Float32, float>(call, gate, team);
}

}  // namespace

void dense_linear(const DenseCall& call, const Team& team) { linear(call, nullptr, team); }

void dense_gated(const DenseGatedCall& call, const Team& team) {
    if (gates_are_panels(call.linear.weight.num_outputs)) return linear(call.linear, &call.gate, team);
    dense_linear(call.linear, team);
    team.wait();
    gated(call.gate, team);
}

void dense_most_likely(const DenseMostLikelyCall& call, const Team& team) {
    find_largest(call.most_likely, call.linear.rows, team, [&](const LinearRows& rows) { dense_linear({call.linear.weight, rows}, team); });
}

void dense_rows(const DenseRowsCall& call, const Team& team) {
    const DenseWeight& weight = call.weight;
    int64_t num_units = units_of(weight), num_bytes = weight.num_inputs * (weight.bfloat16 ? 2 : 4);
    share(team, call.num_indices, [&](int64_t t) {
        int64_t index = call.indices[t];
        const uint8_t* from = static_cast<const uint8_t*>(weight.panels) + (index / PANEL * num_units * PANEL + index % PANEL) * UNIT;
        uint8_t* to = static_cast<uint8_t*>(call.y) + t * num_bytes;
        for (int64_t unit = 0; unit < num_bytes / UNIT; ++unit) std::memcpy(to + unit * UNIT, from + unit * UNIT * PANEL, UNIT);
        if (num_bytes % UNIT) std::memcpy(to + num_bytes / UNIT * UNIT, from + num_bytes / UNIT * UNIT * PANEL, num_bytes % UNIT);
    });
}

void pack_panels(const PackCall& call, const Team& team) {
    std::vector<Line> copy(num_lines(call.num_units * PANEL));
    share(team, call.num_panels, [&](int64_t panel) {
        int32_t* memory = static_cast<int32_t*>(call.memory) + panel * call.num_units * PANEL;
        std::memcpy(copy.data(), memory, call.num_units * PANEL * UNIT);
        const int32_t* from = reinterpret_cast<const int32_t*>(copy.data());
        for (int64_t unit = 0; unit < call.num_units; ++unit)
            for (int n = 0; n < PANEL; ++n) memory[unit * PANEL + n] = from[n * call.num_units + unit];
    });
}

}  // namespace quire::QUIRE_ISA
