// The two largest magnitudes of each piece of a row: pieces are neighbours, of UNITS units of four values. From them follow the
// scale under which it becomes integers, and whether one of it is an outlier (integer_rows.h).
#pragma once

#include "linear_rows.h"

namespace quire::QUIRE_ISA {

template <int STEP, typename Vector, std::size_t... LANE>
inline Vector lanes_shifted(Vector v, std::index_sequence<LANE...>) {
    return __builtin_shufflevector(v, v, ((LANE + STEP) % LANES)...);
}

struct TwoLargest {
    int32_t first, second;
};

// Of all lanes of both; no lane of `second` is larger than that of `first`.
template <int STEP = LANES / 2>
inline TwoLargest two_largest(Ints first, Ints second) {
    if constexpr (STEP == 0) return {first[0], second[0]};
    else {
        Ints other = lanes_shifted<STEP>(first, std::make_index_sequence<LANES>());
        second = max(max(second, lanes_shifted<STEP>(second, std::make_index_sequence<LANES>())), min(first, other));
        return two_largest<STEP / 2>(max(first, other), second);
    }
}

template <int STEP, std::size_t... LANE>
inline void merge_two_largest(Ints& first, Ints& second, Ints more, Ints more_second, std::index_sequence<LANE...>) {
    Ints a = __builtin_shufflevector(first, more, ((LANE & STEP) ? LANES + LANE : LANE)...);
    Ints b = __builtin_shufflevector(first, more, ((LANE & STEP) ? LANES + (LANE ^ STEP) : LANE ^ STEP)...);
    Ints c = __builtin_shufflevector(second, more_second, ((LANE & STEP) ? LANES + LANE : LANE)...);
    Ints d = __builtin_shufflevector(second, more_second, ((LANE & STEP) ? LANES + (LANE ^ STEP) : LANE ^ STEP)...);
    first = max(a, b);
    second = max(max(c, d), min(a, b));
}

// The same of each of LANES pairs of registers: to the lanes of the first pair. Half as many pairs each time hold twice as many's.
template <int STEP = 1>
inline void two_largest_of_each(Ints (&first)[LANES], Ints (&second)[LANES]) {
    if constexpr (STEP < LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i += 2 * STEP)
            merge_two_largest<STEP>(first[i], second[i], first[i + STEP], second[i + STEP], std::make_index_sequence<LANES>());
        two_largest_of_each<2 * STEP>(first, second);
    }
}

// The largest magnitudes of a piece, lane by lane, and the second ones.
template <int UNITS, typename T>
inline void two_largest_of_lanes(const T* from, Ints& most, Ints& second) {
    most = second = Ints{};
    for (int n = 0; n < UNITS * UNIT; n += LANES) {
        Ints size = magnitude_bits(load(from + n));
        second = max(second, min(most, size));
        most = max(most, size);
    }
}

// Of each piece the bits of the largest magnitude, and of the largest of the others.
template <int UNITS, typename T>
inline void two_largest_of_pieces(const T* from, int num_pieces, int32_t* tops, int32_t* others) {
    constexpr int PIECE = UNITS * UNIT;
    int piece = 0;
    for (; piece + LANES <= num_pieces; piece += LANES) {
        Ints most[LANES], second[LANES];
        for (int i = 0; i < LANES; ++i) two_largest_of_lanes<UNITS>(from + (piece + i) * PIECE, most[i], second[i]);
        two_largest_of_each(most, second);
        std::memcpy(tops + piece, &most[0], sizeof most[0]);
        std::memcpy(others + piece, &second[0], sizeof second[0]);
    }
    for (; piece < num_pieces; ++piece) {
        Ints most, second;
        two_largest_of_lanes<UNITS>(from + piece * PIECE, most, second);
        auto [top, other] = two_largest(most, second);
        tops[piece] = top;
        others[piece] = other;
    }
}

