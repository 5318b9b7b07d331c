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

// M rows, laid out unit by unit, times N panels. `begun`: sums that theirs are added to, or null. A function of its own: within loops over
// rows and panels there are not enough registers (a tenth of the time with AVX2).
template <typename Type, int M, int N>
[[gnu::noinline]] void multiply(const typename Type::Word* x, int64_t num_units, const uint8_t* panels, int64_t panel_bytes, const NextPanels& ahead,
                     const KeptSums* begun, int64_t row, int64_t panel, Floats (&y)[M][N * PARTS]) {
    constexpr int ALL = N * PARTS;
    Floats sums[M * ALL];  // of its own, not y: so it stays in registers
#pragma GCC unroll MAX_SUMS
    for (int s = 0; s < M * ALL; ++s) sums[s] = Floats{};
    if (begun) begun->load<M, ALL>(row, panel, sums);
    int64_t unit = 0;
    do {
        Ints weights[ALL];
#pragma GCC unroll MAX_SUMS
        for (int p = 0; p < ALL; ++p) weights[p] = load_units(panels + p / PARTS * panel_bytes + UNIT * (unit * PANEL + p % PARTS * LANES));
        for (int n = 0; n < N; ++n) prefetch(ahead.from + n * panel_bytes + unit * ahead.step);
#pragma GCC unroll MAX_SUMS
        for (int s = 0; s < M * ALL; ++s) sums[s] = Type::add_products(sums[s], weights[s % ALL], x[unit * M + s / ALL]);
    } while (++unit < num_units);
#pragma GCC unroll MAX_SUMS
    for (int s = 0; s < M * ALL; ++s) y[s / ALL][s % ALL] = sums[s];
}

int64_t units_of(const DenseWeight& weight) { return weight.bfloat16 ? (weight.num_inputs + 1) / 2 : weight.num_inputs; }

// The units of M neighbouring rows side by side, as words. A row that ends within a unit is filled up with zeros.
template <typename Type, typename T, int M>
void interleave(const LinearRows& rows, int64_t row, int64_t num_inputs, int64_t num_units, typename Type::Word* to) {
    constexpr int A_UNIT = UNIT / sizeof(T);
    int64_t whole = num_inputs / A_UNIT;
    for (int i = 0; i < M; ++i) {
        const T* from = static_cast<const T*>(rows.x) + (row + i) * rows.x_stride;
        auto put = [&](int64_t unit, std::size_t num_bytes) {
            int32_t values = 0;
            std::memcpy(&values, from + unit * A_UNIT, num_bytes);
            to[unit * M + i] = Type::word(values);
        };
        for (int64_t unit = 0; unit < whole; ++unit) put(unit, UNIT);
        if (whole < num_units) put(whole, sizeof(T));
    }
}

template <typename Type>
void multiply_stretch(const DenseCall& call, const GatedRows& gated, const typename Type::Word* x, const Stretch& stretch, const Team& team) {
    const LinearRows& rows = call.rows;
    const DenseWeight& weight = call.weight;
    int64_t num_units = units_of(weight), panel_bytes = num_units * UNIT * PANEL, stretch_bytes = stretch.count * UNIT * PANEL;
    int64_t num_panels = gated.num_panels;
    int64_t block = largest<int64_t>(1, BLOCK_BYTES / (stretch.count * static_cast<int64_t>(sizeof *x) * ROWS)) * ROWS;
    int64_t num_groups = (num_panels + PANELS - 1) / PANELS;
    const KeptSums* begun = stretch.begins ? nullptr : &stretch.kept;
    auto rows_of_panels = [&](int64_t first_row, int64_t num_rows, int64_t panel, auto N) {
        const uint8_t* panels = static_cast<const uint8_t*>(weight.panels) + panel * panel_bytes + stretch.first * UNIT * PANEL;
        NextPanels ahead = next_panels(panels, N, panel_bytes, stretch_bytes, stretch.count, (num_rows + ROWS - 1) / ROWS);
        in_groups<ROWS>(first_row, num_rows, [&](int64_t row, auto M) {
            // Of these panels, or of those `panels_on`.
            auto add_up = [&](int64_t panels_on, Floats (&sums)[M][N * PARTS]) {
                NextPanels next = {ahead.from + panels_on * panel_bytes, ahead.step};
                multiply<Type, M, N>(x + row * num_units + stretch.first * M, stretch.count, panels + panels_on * panel_bytes, panel_bytes, next, begun, row, panel + panels_on, sums);
                if (!stretch.ends) stretch.kept.store<M, N * PARTS>(row, panel + panels_on, sums[0]);
            };
            Floats y[M][N * PARTS], ups[M][N * PARTS];
            if (stretch.ends) prefetch_results<N>(gated.results, row, M, panel);
            add_up(0, y);
            if (gated.gate) add_up(num_panels, ups);
            ahead.from += stretch.count * ahead.step;
            if (!stretch.ends) return;
            if (gated.gate) let_through(*gated.gate, y[0], ups[0], M * N * PARTS);
            for (int n = 0; n < N; ++n) store_rows(gated.results, gated.num_outputs, row, (panel + n) * PANEL, y, n * PARTS);
        });
    };
    if (rows.panels) {
        hand_out_blocks(team, rows.num_rows, block, num_panels, stretch_bytes, [&](int64_t first, int64_t count, int64_t index) {
            rows_of_panels(first, count, rows.panel(index), std::integral_constant<int, 1>());
        });
        return;
    }
    hand_out_blocks(team, rows.num_rows, block, num_groups, (gated.gate ? 2 : 1) * PANELS * stretch_bytes, [&](int64_t first, int64_t count, int64_t group) {
        at_once<PANELS>(group * PANELS, num_panels - group * PANELS, [&](int64_t panel, auto N) { rows_of_panels(first, count, panel, N); });
    });
}

template <typename Type>
void multiply_all(const DenseCall& call, const GateCall* gate, const typename Type::Word* x, const Stretches& stretches, const Team& team) {
    GatedRows gated(call.rows, call.weight.num_outputs, gate);
    stretches.each(team, [&](const Stretch& stretch) { multiply_stretch<Type>(call, gated, x, stretch, team); });
}

// One row is met as it lies where it ends with a unit: widened or side by side, the members would have to wait for it.
template <typename Type, typename ManyRows, typename T>
void linear(const DenseCall& call, const GateCall* gate, const Team& team) {
    const LinearRows& rows = call.rows;
    int64_t num_inputs = call.weight.num_inputs, num_units = units_of(call.weight);
    Stretches stretches(rows, num_units, num_inputs, call.weight.num_outputs);
    if (rows.num_rows == 1 && num_inputs * sizeof(T) == static_cast<std::size_t>(num_units * UNIT))
        return multiply_all<Type>(call, gate, static_cast<const int32_t*>(rows.x), stretches, team);
    auto* x = reinterpret_cast<typename ManyRows::Word*>(stretches.scratch());
    share(team, (rows.num_rows + ROWS - 1) / ROWS, [&](int64_t group) {
        int64_t row = group * ROWS;
        at_once<ROWS>(row, rows.num_rows - row, [&](int64_t first, auto M) {
            interleave<ManyRows, T, M>(rows, first, num_inputs, num_units, x + first * num_units);
        });
    });
    team.wait();
    multiply_all<ManyRows>(call, gate, x, stretches, team);
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
