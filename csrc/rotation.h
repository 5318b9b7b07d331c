// A rotation of rows, under which values that are far larger than the others are shared out among many inputs: then integers of 8 bits with
// one scale are enough for all of them (QuaRot: Ashkboos et al. 2024). A weight's rows were rotated alike before they were rounded, so
// that products stay what they were. But for its last stage it works between registers, not within them.
#pragma once

#include <type_traits>

#include "norms.h"

namespace quire::QUIRE_ISA {

// Neighbours of which only four meet, whatever the instruction set's registers are. The first stages know it beforehand: else half of their time
// would go to where values lie.
constexpr int64_t ROTATION_STRIDE = 16;
using FirstStride = std::integral_constant<int64_t, ROTATION_STRIDE>;

// Minus a reflection of N values, which takes (2 / N) of their sum from each: it is its own inverse. For 4 it is a Hadamard matrix, and
// for up to 7 no value keeps more than 5 / 7 of itself.
template <int N>
inline void reflect(Floats (&v)[N]) {
    if constexpr (N > 1) {
        Floats sum = v[0] + v[1];
        if constexpr (N == 4) sum += v[2] + v[3];
        else for (int i = 2; i < N; ++i) sum += v[i];
        for (int i = 0; i < N; ++i) v[i] = multiply_subtract(sum, fill(2.0f / N), v[i]);
    }
}

// Sum and difference of lanes STEP apart.
template <int STEP, std::size_t... LANE>
inline Floats sums_and_differences(Floats v, std::index_sequence<LANE...>) {
    constexpr Floats SIGNS = {(LANE & STEP ? -1.0f : 1.0f)...};
    return multiply_add(v, SIGNS, __builtin_shufflevector(v, v, (LANE ^ STEP)...));
}

// A Hadamard matrix of each four neighbours, which makes them NEIGHBOURS_GAIN times as large.
constexpr float NEIGHBOURS_GAIN = 2;
inline Floats meet_neighbours(Floats v) {
    constexpr auto ALL = std::make_index_sequence<LANES>();
    return sums_and_differences<2>(sums_and_differences<1>(v, ALL), ALL);
}

// How many values meet in the next stage, where `left` are: 1 when there is none. A lone factor 2 is left out, larger ones have windows.
inline int next_radix(int64_t left) {
    for (int radix : {4, 6, 3, 5, 7})
        if (left % radix == 0) return radix;
    return 1;
}

// What a row's scale follows from: by lane the largest magnitude, but for NaN; and NaN where a value is not finite.
struct LargestMagnitude {
    Floats magnitude = {}, times_zero = {};

    // Those of N values first: one after the other each would wait for the one before.
    template <int N>
    void add(const Floats (&v)[N]) {
        Floats most = v[0];
        for (int i = 1; i < N; ++i) most = larger(most, v[i]);
        magnitude = larger(magnitude, most);
    }
    static Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
        constexpr int LARGER_MAGNITUDE = 0b1011;
        return (Floats)_mm512_maskz_range_ps(0xffff, (__m512)a, (__m512)b, LARGER_MAGNITUDE);
#else
        return (Floats)max(magnitude_bits(a), magnitude_bits(b));
#endif
    }
    void add_finite(Floats v) { times_zero = multiply_add(v, Floats{}, times_zero); }
    float value() const { return sum_of(times_zero) == 0.0f ? of_bits(max_of((Ints)magnitude)) : __builtin_nanf(""); }
};

// What the first stages read, a register from the row's `k`th value on; `a` counts neighbouring ones.
template <typename T>
struct PlainRow {
    const T* x;

    Floats read(int64_t k, int) const { return load(x + k); }
};

// Times the weight of a norm, whose scale is found meanwhile: it is for who has rotated the row.
template <typename T>
struct WeightedRow {
    static constexpr int SUMS = 4;  // side by side: one would wait for each addition

    const T* x;
    const float* weight;
    Floats squares[SUMS] = {};

    Floats read(int64_t k, int a) {
        Floats v = load(x + k);
        squares[a % SUMS] = multiply_add(v, v, squares[a % SUMS]);
        return v * load(weight + k);
    }
    float rms_scale(int64_t width, float eps) const {
        Floats all = squares[0];
        for (int i = 1; i < SUMS; ++i) all += squares[i];
        return quire::QUIRE_ISA::rms_scale(sum_of(all), width, eps);
    }
};

// Compiled in rotation.cpp: it takes as long as a kernel. But what GCC inlines in a file follows from how much there is in it, and loops around
// tiles were measured with these in theirs.
#if defined(QUIRE_TILES)
#define QUIRE_ROTATION inline
#else
#define QUIRE_ROTATION
#endif

// Two stages at once, A values `stride` apart and B of these groups. The last ones do what is left: neighbours meet, and `largest` is
// told of all values. One that is not finite is in all that it met.
template <int A, int B, bool LAST, typename Row, typename Stride>
QUIRE_ROTATION void rotate_stages(Row& row, int64_t count, Stride stride, float* to, LargestMagnitude& largest) {
    LargestMagnitude of_all = largest;  // of its own, as is what is read, so that it stays in registers
    Row from = row;
    for (int64_t block = 0; block < count; block += stride * A * B)
        for (int64_t first = block; first < block + stride; first += LANES) {
            Floats v[B][A];
#pragma GCC unroll 8
            for (int b = 0; b < B; ++b) {
#pragma GCC unroll 8
                for (int a = 0; a < A; ++a) v[b][a] = from.read(first + (b * A + a) * stride, a);
                reflect(v[b]);
            }
#pragma GCC unroll 8
            for (int a = 0; a < A; ++a) {
                Floats across[B];
#pragma GCC unroll 8
                for (int b = 0; b < B; ++b) across[b] = v[b][a];
                reflect(across);
                if constexpr (LAST) of_all.add_finite(across[0]);
#pragma GCC unroll 8
                for (int b = 0; b < B; ++b) {
                    if constexpr (LAST) across[b] = meet_neighbours(across[b]);
                    store(to + first + (b * A + a) * stride, across[b]);
                }
                if constexpr (LAST) of_all.add(across);
            }
        }
    largest = of_all;
    row = from;
}

