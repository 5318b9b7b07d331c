// A rotation of rows, under which values that are far larger than the others are shared out among many inputs: then integers of 8 bits with
// one scale are enough for all of them (QuaRot: Ashkboos et al. 2024). A weight's rows were rotated alike before they were rounded, so
// that products stay what they were. But for its last stage it works between registers, not within them.
#pragma once

#include "vectors.h"

namespace quire::QUIRE_ISA {

constexpr int64_t ROTATION_STRIDE = 16;  // neighbours of which only four meet, whatever the instruction set's registers are

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

template <std::size_t... LANE>
inline Floats reflect_neighbours(Floats v, std::index_sequence<LANE...>) {
    Floats sum = v + __builtin_shufflevector(v, v, (LANE ^ 1)...);
    return multiply_subtract(sum + __builtin_shufflevector(sum, sum, (LANE ^ 2)...), fill(0.5f), v);
}

// The same of each four neighbours.
inline Floats reflect_neighbours(Floats v) { return reflect_neighbours(v, std::make_index_sequence<LANES>()); }

// How many values meet in the next stage, where `left` are: 1 when there is none. A lone factor 2 is left out.
inline int next_radix(int64_t left) {
    for (int radix : {4, 6, 3, 5, 7})
        if (left % radix == 0) return radix;
    return 1;
}

// Two stages at once, A values `stride` apart and B of these groups. The last ones do what is left: neighbours meet, and the largest
// magnitude's bits are returned, lane by lane.
template <int A, int B, bool LAST, typename T>
inline Ints rotate_stages(const T* from, int64_t count, int64_t stride, float* to) {
    Ints most = {};
    for (int64_t block = 0; block < count; block += stride * A * B)
        for (int64_t first = block; first < block + stride; first += LANES) {
            Floats v[B][A];
#pragma GCC unroll 8
            for (int b = 0; b < B; ++b) {
#pragma GCC unroll 8
                for (int a = 0; a < A; ++a) v[b][a] = load(from + first + (b * A + a) * stride);
                reflect(v[b]);
            }
#pragma GCC unroll 8
            for (int a = 0; a < A; ++a) {
                Floats across[B];
#pragma GCC unroll 8
                for (int b = 0; b < B; ++b) across[b] = v[b][a];
                reflect(across);
#pragma GCC unroll 8
                for (int b = 0; b < B; ++b) {
                    Floats y = LAST ? reflect_neighbours(across[b]) : across[b];
                    store(to + first + (b * A + a) * stride, y);
                    if constexpr (LAST) most = max(most, magnitude_bits(y));
                }
            }
        }
    return most;
}

template <int A, bool LAST, typename T>
inline Ints rotate_stages(int b, const T* from, int64_t count, int64_t stride, float* to) {
    switch (b) {
        case 3: return rotate_stages<A, 3, LAST>(from, count, stride, to);
        case 4: return rotate_stages<A, 4, LAST>(from, count, stride, to);
        case 5: return rotate_stages<A, 5, LAST>(from, count, stride, to);
        case 6: return rotate_stages<A, 6, LAST>(from, count, stride, to);
        case 7: return rotate_stages<A, 7, LAST>(from, count, stride, to);
        default: return rotate_stages<A, 1, LAST>(from, count, stride, to);
    }
}

// `count` values, whole strides; returns the bits of the largest magnitude, those of NaN where there is one. Later stages have `from` == `to`.
template <typename T>
inline int32_t rotate(const T* from, int64_t count, int64_t stride, float* to) {
    int64_t left = count / stride;
    bool four = left % 4 == 0;
    if (four) left /= 4;
    int radix = next_radix(left);
    left /= radix;
    bool last = next_radix(left) == 1;
    Ints most = four ? last ? rotate_stages<4, true>(radix, from, count, stride, to) : rotate_stages<4, false>(radix, from, count, stride, to)
                     : last ? rotate_stages<1, true>(radix, from, count, stride, to) : rotate_stages<1, false>(radix, from, count, stride, to);
    return last ? max_of(most) : rotate(static_cast<const float*>(to), count, stride * (four ? 4 : 1) * radix, to);
}

template <typename T>
inline int32_t rotate(const T* from, int64_t count, float* to) {
    return rotate(from, count, ROTATION_STRIDE, to);
}

}  // namespace quire::QUIRE_ISA
