// The rows of a linear layer in registers: how many at a time, and how they are stored. For kernels of every kind of weight.
#pragma once

#include <type_traits>

#include "largest_of_rows.h"
#include "linear.h"
#include "team.h"
#include "vectors.h"

namespace quire::QUIRE_ISA {

#if defined(__clang__)
#define QUIRE_COMPILED_ONCE [[gnu::noinline]]
#else
#define QUIRE_COMPILED_ONCE [[gnu::noinline, gnu::noclone]]
#endif

constexpr int PARTS = PANEL / LANES;  // registers that hold a number of each output of a panel

// function(first, N) for neighbours: as many as MOST at a time, then what is left at once. N is a constant.
template <int MOST, typename Function>
inline void at_once(int64_t first, int64_t left, Function&& function) {
    if (left >= MOST) return function(first, std::integral_constant<int, MOST>());
    if constexpr (MOST > 1) at_once<MOST - 1>(first, left, function);
}

template <int MOST, typename Function>
inline void in_groups(int64_t first, int64_t count, Function&& function) {
    for (int64_t i = 0; i < count; i += MOST) at_once<MOST>(first + i, count - i, function);
}

// What a member takes at a time, in bytes of weights times rows: some microseconds. Then taking it costs little, though what it
// takes last may lie apart from what it had before.
constexpr int64_t GRAIN = 32 << 10;

// function(row, count, group) for `block` rows at a time and each group of panels, of `group_bytes`, each to one member. Where there are several
// blocks, groups of another member's only while it has at least FEWEST_OF_OTHERS left: its rows lie in its caches, and to fetch them takes time.
template <int64_t FEWEST_OF_OTHERS = 1, typename Function>
inline void hand_out_blocks(const Team& team, int64_t num_rows, int64_t block, int64_t num_groups, int64_t group_bytes,
                            Function&& function) {
    int64_t num_blocks = (num_rows + block - 1) / block;
    int64_t grain = largest<int64_t>(1, GRAIN / largest<int64_t>(1, group_bytes * (num_rows < block ? num_rows : block)));
    auto of_item = [&](int64_t item) {
        int64_t row = item / num_groups * block;
        function(row, num_rows - row < block ? num_rows - row : block, item % num_groups);
    };
    hand_out(team, num_blocks * num_groups, grain, of_item, num_blocks > 1 ? FEWEST_OF_OTHERS : 1);
}

// Many rows are divided among the members as all kernels divide them: each finds in its caches what it wrote itself, and passes all
// panels. With fewer than `fewest` rows these would be waited for, since each core reads them all. Rows are in whole `units`; up to `most`
// at a time.
inline int64_t rows_of_block(int64_t num_rows, int64_t unit, int64_t fewest, int64_t most, const Team& team) {
    int64_t own = (num_rows + unit * team.size - 1) / (unit * team.size) * unit;
    return own >= fewest && own < most ? own : most;
}

// What is asked for while rows pass over N panels: the next N, into the second cache. With each part of a panel go `step` bytes, from
// `from` on, of the one that takes its place; where there are several passes, each asks for its share. (The processor's own
// guesses end with each page, and asking for what is a fixed distance away is slower: docs/lab.md.)
struct NextPanels {
    const uint8_t* from;
    int64_t step;
};

// `part_bytes` of each of the next panels: all, but where `panels` is where a stretch begins (stretches.h).
inline NextPanels next_panels(const uint8_t* panels, int count, int64_t panel_bytes, int64_t part_bytes, int64_t num_parts, int64_t num_passes) {
    int64_t shares = num_parts * num_passes;
    return {panels + count * panel_bytes, (part_bytes + shares - 1) / shares};
}

inline NextPanels next_panels(const uint8_t* panels, int count, int64_t panel_bytes, int64_t num_parts, int64_t num_passes) {
    return next_panels(panels, count, panel_bytes, panel_bytes, num_parts, num_passes);
}

constexpr int64_t MOST_FIRST_PANELS = 96 << 10;  // that are asked for while rows become integers: of a second cache of 512 KiB and more

// Lines that results of some rows for some panels will be written to, asked for before they are computed.
inline void prefetch_results(const LinearRows& rows, int64_t row, int num_rows, int64_t panel, int num_panels) {
    int64_t width = rows.y_bfloat16 ? 2 : 4;
    if (rows.keeps_largest) return;
    for (int i = 0; i < num_rows; ++i)
        for (int64_t at = 0; at < num_panels * PANEL * width; at += 64)
            __builtin_prefetch(static_cast<const char*>(rows.y) + ((row + i) * rows.y_stride + panel * PANEL) * width + at, 1, 3);
}

// Results from `output` on of a row that begins at `to`.
template <typename T>
[[gnu::always_inline]] inline void put(T* to, const LinearRows& rows, int64_t output, Floats v, int count) {
    to += output;
    store_part(to, rows.adds ? load_part(to, count) + v : v, count);
}

[[gnu::always_inline]] inline void put(LargestOfRow* to, const LinearRows&, int64_t output, Floats v, int count) {
    to->take(v, Ints{} + static_cast<int32_t>(output / PANEL), static_cast<int>(output % PANEL), count);
}

// Results of `num_rows` rows for one panel, whose first output is `output`, to rows that begin at `to`; in `y` they are `step` registers apart.
template <typename T>
inline void store_rows(T* to, const LinearRows& rows, int64_t num_outputs, int num_rows, int64_t output, const Floats* y, int step) {
    for (int p = 0; p < PARTS; ++p) {
        int64_t n = output + p * LANES;
        int count = static_cast<int>(largest<int64_t>(0, num_outputs - n));
        if (count == 0) return;
        Floats bias = {};
        if (rows.bias && rows.bias_bfloat16) bias = load_part(static_cast<const BFloat16*>(rows.bias) + n, count);
        else if (rows.bias) bias = load_part(static_cast<const float*>(rows.bias) + n, count);
        for (int i = 0; i < num_rows; ++i) {
            Floats v = rows.bias ? y[i * step + p] + bias : y[i * step + p];
            put(to + i * rows.y_stride, rows, n, v, count);
        }
    }
}

// The same from row `row` on. One function for all who call it, whatever they know of its arguments: it takes longer to compile than what
// computes the results.
QUIRE_COMPILED_ONCE inline void store_rows(const LinearRows& rows, int64_t num_outputs, int64_t row, int num_rows, int64_t output,
                                           const Floats* y, int step) {
    int64_t at = row * rows.y_stride;
    if (rows.keeps_largest) store_rows(static_cast<LargestOfRow*>(rows.y) + at, rows, num_outputs, num_rows, output, y, step);
    else if (rows.y_bfloat16) store_rows(static_cast<BFloat16*>(rows.y) + at, rows, num_outputs, num_rows, output, y, step);
    else store_rows(static_cast<float*>(rows.y) + at, rows, num_outputs, num_rows, output, y, step);
}

}  // namespace quire::QUIRE_ISA
