// Numbers that are multiplied together: one float32, two bfloat16, or four bytes, in the 32 bits of a lane.
#pragma once

#include "vectors.h"

namespace quire::QUIRE_ISA {

// What is scaled to whole numbers by less counts as nothing: the inverse would overflow.
constexpr float LEAST_SCALE = 1e-30f;

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
    using Word = int32_t;  // in which a unit of what is multiplied by many is kept
    static constexpr int PER_UNIT = 1;

    static Word word(int32_t unit) { return unit; }
    static Floats add_products(Floats sums, Ints many, int32_t one) {
        float value;
        std::memcpy(&value, &one, sizeof value);
        return multiply_add((Floats)many, fill(value), sums);
    }
};

// Two products a lane, added one after the other.
struct PairOfBFloat16 {
    using Value = BFloat16;
    using Word = int32_t;
    static constexpr int PER_UNIT = 2;

    static Word word(int32_t unit) { return unit; }
    static Floats add_products(Floats sums, Ints many, int32_t one) {
#if defined(__AVX512BF16__)
        return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)many, (__m512bh)_mm512_set1_epi32(one));
#else
        Ints both = Ints{} + one;
        sums = multiply_add((Floats)(many << 16), (Floats)(both << 16), sums);
        return multiply_add((Floats)(many & ~0xffff), (Floats)(both & ~0xffff), sums);
#endif
    }
};

// The same additions, of one's numbers that became float32 once for all that they meet.
struct PairOfWidened {
    struct Word {
        float first, second;
    };

    static Word word(int32_t unit) { return {of_bits(static_cast<int32_t>(static_cast<uint32_t>(unit) << 16)), of_bits(unit & ~0xffff)}; }
    static Floats add_products(Floats sums, Ints many, const Word& one) {
        sums = multiply_add((Floats)(many << 16), fill(one.first), sums);
        return multiply_add((Floats)(many & ~0xffff), fill(one.second), sums);
    }
};

typedef uint8_t Bytes __attribute__((vector_size(4 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));

inline Bytes load_bytes(const uint8_t* from) {
    Bytes v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// VNNI: each lane's sum of products of four bytes without a sign by four with one, or of two numbers of 16 bits by two, is added to it.
#if defined(QUIRE_AVX_VNNI)  // as what the instruction is encoded: vex or, where AVX-512 has it too, evex
#define QUIRE_VNNI
#define QUIRE_ENCODED(encoding) QUIRE_ENCODED_AS(encoding)
#define QUIRE_ENCODED_AS(encoding) "%{" #encoding "%} "
inline Ints add_products_of_bytes(Ints sums, Ints unsigned_bytes, Ints bytes) {
    asm(QUIRE_ENCODED(QUIRE_AVX_VNNI) "vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(unsigned_bytes), "xm"(bytes));
    return sums;
}
inline Ints add_products_of_shorts(Ints sums, Ints a, Ints b) {
    asm(QUIRE_ENCODED(QUIRE_AVX_VNNI) "vpdpwssd %2, %1, %0" : "+x"(sums) : "x"(a), "xm"(b));
    return sums;
}
#elif defined(__AVX512VNNI__)
#define QUIRE_VNNI
inline Ints add_products_of_bytes(Ints sums, Ints unsigned_bytes, Ints bytes) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)unsigned_bytes, (__m512i)bytes);
}
inline Ints add_products_of_shorts(Ints sums, Ints a, Ints b) {
    return (Ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
}
#endif

// Adds to each lane the sum of its four products of an unsigned and a signed byte, of Arm's instruction of two signed ones; `x` holds the same four in
// each lane.
inline Ints add_products(Ints sums, Bytes weights, const int32_t& x) {
#if defined(__AVX512VNNI__)
    // As an intrinsic it costs a second instruction, which loads x (docs/lab.md).
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(x));
    return sums;
#elif defined(QUIRE_VNNI)
    return add_products_of_bytes(sums, (Ints)weights, Ints{} + x);
#elif defined(__ARM_FEATURE_DOTPROD)
    return (Ints)vdotq_s32((int32x4_t)sums, (int8x16_t)weights, (int8x16_t)(Ints{} + x));
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

#if defined(__ARM_FEATURE_DOTPROD)
#define QUIRE_SIGNED_BYTES
#endif

// The same of any weights without a sign.
inline Ints add_unsigned_products(Ints sums, Bytes weights, const int32_t& x) {
#if defined(__ARM_FEATURE_DOTPROD)
    Ints sum_of_x = add_products(Ints{}, Bytes{} + 1, x);
    return add_products(sums, weights ^ 128, x) + (sum_of_x << 7);
#else
    return add_products(sums, weights, x);
#endif
}

// Without VNNI: sums of two neighbours' products, in 16 bits. Where weights have 4 bits, those of a few units may be added as they are.
#if defined(__AVX2__) && !defined(QUIRE_VNNI)
#define QUIRE_SHORT_SUMS
constexpr int MOST_SHORT_UNITS = 8;  // of weights of 4 bits: 8 * 2 * 15 * 128 < 2^15

#if defined(__AVX512BW__)
inline Shorts short_products(Bytes weights, int32_t x) { return (Shorts)_mm512_maddubs_epi16((__m512i)weights, _mm512_set1_epi32(x)); }
inline Ints pairs_added(Shorts sums) { return (Ints)_mm512_madd_epi16((__m512i)sums, _mm512_set1_epi16(1)); }
#else
inline Shorts short_products(Bytes weights, int32_t x) { return (Shorts)_mm256_maddubs_epi16((__m256i)weights, _mm256_set1_epi32(x)); }
inline Ints pairs_added(Shorts sums) { return (Ints)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1)); }

// Where both are signed, x gets the weights' signs and these lose them: 2 * 128 * 127 < 2^15, for none of x is -128.
#define QUIRE_SIGNED_BYTES
#define QUIRE_MAGNITUDES
inline Bytes magnitude(Bytes weights) { return (Bytes)_mm256_abs_epi8((__m256i)weights); }
inline Ints add_products(Ints sums, Bytes weights, Bytes magnitudes, int32_t x) {
    __m256i with_sign = _mm256_sign_epi8(_mm256_set1_epi32(x), (__m256i)weights);
    return sums + pairs_added((Shorts)_mm256_maddubs_epi16((__m256i)magnitudes, with_sign));
}
#endif
#endif

}  // namespace quire::QUIRE_ISA
