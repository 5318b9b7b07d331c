// What a cache holds, as attention meets it: numbers, or codes of 8 bits with a scale for each token and head.
//
// Where it holds codes, a query and the weights of a chunk's keys are rounded to 16 bits, each under a scale of its own: finer
// than bfloat16, and their products with codes are summed exactly. K's scales multiply the scores, V's the weights.
#pragma once

#include <cmath>

#include "attention_items.h"
#include "units.h"

namespace quire::QUIRE_ISA {

constexpr int GROUPS = KEYS / LANES;  // registers that hold a number of each of a chunk's keys

typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(2 * LANES)));

constexpr float LARGEST_CODE = 127, LARGEST_SHORT = 32767;

// What so many codes may be multiplied by, each, for the sum to be an int32.
inline float largest_factor(int count) {
    float factor = 2147483647.0f / (LARGEST_CODE * static_cast<float>(count + 1));
    return factor < LARGEST_SHORT ? static_cast<float>(static_cast<int>(factor)) : LARGEST_SHORT;
}

// By what values up to `magnitude` become whole numbers up to `largest`. Magnitudes this small count as nothing.
inline float to_whole(float magnitude, float largest) { return magnitude > 1e-30f ? largest / magnitude : 0.0f; }

// Of a chunk's keys a query sees those from `oldest` to `newest`.
struct Seen {
    int oldest, newest;

    bool all() const { return oldest == 0 && newest >= KEYS - 1; }
    Ints holds(int group) const {
        Ints key = lane_numbers() + group * LANES;
        return (key >= oldest) & (key <= newest);
    }
};

// What a chunk's values have to be multiplied by, where they are codes. Weights up to 1 times `factors` are up to LARGEST_SHORT, and
// these times `scale` are the weights times the values' scales.
struct ValueScales {
    float scales[KEYS];   // of keys that no query sees, anything
    float factors[KEYS];  // for queries that see all of the keys
    float scale;

    void prepare() { scale = put_factors({0, KEYS}, factors); }

    float put_factors(Seen seen, float* to) const {
        Ints most = {};
        Floats own[GROUPS];
        for (int group = 0; group < GROUPS; ++group) {
            own[group] = seen.holds(group) ? load(scales + group * LANES) : Floats{};
            most = max(most, magnitude_bits(own[group]));
        }
        float magnitude = of_bits(max_of(most)), factor = to_whole(magnitude, LARGEST_SHORT);
        for (int group = 0; group < GROUPS; ++group) store(to + group * LANES, own[group] * factor);
        return magnitude / LARGEST_SHORT;
    }
};

// `Number` is Float32 or PairOfBFloat16; a weight has a polynomial of this `DEGREE` (power_of_two).
template <typename Number, int DEGREE>
struct KVNumbers {
    using Value = typename Number::Value;   // of queries and outputs
    using Stored = typename Number::Value;  // of the cache
    using Unit = int32_t;
    using Sums = Floats;
    static constexpr int PER_UNIT = Number::PER_UNIT;
    static constexpr int WEIGHT_DEGREE = DEGREE;
    static constexpr bool HAS_SCALES = false;     // of the cache
    static constexpr bool WHOLE_WEIGHTS = false;  // and not floats

    static Ints read(const Unit* from) { return load_units(from); }
    static Ints read(const Unit* from, int count) { return load_units(from, count); }
    static Sums add_products(Sums sums, Ints many, int32_t one) { return Number::add_products(sums, many, one); }

    // What the cache keeps of `count` values; `room` is for as many. Sets the scale.
    static const Stored* stored(const Value* from, int, Stored*, float&) { return from; }

    // A query as units. Returns its scale.
    static float put_query(const Value* from, int count, int32_t* to) {
        std::memcpy(to, from, count * sizeof(Value));
        return 1.0f;
    }
    static Floats score(Sums sums, float, const float*) { return sums; }

    // A chunk's weights as units. Returns their scale.
    static float put_weights(const Floats (&weights)[GROUPS], const ValueScales&, Seen, float* to) {
        for (int group = 0; group < GROUPS; group += 2) store(reinterpret_cast<Value*>(to) + group * LANES, weights[group], weights[group + 1]);
        return 1.0f;
    }
    static Sums first_sums(const float* output) { return load(output); }
    static Floats last_sums(Sums sums, const float*, float) { return sums; }
};