template <int A, bool LAST, typename Row, typename Stride>
QUIRE_ROTATION void rotate_stages(int b, Row& from, int64_t count, Stride stride, float* to, LargestMagnitude& largest) {
    switch (b) {
        case 3: return rotate_stages<A, 3, LAST>(from, count, stride, to, largest);
        case 4: return rotate_stages<A, 4, LAST>(from, count, stride, to, largest);
        case 5: return rotate_stages<A, 5, LAST>(from, count, stride, to, largest);
        case 6: return rotate_stages<A, 6, LAST>(from, count, stride, to, largest);
        case 7: return rotate_stages<A, 7, LAST>(from, count, stride, to, largest);
        default: return rotate_stages<A, 1, LAST>(from, count, stride, to, largest);
    }
}

// `count` values, whole strides, which become NEIGHBOURS_GAIN times as large; returns the largest magnitude, or NaN where one is not finite.
// Later stages read what the ones before have put to `to`.
template <typename Row, typename Stride>
QUIRE_ROTATION float rotate(Row& from, int64_t count, Stride stride, float* to) {
    int64_t left = count / stride;
    bool four = left % 4 == 0;
    if (four) left /= 4;
    int radix = next_radix(left);
    left /= radix;
    LargestMagnitude largest;
    if (next_radix(left) == 1) {
        if (four) rotate_stages<4, true>(radix, from, count, stride, to, largest);
        else rotate_stages<1, true>(radix, from, count, stride, to, largest);
        return largest.value();
    }
    if (four) rotate_stages<4, false>(radix, from, count, stride, to, largest);
    else rotate_stages<1, false>(radix, from, count, stride, to, largest);
    PlainRow<float> rotated{to};
    return rotate(rotated, count, int64_t{stride} * (four ? 4 : 1) * radix, to);
}

#if !defined(QUIRE_TILES)
extern template float rotate(PlainRow<float>&, int64_t, FirstStride, float*);
extern template float rotate(PlainRow<BFloat16>&, int64_t, FirstStride, float*);
extern template float rotate(WeightedRow<float>&, int64_t, FirstStride, float*);
extern template float rotate(WeightedRow<BFloat16>&, int64_t, FirstStride, float*);
#endif

// How many parts of a row the stages leave apart from each other: a factor of 11 or more, with a lone 2.
inline int64_t parts_left_apart(int64_t count) {
    int64_t left = count / ROTATION_STRIDE;
    for (int radix = next_radix(left); radix > 1; radix = next_radix(left)) left /= radix;
    return left;
}

// Many parts meet in windows, two stages in each: of 4, and 3 to 7 of these groups. The last window reaches back over the one before.
constexpr int64_t FEW_PARTS = 2;

// As `rotate`, of a row with many parts.
float rotate_with_windows(PlainRow<float>& from, int64_t count, int64_t parts, float* to);
float rotate_with_windows(PlainRow<BFloat16>& from, int64_t count, int64_t parts, float* to);
float rotate_with_windows(WeightedRow<float>& from, int64_t count, int64_t parts, float* to);
float rotate_with_windows(WeightedRow<BFloat16>& from, int64_t count, int64_t parts, float* to);

// The windows alone, in the other order, which undoes them.
void rotate_windows_back(float* row, int64_t count, int64_t parts);

// All of a row. Its `parts` are those of all rows of a call: they are found by divisions, once.
template <typename Row>
inline float rotate_parts(Row& from, int64_t count, int64_t parts, float* to) {
    return parts > FEW_PARTS ? rotate_with_windows(from, count, parts, to) : rotate(from, count, FirstStride(), to);
}

template <typename T>
inline float rotate(const T* from, int64_t count, float* to) {
    PlainRow<T> row{from};
    return rotate_parts(row, count, parts_left_apart(count), to);
}

// `count` values as they are, whole registers; returns what `rotate` does. (Bits tell of all values whether they are finite, without sums that
// wait for each other.)
template <typename T>
inline float copy_and_find_largest(const T* from, int64_t count, float* to) {
    Ints most = {};
    for (int64_t k = 0; k < count; k += LANES) {
        Floats v = load(from + k);
        store(to + k, v);
        most = max(most, magnitude_bits(v));
    }
    int32_t largest = max_of(most);
    return largest < INFINITE ? of_bits(largest) : __builtin_nanf("");
}

// A rotated row, which did not become larger, as it was before. But for the windows all is its own inverse.
inline void rotate_back(float* row, int64_t count) {
    PlainRow<float> from{row};
    rotate(from, count, FirstStride(), row);
    if (int64_t parts = parts_left_apart(count); parts > FEW_PARTS) rotate_windows_back(row, count, parts);
    for (int64_t k = 0; k < count; k += LANES) store(row + k, load(row + k) / NEIGHBOURS_GAIN);
}

}  // namespace quire::QUIRE_ISA