#if defined(__AVX512BW__)
// Half a piece of bfloat16, whose magnitudes have the order of their bits. (Slower where there are sixteen registers: docs/lab.md.)
typedef int16_t HalfPiece __attribute__((vector_size(32)));

template <int STEP, std::size_t... LANE>
inline HalfPiece swapped(HalfPiece v, std::index_sequence<LANE...>) { return __builtin_shufflevector(v, v, (LANE ^ STEP)...); }

// Lanes of `more` where the number has the bit STEP.
template <int STEP, std::size_t... LANE>
inline HalfPiece blended(HalfPiece v, HalfPiece more, std::index_sequence<LANE...>) {
    return __builtin_shufflevector(v, more, ((LANE & STEP) ? 16 + LANE : LANE)...);
}

inline void keep_two_largest(HalfPiece& most, HalfPiece& second, HalfPiece more, HalfPiece more_second) {
    HalfPiece less = most < more ? most : more;
    second = second > more_second ? second : more_second;
    second = second > less ? second : less;
    most = most > more ? most : more;
}

// Of N pieces, a power of two, lane by lane to those of piece i in the lanes that are i modulo N, in place 0.
template <int N, int STEP = 1>
inline void merge_pieces(HalfPiece (&most)[N], HalfPiece (&second)[N]) {
    constexpr auto LANES_OF_HALF = std::make_index_sequence<16>();
    if constexpr (STEP < N) {
#pragma GCC unroll 16
        for (int i = 0; i < N; i += 2 * STEP) {
            HalfPiece more = swapped<STEP>(blended<STEP>(most[i + STEP], most[i], LANES_OF_HALF), LANES_OF_HALF);
            HalfPiece more_second = swapped<STEP>(blended<STEP>(second[i + STEP], second[i], LANES_OF_HALF), LANES_OF_HALF);
            most[i] = blended<STEP>(most[i], most[i + STEP], LANES_OF_HALF);
            second[i] = blended<STEP>(second[i], second[i + STEP], LANES_OF_HALF);
            keep_two_largest(most[i], second[i], more, more_second);
        }
    } else {
        keep_two_largest(most[0], second[0], swapped<STEP>(most[0], LANES_OF_HALF), swapped<STEP>(second[0], LANES_OF_HALF));
    }
    if constexpr (STEP < 8) merge_pieces<N, 2 * STEP>(most, second);
}

// Of up to N pieces of bfloat16. There is room for those of N.
template <int N>
inline void two_largest_of_bfloat16(const BFloat16* from, int count, int32_t* tops, int32_t* others) {
    typedef int32_t Bits __attribute__((vector_size(64)));
    HalfPiece most[N], second[N];
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
        HalfPiece halves[2] = {};
        if (i < count) std::memcpy(halves, from + i * 32, sizeof halves);
        halves[0] &= 0x7fff, halves[1] &= 0x7fff;
        most[i] = halves[0] > halves[1] ? halves[0] : halves[1];
        second[i] = halves[0] > halves[1] ? halves[1] : halves[0];
    }
    merge_pieces(most, second);
    Bits top = __builtin_convertvector(most[0], Bits) << 16, other = __builtin_convertvector(second[0], Bits) << 16;
    std::memcpy(tops, &top, sizeof(int32_t) * N);
    std::memcpy(others, &other, sizeof(int32_t) * N);
}

template <>
inline void two_largest_of_pieces<8>(const BFloat16* from, int num_pieces, int32_t* tops, int32_t* others) {
    constexpr int MANY = 16, FEW = 4;
    int piece = 0;
    for (; piece + MANY <= num_pieces; piece += MANY) two_largest_of_bfloat16<MANY>(from + piece * 32, MANY, tops + piece, others + piece);
    for (; piece < num_pieces; piece += FEW)
        two_largest_of_bfloat16<FEW>(from + piece * 32, num_pieces - piece < FEW ? num_pieces - piece : FEW, tops + piece, others + piece);
}
#endif

}  // namespace quire::QUIRE_ISA
