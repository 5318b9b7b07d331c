// Numbers that are multiplied together: one float32, two bfloat16, or four bytes, in the 32 bits of a lane.
#pragma once

#include "vectors.h"

namespace quire::QUIRE_ISA {

inline Ints load_units(const void* from) {
    Ints v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// The first `count` lanes; the rest are zeros.
inline Ints load_units(const void* from, int count) {
    if (count >= LANES) return load_units(from);
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << count) - 1), from);
#elif defined(__AVX2__)
    return (Ints)_mm256_maskload_epi32(static_cast<const int*>(from), (__m256i)(lane_numbers() < count));
#else
    Ints v = {};
    for (int i = 0; i < LANES; ++i)
        if (i < count) std::memcpy(reinterpret_cast<int32_t*>(&v) + i, static_cast<const int32_t*>(from) + i, sizeof(int32_t));
    return v;
#endif
}

struct Float32 {
    using Value = float;
    static constexpr int PER_UNIT = 1;

    static Floats add_products(Floats sums, Ints many, int32_t one) {
        float value;
        std::memcpy(&value, &one, sizeof value);
        return sums + (Floats)many * value;
    }
};

// Two products a lane, added one after the other.
struct PairOfBFloat16 {
    using Value = BFloat16;
    static constexpr int PER_UNIT = 2;

    static Floats add_products(Floats sums, Ints many, int32_t one) {
#if defined(__AVX512BF16__)
        return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)many, (__m512bh)_mm512_set1_epi32(one));
#else
        Ints both = Ints{} + one;
        sums += (Floats)(many << 16) * (Floats)(both << 16);
        return sums + (Floats)(many & ~0xffff) * (Floats)(both & ~0xffff);
#endif
    }
};

typedef uint8_t Bytes __attribute__((vector_size(4 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));

inline Bytes load_bytes(const uint8_t* from) {
    Bytes v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// Adds to each lane the sum of its four products of an unsigned and a signed byte; `x` holds the same four in each lane.
inline Ints add_products(Ints sums, Bytes weights, const int32_t& x) {
#if defined(__AVX512VNNI__)
    // As an intrinsic it costs a second instruction, which loads x (docs/lab.md).
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(x));
    return sums;
#else
    // Products of sixteen bits, two to a sum, never overflow 32 bits.
    Shorts even = (Shorts)(Ints{} + x) << 8 >> 8, odd = (Shorts)(Ints{} + x) >> 8;
    Shorts weights_even = (Shorts)weights & 0xff, weights_odd = (Shorts)((Ints)weights >> 8) & 0xff;
#if defined(__AVX512BW__)
    return sums + (Ints)_mm512_madd_epi16((__m512i)weights_even, (__m512i)even) +
           (Ints)_mm512_madd_epi16((__m512i)weights_odd, (__m512i)odd);
#elif defined(__AVX2__)
    return sums + (Ints)_mm256_madd_epi16((__m256i)weights_even, (__m256i)even) +
           (Ints)_mm256_madd_epi16((__m256i)weights_odd, (__m256i)odd);
#else
    auto low = [](Shorts v) { return (Ints)v << 16 >> 16; };
    auto high = [](Shorts v) { return (Ints)v >> 16; };
    return sums + low(weights_even) * low(even) + high(weights_even) * high(even) + low(weights_odd) * low(odd) +
           high(weights_odd) * high(odd);
#endif
#endif
}

}  // namespace quire::QUIRE_ISA
