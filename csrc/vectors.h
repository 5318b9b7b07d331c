// One register of float32 in the compiler's own vector type: what the kernels are written in, for every instruction set.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "team.h"

// Inside the instruction set's namespace: one program holds a copy of these functions for each.
namespace quire::QUIRE_ISA {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int NUM_REGISTERS = 32;
#else
constexpr int NUM_REGISTERS = 16;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t UnsignedInts __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int16_t HalfShorts __attribute__((vector_size(2 * LANES)));
typedef int8_t QuarterBytes __attribute__((vector_size(LANES)));
typedef uint8_t UnsignedQuarterBytes __attribute__((vector_size(LANES)));

struct BFloat16 {
    uint16_t bits;
};

inline float float_of(BFloat16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }

inline Floats fill(float x) { return x - Floats{}; }  // not a sum: -0 + 0 is another number, so that would be computed

inline Floats load(const float* from) {
    Floats v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// A bfloat16 is the upper half of a float32.
inline Floats load(const BFloat16* from) {
#if defined(__AVX512F__)  // one instruction, which the compiler does not find
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
#elif defined(__AVX2__)
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)), 16);
#else
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Ints) << 16);
#endif
}

inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof v); }

#if !defined(__AVX512BF16__)
// As a bfloat16's bits, with others below them: to nearest, ties to even. A NaN stays one.
inline Ints near_bfloat16(Floats v) {
    Ints bits = (Ints)v;
    return v == v ? bits + 0x7fff + ((bits >> 16) & 1) : bits | 0x400000;
}
#endif

// Below the smallest normal number the processor's instruction gives 0.
inline void store(BFloat16* to, Floats v) {
#if defined(__AVX512BF16__)
    __m256bh halves = _mm512_cvtneps_pbh((__m512)v);
#else
    Halves halves = __builtin_convertvector(near_bfloat16(v) >> 16, Halves);
#endif
    std::memcpy(to, &halves, sizeof halves);
}

// Two vectors' neighbours at once.
inline void store(float* to, Floats first, Floats second) {
    store(to, first);
    store(to + LANES, second);
}

inline void store(BFloat16* to, Floats first, Floats second) {
#if defined(__AVX512BF16__)
    __m512bh both = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    std::memcpy(to, &both, sizeof both);
#else
    store(to, first);
    store(to + LANES, second);
#endif
}

// 1.5 * 2^23: added and subtracted, it rounds magnitudes below 2^22 to integers, for floats as large have no bits behind the point.
constexpr float ROUNDS = 12582912.0f;

// To nearest, ties to even; of magnitudes below 2^22.
inline Ints to_nearest(Floats v) {
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_cvtps_epi32(0xffff, (__m512)v);
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtps_epi32((__m256)v);
#elif defined(__aarch64__)
    return (Ints)vcvtnq_s32_f32((float32x4_t)v);
#else
    return __builtin_convertvector((v + ROUNDS) - ROUNDS, Ints);
#endif
}

// Whole numbers, to nearest.
inline void store(int16_t* to, Floats v) {
    HalfShorts shorts = __builtin_convertvector(to_nearest(v), HalfShorts);
    std::memcpy(to, &shorts, sizeof shorts);
}

inline void store(int8_t* to, Floats v) {
    QuarterBytes bytes = __builtin_convertvector(to_nearest(v), QuarterBytes);
    std::memcpy(to, &bytes, sizeof bytes);
}

// Whole numbers of two registers in one, quarter by quarter; and where four have become bytes in this way, these in their order.
#if defined(__AVX512BW__)
inline __m512i packed(Ints first, Ints second) { return _mm512_packs_epi32((__m512i)first, (__m512i)second); }