// `Query` is float or BFloat16.
template <typename Query>
struct KVCodes {
    using Value = Query;
    using Stored = int8_t;
    using Unit = int16_t;
    using Sums = Ints;
    static constexpr int PER_UNIT = 2;
    static constexpr int WEIGHT_DEGREE = 4;
    static constexpr bool HAS_SCALES = true;
    static constexpr bool WHOLE_WEIGHTS = true;

    // Two codes a lane become two int16.
    static Ints read(const Unit* from) {
#if defined(__AVX512BW__)
        return (Ints)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
        return (Ints)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
#else
        Bytes bytes;
        std::memcpy(&bytes, from, sizeof bytes);
        return (Ints)__builtin_convertvector(bytes, Shorts);
#endif
    }
    static Ints read(const Unit* from, int count) {
        if (count >= LANES) return read(from);
        Unit padded[LANES] = {};
        std::memcpy(padded, from, sizeof(Unit) * count);
        return read(padded);
    }
    static Sums add_products(Sums sums, Ints many, int32_t one) {
        Ints both = Ints{} + one;
#if defined(__AVX512VNNI__)
        return (Ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)many, (__m512i)both);
#elif defined(__AVX512BW__)
        return sums + (Ints)_mm512_madd_epi16((__m512i)many, (__m512i)both);
#elif defined(__AVX2__)
        return sums + (Ints)_mm256_madd_epi16((__m256i)many, (__m256i)both);
#else
        sums += ((many << 16) >> 16) * ((both << 16) >> 16);
        return sums + (many >> 16) * (both >> 16);
#endif
    }

    static const Stored* stored(const Value* from, int count, Stored* room, float& scale) {
        float magnitude = largest_magnitude(from, count), factor = to_whole(magnitude, LARGEST_CODE);
        for (int d = 0; d < count; d += LANES) store_part(room + d, load_part(from + d, count - d) * factor, count - d);
        scale = magnitude / LARGEST_CODE;
        return room;
    }

    static float put_query(const Value* from, int count, int32_t* to) {
        float magnitude = largest_magnitude(from, count), largest = largest_factor(count), factor = to_whole(magnitude, largest);
        for (int d = 0; d < count; d += LANES)
            store_part(reinterpret_cast<int16_t*>(to) + d, load_part(from + d, count - d) * factor, count - d);
        return magnitude / largest;
    }
    static Floats score(Sums sums, float query_scale, const float* key_scales) {
        return __builtin_convertvector(sums, Floats) * query_scale * load(key_scales);
    }

    static float put_weights(const Floats (&weights)[GROUPS], const ValueScales& value_scales, Seen seen, float* to) {
        float own[KEYS];
        const float* factors = seen.all() ? value_scales.factors : own;
        float scale = seen.all() ? value_scales.scale : value_scales.put_factors(seen, own);
        for (int group = 0; group < GROUPS; ++group)
            store(reinterpret_cast<int16_t*>(to) + group * LANES, weights[group] * load(factors + group * LANES));
        return scale;
    }
    static Sums first_sums(const float*) { return Sums{}; }
    static Floats last_sums(Sums sums, const float* output, float weight_scale) {
        return load(output) + __builtin_convertvector(sums, Floats) * weight_scale;
    }
};

// Codes that become bfloat16, which loses nothing, where they meet queries and weights of bfloat16 (attention_tiles.cpp).
struct CodesAsBFloat16 : KVCodes<BFloat16> {
    static constexpr int WEIGHT_DEGREE = 3;
    static constexpr bool WHOLE_WEIGHTS = false;

    static float put_query(const BFloat16* from, int count, int32_t* to) {
        std::memcpy(to, from, count * sizeof(BFloat16));
        return 1.0f;
    }
    // Times the values' scales. That of a key which is not seen may be no number.
    static float put_weights(const Floats (&weights)[GROUPS], const ValueScales& value_scales, Seen seen, float* to) {
        auto scaled = [&](int group) {
            Floats weight = weights[group] * load(value_scales.scales + group * LANES);
            return seen.holds(group) ? weight : Floats{};
        };
        for (int group = 0; group < GROUPS; group += 2) store(reinterpret_cast<BFloat16*>(to) + group * LANES, scaled(group), scaled(group + 1));
        return 1.0f;
    }
};

using InFloat32 = KVNumbers<Float32, 6>;
using InBFloat16 = KVNumbers<PairOfBFloat16, 3>;  // whose rounding is 2^-9

}  // namespace quire::QUIRE_ISA
