// Functions of a register of float32, made of sums and products: the same bits wherever they are computed within an instruction set.
#pragma once

#include "vectors.h"

namespace quire::QUIRE_ISA {

constexpr float LOG2_E = 1.44269504f;

// e^x for x <= 0: 2^n e^r with |r| <= ln 2 / 2, e^r by its Taylor polynomial of degree 7. Below the smallest normal number: 0.
inline Floats exp_of_negative(Floats x) {
    constexpr float SMALLEST = -87.0f;
    Floats bounded = max(x, fill(SMALLEST));
    Floats n = multiply_add(bounded, fill(LOG2_E), fill(ROUNDS)) - ROUNDS;
    Floats r = multiply_add(n, fill(2.12194440e-4f), multiply_add(n, fill(-0.693359375f), bounded));
    Floats p = fill(1.0f / 5040);
    for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = multiply_add(p, r, fill(c));
    Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
    Floats y = p * (Floats)exponent;
    return x < SMALLEST ? Floats{} : y;
}

// 2^r for r in [0, 1] with the least largest error, 9e-5, 3e-6 and 2e-9 of it, of the polynomials that are exactly 1 at 0.
template <int DEGREE>
struct PowerFactors;
template <>
struct PowerFactors<3> {
    static constexpr float VALUES[] = {1.0f, 0.695116818f, 0.22764498f, 0.0770670548f};
};
template <>
struct PowerFactors<4> {
    static constexpr float VALUES[] = {1.0f, 0.693044841f, 0.241280213f, 0.0522424728f, 0.0134266857f};
};
template <>
struct PowerFactors<6> {
    static constexpr float VALUES[] = {1.0f, 0.693147063f, 0.240229309f, 0.0554852821f, 0.00967545155f, 0.00124678458f, 2.16129163e-4f};
};

// 2^x: 2^n 2^r, n the next whole number below, 2^r by a polynomial. Of NaN: NaN. Far below the smallest normal number: 0; from 128 on infinite, or
// elsewhere than in AVX-512 larger than 2^127.
template <int DEGREE>
inline Floats power_of_two(Floats x) {
    constexpr const float* FACTORS = PowerFactors<DEGREE>::VALUES;
#if defined(__AVX512F__)
    Floats r = (Floats)_mm512_maskz_reduce_ps(0xffff, (__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
    Floats above = min(fill(127.9f), max(fill(-126.0f), x));  // a NaN stays one
    Ints exponent = __builtin_convertvector(max(above, fill(-126.0f)) + 127.0f, Ints);  // of a NaN any, but a whole number
    Floats r = above - __builtin_convertvector(exponent - 127, Floats);
#endif
    Floats p = fill(FACTORS[DEGREE]);
    for (int term = DEGREE - 1; term >= 0; --term) p = multiply_add(p, r, fill(FACTORS[term]));
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)x);  // which takes the whole number below itself
#else
    Floats y = p * (Floats)(exponent << 23);
    return x < -126.0f ? Floats{} : y;
#endif
}

// 1 / x of numbers that are neither tiny nor huge, where a division would take most of the time: within 2^-14 of it, finer than bfloat16.
inline Floats rough_reciprocal(Floats x) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
#else
    return 1.0f / x;
#endif
}

// The same within a rounding or two.
inline Floats reciprocal(Floats x) {
#if defined(__AVX512F__)
    Floats r = rough_reciprocal(x);
    return r * -multiply_subtract(x, r, fill(2.0f));
#else
    return 1.0f / x;
#endif
}

// 2^n for a whole number n < 128; below the smallest normal number 0.
inline float whole_power_of_two(float n) { return !(n >= -126.0f) ? 0.0f : of_bits((static_cast<int32_t>(n) + 127) << 23); }

// cap tanh(x / cap), by e^-2|x / cap|.
inline Floats soft_capped(Floats v, float cap) {
    Floats x = v / cap;
    Floats size = x < 0.0f ? -x : x;
    Floats e = exp_of_negative(-2.0f * size);
    Floats capped = cap * (1.0f - e) / (1.0f + e);
    return x < 0.0f ? -capped : x >= 0.0f ? capped : x;  // what is not a number stays so
}

}  // namespace quire::QUIRE_ISA
