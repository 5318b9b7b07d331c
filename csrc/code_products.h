// Products of a weight's codes and of rows' codes, summed as integers, in registers: a piece of the inputs at a time. The sums are exact,
// so that every way of making them gives the same.
#pragma once

#include "weight_codes.h"

namespace quire::QUIRE_ISA {

constexpr int MAX_SUMS = 32;  // of two units

// Panels that several rows are multiplied by at one time where nothing but sums has to be kept. In 512 bits two products a cycle are possible, and
// two loads: with three panels what they meet is loaded once for them, and not with each product.
#if defined(__AVX512VNNI__)
constexpr int PANELS_OF_SUMS = 3;
#else
constexpr int PANELS_OF_SUMS = 1;
#endif

// `x` [UNITS, M], `sums` [M, registers of N panels]. Elsewhere than in its caller sums would be in memory.
template <int BITS, int UNITS, int M, int N>
struct PanelProducts {
    static constexpr int ALL = N * PARTS, SUMS = M * ALL;

    [[gnu::always_inline]] static void add(const uint8_t* panel, int64_t panel_bytes, const int32_t* x, Ints (&sums)[SUMS]) {
        for (int pair = 0; pair < UNITS / 2; ++pair) {
            Bytes codes[2 * ALL];
#pragma GCC unroll MAX_SUMS
            for (int p = 0; p < ALL; ++p) load_pair<BITS>(panel + p / PARTS * panel_bytes, pair, p % PARTS, codes[p], codes[ALL + p]);
#pragma GCC unroll MAX_SUMS
            for (int s = 0; s < 2 * SUMS; ++s) {
                int unit = s / SUMS, i = s % SUMS / ALL, p = s % ALL;
                sums[s % SUMS] = add_products(sums[s % SUMS], codes[unit * ALL + p], x[(2 * pair + unit) * M + i]);
            }
        }
    }
};

#if defined(QUIRE_SHORT_SUMS)
// Codes of 4 bits, in half as many instructions.
template <int UNITS, int M, int N>
struct PanelProducts<4, UNITS, M, N> {
    static constexpr int ALL = N * PARTS, SUMS = M * ALL;
    static_assert(UNITS <= MOST_SHORT_UNITS);

    [[gnu::always_inline]] static void add(const uint8_t* panel, int64_t panel_bytes, const int32_t* x, Ints (&sums)[SUMS]) {
        Shorts shorts[SUMS];
#pragma GCC unroll MAX_SUMS
        for (int s = 0; s < SUMS; ++s) shorts[s] = Shorts{};
#pragma GCC unroll MAX_SUMS
        for (int pair = 0; pair < UNITS / 2; ++pair) {
            Bytes codes[2 * ALL];
#pragma GCC unroll MAX_SUMS
            for (int p = 0; p < ALL; ++p) load_pair<4>(panel + p / PARTS * panel_bytes, pair, p % PARTS, codes[p], codes[ALL + p]);
#pragma GCC unroll MAX_SUMS
            for (int s = 0; s < 2 * SUMS; ++s) {
                int unit = s / SUMS, i = s % SUMS / ALL, p = s % ALL;
                shorts[s % SUMS] += short_products(codes[unit * ALL + p], x[(2 * pair + unit) * M + i]);
                // Else GCC adds all of them up at the end, and keeps them in memory until then.
                asm("" : "+v"(shorts[s % SUMS]));
            }
        }
#pragma GCC unroll MAX_SUMS
        for (int s = 0; s < SUMS; ++s) sums[s] += pairs_added(shorts[s]);
    }
};
#endif

#if defined(QUIRE_MAGNITUDES)
template <int UNITS, int M, int N>
struct PanelProducts<8, UNITS, M, N> {
    static constexpr int ALL = N * PARTS, SUMS = M * ALL;

    [[gnu::always_inline]] static void add(const uint8_t* panel, int64_t panel_bytes, const int32_t* x, Ints (&sums)[SUMS]) {
        for (int unit = 0; unit < UNITS; ++unit) {
            Bytes codes[ALL], magnitudes[ALL];
#pragma GCC unroll MAX_SUMS
            for (int p = 0; p < ALL; ++p) {
                codes[p] = load_bytes(panel + p / PARTS * panel_bytes + UNIT * (unit * PANEL + p % PARTS * LANES)) ^ RAISED<8>;
                magnitudes[p] = magnitude(codes[p]);
            }
#pragma GCC unroll MAX_SUMS
            for (int s = 0; s < SUMS; ++s) sums[s] = add_products(sums[s], codes[s % ALL], magnitudes[s % ALL], x[unit * M + s / ALL]);
        }
    }
};
#endif

#if defined(__AVX512VNNI__)
// Of so many panels.
template <int UNITS, int M, int N>
    requires(N >= PANELS_OF_SUMS)
struct PanelProducts<8, UNITS, M, N> {
    static constexpr int SUMS = M * N;

    [[gnu::always_inline]] static void add(const uint8_t* panel, int64_t panel_bytes, const int32_t* x, Ints (&sums)[SUMS]) {
        for (int unit = 0; unit < UNITS; ++unit) {
            Bytes codes[N];
#pragma GCC unroll MAX_SUMS
            for (int p = 0; p < N; ++p) codes[p] = load_bytes(panel + p * panel_bytes + unit * UNIT * PANEL);
#pragma GCC unroll MAX_SUMS
            for (int s = 0; s < SUMS; ++s) sums[s] = add_products_of_bytes(sums[s], (Ints)codes[s % N], Ints{} + x[unit * M + s / N]);
        }
    }
};
#endif

// Those of one unit of a group, whichever.
template <int BITS>
inline Ints products_of_unit(const uint8_t* from, int unit, int part, const int32_t& x) {
    if constexpr (BITS == 8) {
        Bytes codes = load_bytes(from + UNIT * (unit * PANEL + part * LANES)) ^ RAISED<8>;
#if defined(QUIRE_MAGNITUDES)
        return add_products(Ints{}, codes, magnitude(codes), x);
#else
        return add_products(Ints{}, codes, x);
#endif
    }
    Bytes both = load_bytes(from + UNIT * (unit / 2 * PANEL + part * LANES));
    return add_products(Ints{}, (Bytes)((Shorts)both >> (unit % 2 * 4)) & 0x0f, x);
}

}  // namespace quire::QUIRE_ISA