template <typename Byte>
inline void store_quarters(Byte* to, __m512i quarters) {
    const __m512i ORDER = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i bytes = _mm512_maskz_permutexvar_epi32(0xffff, ORDER, quarters);
    std::memcpy(to, &bytes, sizeof bytes);
}
#elif defined(__AVX2__)
inline __m256i packed(Ints first, Ints second) { return _mm256_packs_epi32((__m256i)first, (__m256i)second); }

template <typename Byte>
inline void store_quarters(Byte* to, __m256i quarters) {
    __m256i bytes = _mm256_permutevar8x32_epi32(quarters, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    std::memcpy(to, &bytes, sizeof bytes);
}
#endif

// Of numbers up to 255, those of four registers.
inline void store(uint8_t* to, Floats a, Floats b, Floats c, Floats d) {
#if defined(__AVX2__)
    auto both = [](Floats first, Floats second) { return packed(to_nearest(first), to_nearest(second)); };
#if defined(__AVX512BW__)
    store_quarters(to, _mm512_packus_epi16(both(a, b), both(c, d)));
#else
    store_quarters(to, _mm256_packus_epi16(both(a, b), both(c, d)));
#endif
#else
    for (Floats v : {a, b, c, d}) {
        UnsignedQuarterBytes bytes = __builtin_convertvector(to_nearest(v), UnsignedQuarterBytes);
        std::memcpy(to, &bytes, sizeof bytes);
        to += LANES;
    }
#endif
}

// `count` values or a whole vector, whichever is less; the rest are zeros.
template <typename T>
inline Floats load_part(const T* from, int count) {
    if (count >= LANES) return load(from);
    T padded[LANES] = {};
    for (int i = 0; i < count; ++i) padded[i] = from[i];
    return load(padded);
}

template <typename T>
inline void store_part(T* to, Floats v, int count) {
    if (count >= LANES) return store(to, v);
    T padded[LANES];
    store(padded, v);
    for (int i = 0; i < count; ++i) to[i] = padded[i];
}

// `count` values times `factor`, whole numbers of up to 127.
template <typename T>
inline void store_codes(int8_t* to, const T* from, int count, float factor) {
    int i = 0;
#if defined(__AVX512BW__)
    if constexpr (sizeof(T) == 2) {
        // Each lane's two values become the lower and the upper byte of its lower half.
        auto codes = [&](const T* pairs) {
            Ints bits = (Ints)_mm512_loadu_si512(pairs);
            return ((to_nearest((Floats)(bits << 16) * factor) & 0xff) | (to_nearest((Floats)(bits & ~0xffff) * factor) << 8)) & 0xffff;
        };
        const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
        for (; i + 4 * LANES <= count; i += 4 * LANES) {
            __m512i quarters = _mm512_packus_epi32((__m512i)codes(from + i), (__m512i)codes(from + i + 2 * LANES));
            _mm512_storeu_si512(to + i, _mm512_maskz_permutexvar_epi64(0xff, order, quarters));
        }
    }
#endif
    for (; i < count; i += LANES) store_part(to + i, load_part(from + i, count - i) * factor, count - i);
}

// function(k, count) for the vectors of `width` values from k on. `count` is a constant but for the last ones, where it is less.
template <typename Function>
inline void for_vectors(int64_t width, Function&& function) {
    int64_t k = 0;
    for (; k + LANES <= width; k += LANES) function(k, std::integral_constant<int, LANES>());
    if (k < width) function(k, static_cast<int>(width - k));
}

// As it would be stored and read again.
template <typename T>
inline Floats rounded_to(Floats v) {
#if !defined(__AVX512BF16__)
    if constexpr (sizeof(T) == 2) return (Floats)(near_bfloat16(v) & ~0xffff);
#endif
    T stored[LANES];
    store(stored, v);
    return load(stored);
}

// `b` where one is no number. On x86 that is one instruction, which the compiler does not see in a comparison and a choice.
#if defined(__AVX512F__)
inline Floats max(Floats a, Floats b) { return (Floats)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }
inline Floats min(Floats a, Floats b) { return (Floats)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b); }
#elif defined(__AVX2__)
inline Floats max(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
inline Floats min(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
#else
inline Floats max(Floats a, Floats b) { return a > b ? a : b; }
inline Floats min(Floats a, Floats b) { return a < b ? a : b; }
#endif
inline Ints max(Ints a, Ints b) { return a > b ? a : b; }
inline UnsignedInts max(UnsignedInts a, UnsignedInts b) { return a > b ? a : b; }
inline Ints min(Ints a, Ints b) { return a < b ? a : b; }

inline Ints lane_numbers() {
    Ints lanes;
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = lane;
    return lanes;
}

template <typename T>
T largest(T a, T b) {
    return a > b ? a : b;
}
template <typename T>
T smallest(T a, T b) {
    return a < b ? a : b;
}

template <std::size_t FIRST, typename Vector, std::size_t... LANE>
inline auto lanes_from(Vector v, std::index_sequence<LANE...>) { return __builtin_shufflevector(v, v, (FIRST + LANE)...); }

// What `both` makes of all lanes: of the halves, of what that makes, and so on. Narrow vectors are folded sooner than wide ones.
template <int COUNT = LANES, typename Vector, typename Both>
inline auto folded(Vector v, Both&& both) {
    if constexpr (COUNT == 1) {
        return v[0];
    } else if constexpr (COUNT > 4) {
        constexpr auto HALF = std::make_index_sequence<COUNT / 2>();
        return folded<COUNT / 2>(both(lanes_from<0>(v, HALF), lanes_from<COUNT / 2>(v, HALF)), both);
    } else {
        return folded<COUNT / 2>(both(v, __builtin_shufflevector(v, v, COUNT / 2, (1 + COUNT / 2) % 4, (2 + COUNT / 2) % 4, (3 + COUNT / 2) % 4)), both);
    }
}

template <typename Vector>
inline auto max_of(Vector v) {
    return folded(v, [](auto a, auto b) { return a > b ? a : b; });
}

template <typename Vector>
inline auto sum_of(Vector v) {
    return folded(v, [](auto a, auto b) { return a + b; });
}

// As integers the bits of magnitudes have the numbers' order, and those of a NaN are the largest.
inline Ints magnitude_bits(Floats v) { return (Ints)v & 0x7fffffff; }
constexpr int32_t INFINITE = 0x7f800000;  // of what is no finite number those are as many or more

inline float of_bits(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Of `count` values; NaN where there is one.
template <typename T>
inline float largest_magnitude(const T* from, int count) {
    Ints most = {};
    for (int i = 0; i < count; i += LANES) most = max(most, magnitude_bits(load_part(from + i, count - i)));
    return of_bits(max_of(most));
}

#if defined(__AVX512BW__)
// A bfloat16's bits without its sign have that order too: 32 at a time, and the last eight are one instruction's.
inline float largest_magnitude(const BFloat16* from, int count) {
    const __m512i sizes = _mm512_set1_epi16(0x7fff);
    __m512i most = _mm512_setzero_si512();
    int i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) most = _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(from + i), sizes));
    if (i < count) {
        BFloat16 rest[2 * LANES] = {};
        for (int r = 0; i < count; ++i, ++r) rest[r] = from[i];
        most = _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(rest), sizes));
    }
    __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
    __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));
    return of_bits((~_mm_cvtsi128_si32(least) & 0xffff) << 16);
}
#endif

