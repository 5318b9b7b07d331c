// The codes and scales of a quantized weight's panels (quantized.h), in registers.
#pragma once

#include "linear_rows.h"
#include "units.h"

namespace quire::QUIRE_ISA {

// float16 numbers that are finite, as checkpoints' are.
inline Floats load_half(const uint8_t* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#elif defined(__aarch64__)
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
#else
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    Ints bits = __builtin_convertvector(halves, Ints);
    // Exponent and fraction in a float32's places, then 2^112 for the exponents' different zero points.
    Floats magnitude = (Floats)((bits & 0x7fff) << 13) * 5.192296858534828e33f;
    return (Floats)((Ints)magnitude | (bits & 0x8000) << 16);
#endif
}

// Small integers.
inline Floats load_small(const uint8_t* from) {
#if defined(__AVX512F__)  // one instruction, which the compiler does not find
    Ints whole = (Ints)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
    Ints whole = (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
    QuarterBytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    Ints whole = __builtin_convertvector(bytes, Ints);
#endif
    return __builtin_convertvector(whole, Floats);
}

// By what stored codes are larger than those that are multiplied: where bytes are signed, codes of 8 bits.
#if defined(QUIRE_SIGNED_BYTES)
template <int BITS>
constexpr int RAISED = BITS == 8 ? 128 : 0;
#else
template <int BITS>
constexpr int RAISED = 0;
#endif

// The codes of two units of a group.
template <int BITS>
inline void load_pair(const uint8_t* from, int pair, int part, Bytes& first, Bytes& second) {
    if constexpr (BITS == 4) {
        Bytes both = load_bytes(from + UNIT * (pair * PANEL + part * LANES));
        first = both & 0x0f;
        second = (Bytes)((Shorts)both >> 4) & 0x0f;
    } else {
        first = load_bytes(from + UNIT * (2 * pair * PANEL + part * LANES)) ^ RAISED<8>;
        second = load_bytes(from + UNIT * ((2 * pair + 1) * PANEL + part * LANES)) ^ RAISED<8>;
    }
}

}  // namespace quire::QUIRE_ISA