// The largest of each of LANES registers' lanes, in the lanes of one.
template <int STEP, typename Vector, std::size_t... LANE>
inline Vector merge_largest(Vector first, Vector second, std::index_sequence<LANE...>) {
    return max(__builtin_shufflevector(first, second, ((LANE & STEP) ? LANES + LANE : LANE)...),
               __builtin_shufflevector(first, second, ((LANE & STEP) ? LANES + (LANE ^ STEP) : LANE ^ STEP)...));
}

template <int STEP = 1, typename Vector>
inline Vector max_of_each(Vector (&v)[LANES]) {
    if constexpr (STEP == LANES) return v[0];
    else {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i += 2 * STEP) v[i] = merge_largest<STEP>(v[i], v[i + STEP], std::make_index_sequence<LANES>());
        return max_of_each<2 * STEP>(v);
    }
}

// a * b + c and a * b - c, with the same roundings wherever they are used: one where every processor of the instruction set has that. What is
// written with operators is rounded after each; in portable code and by Clang as -ffp-contract says (CMakeLists.txt).
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
inline Floats multiply_subtract(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmsub_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmsub_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)-c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b - c;
#endif
}

inline bool any(Ints v) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)v, (__m256i)v);
#elif defined(__aarch64__)
    return vmaxvq_u32((uint32x4_t)v) != 0;
#else
    return max_of((Ints)(v != 0) & 1) != 0;
#endif
}

inline bool any_above(Floats v, float bound) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)v, (__m512)fill(bound), _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, (__m256)fill(bound), _CMP_GT_OQ)) != 0;
#elif defined(__aarch64__)
    return vmaxvq_u32(vcgtq_f32((float32x4_t)v, (float32x4_t)fill(bound))) != 0;
#else
    return max_of((Ints)(v > bound) & 1) != 0;
#endif
}

template <int STEP, std::size_t... LANE>
inline void exchange(Floats& upper, Floats& lower, std::index_sequence<LANE...>) {
    Floats mixed = __builtin_shufflevector(upper, lower, ((LANE & STEP) ? LANES + LANE - STEP : LANE)...);
    lower = __builtin_shufflevector(upper, lower, ((LANE & STEP) ? LANES + LANE : LANE + STEP)...);
    upper = mixed;
}

// Row i's lane j becomes row j's lane i: blocks of 1, 2, 4, ... lanes change places between pairs of rows.
template <int STEP = 1>
inline void transpose(Floats (&rows)[LANES]) {
    if constexpr (STEP < LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            if (!(i & STEP)) exchange<STEP>(rows[i], rows[i + STEP], std::make_index_sequence<LANES>());
        transpose<2 * STEP>(rows);
    }
}

constexpr int CACHE_LINE = 64;

constexpr int FIRST_CACHE = 3, SECOND_CACHE = 2;  // as __builtin_prefetch has them

// Asks for memory that is needed soon, and for the second cache: the first has few places for lines on their way, and those
// that are filled ahead keep the loads of the moment waiting (docs/lab.md; first_cache.h has where not).
template <int CACHE = SECOND_CACHE>
inline void prefetch(const void* from) { __builtin_prefetch(from, 0, CACHE); }

// Each of `count` numbers to one member of the team: neighbours to the same one.
template <typename Function>
inline void share(const Team& team, int64_t count, Function&& function) {
    int64_t last = count * (team.thread + 1) / team.size;
    for (int64_t i = count * team.thread / team.size; i < last; ++i) function(i);
}

// Each of `count` numbers to one member of the team, up to `grain` neighbours at a time: to each those of its own share in their
// order, then of another's while it has at least so many left. For work that takes long enough for members to differ in speed.
template <typename Function>
inline void hand_out(const Team& team, int64_t count, int64_t grain, Function&& function, int64_t fewest_of_others = 1) {
    auto take = [&] { return team.take(count, grain, fewest_of_others); };
    for (Slice slice = take(); slice.first < slice.last; slice = take())
        for (int64_t i = slice.first; i < slice.last; ++i) function(i);
}

// Memory for vectors. A type of this instruction set's own, so that no other one's file shares std::vector's code for it.
struct alignas(64) Line {
    float lanes[16];
};

inline std::size_t num_lines(std::size_t num_floats) { return (num_floats + 15) / 16; }

}  // namespace quire::QUIRE_ISA
