// What a cache holds, as attention meets it: numbers, or codes of 8 bits with a scale for each token and head.
//
// Where it holds codes, a query and the weights of a chunk's keys become whole numbers too, each under a scale of its own, and their
// products with codes are summed exactly: numbers of 16 bits, finer than bfloat16, or of 8 bits where the processor multiplies
// bytes. K's scales multiply the scores, V's the weights.
#pragma once

#include "attention_items.h"
#include "units.h"

namespace quire::QUIRE_ISA {

constexpr int GROUPS = KEYS / LANES;  // registers that hold a number of each of a chunk's keys

typedef uint16_t UnsignedShorts __attribute__((vector_size(4 * LANES)));

constexpr float LARGEST_CODE = 127, LARGEST_SHORT = 32767, LARGEST_BYTE = 255;

// What so many codes may be multiplied by, each, for the sum to be an int32.
inline float largest_factor(int count) {
    float factor = 2147483647.0f / (LARGEST_CODE * static_cast<float>(count + 1));
    return factor < LARGEST_SHORT ? static_cast<float>(static_cast<int>(factor)) : LARGEST_SHORT;
}

// By what values up to `magnitude` become whole numbers up to `largest`.
inline float to_whole(float magnitude, float largest) { return magnitude > LEAST_SCALE ? largest / magnitude : 0.0f; }

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
    static constexpr int WORDS = 1;  // of a query or of weights, for each unit
    static constexpr int WEIGHT_DEGREE = DEGREE;
    static constexpr bool HAS_SCALES = false;     // of the cache
    static constexpr bool MAY_FILL_FIRST_CACHE = false;  // with what is asked for
    static constexpr bool WHOLE_WEIGHTS = false;  // and not floats

    // What a word meets.
    template <int WORD>
    static Ints read(const Unit* from) { return load_units(from); }
    template <int WORD>
    static Ints read(const Unit* from, int count) { return load_units(from, count); }
    static Sums add_to_scores(Sums sums, Ints keys, int32_t query) { return Number::add_products(sums, keys, query); }
    static Sums add_to_output(Sums sums, Ints values, int32_t weights) { return Number::add_products(sums, values, weights); }

    // What the cache keeps of `count` values; `room` is for as many. Sets the scale.
    static const Stored* stored(const Value* from, int, Stored*, BFloat16&) { return from; }

    // A query as units. Returns its scale.
    static float put_query(const Value* from, int count, int32_t* to) {
        std::memcpy(to, from, count * sizeof(Value));
        return 1.0f;
    }
    // What a query's scores are sums from.
    static int32_t first_score(const int32_t*, int) { return 0; }
    static Sums first_scores(int32_t) { return Sums{}; }
    static Floats score(Sums sums, float, const float*) { return sums; }

    // A chunk's weights as units. Returns their scale.
    static float put_weights(const Floats (&weights)[GROUPS], const ValueScales&, Seen, float* to) {
        for (int group = 0; group < GROUPS; group += 2) store(reinterpret_cast<Value*>(to) + group * LANES, weights[group], weights[group + 1]);
        return 1.0f;
    }
    static Sums first_sums(const float* output) { return load(output); }
    static Floats last_sums(Sums sums, const float*, float) { return sums; }
};

// Four codes a unit. `Query` is float or BFloat16.
template <typename Query>
struct KVCodes {
    using Value = Query;
    using Stored = int8_t;
    using Unit = int32_t;
    using Sums = Ints;
    static constexpr int PER_UNIT = 4;
    static constexpr int WORDS = 2;
    static constexpr int WEIGHT_DEGREE = 4;
    static constexpr bool HAS_SCALES = true;
    static constexpr bool MAY_FILL_FIRST_CACHE = false;
    static constexpr bool WHOLE_WEIGHTS = true;

    // A unit's first and third code as two int16, or its second and fourth.
    template <int WORD>
    static Ints read(const Unit* from) { return pair<WORD>(load_units(from)); }
    template <int WORD>
    static Ints read(const Unit* from, int count) { return pair<WORD>(load_units(from, count)); }
    template <int WORD>
    static Ints pair(Ints codes) {
        if constexpr (WORD == 0) return (Ints)((Shorts)((UnsignedShorts)codes << 8) >> 8);
        else return (Ints)((Shorts)codes >> 8);
    }
    // The same order for what they meet, of whole units.
    static void put_in_pairs(int count, int32_t* words) {
        for (int i = 0; i < count; i += WORDS) {
            auto first = static_cast<uint32_t>(words[i]), second = static_cast<uint32_t>(words[i + 1]);
            words[i] = static_cast<int32_t>((first & 0xffff) | (second << 16));
            words[i + 1] = static_cast<int32_t>((first >> 16) | (second & 0xffff0000));
        }
    }
    static Sums add_to_scores(Sums sums, Ints keys, int32_t query) { return add_products(sums, keys, query); }
    static Sums add_to_output(Sums sums, Ints values, int32_t weights) { return add_products(sums, values, weights); }
    static Sums add_products(Sums sums, Ints many, int32_t one) {
        Ints both = Ints{} + one;
#if defined(QUIRE_VNNI)
        return add_products_of_shorts(sums, many, both);
#elif defined(__AVX512BW__)
        return sums + (Ints)_mm512_madd_epi16((__m512i)many, (__m512i)both);
#elif defined(__AVX2__)
        return sums + (Ints)_mm256_madd_epi16((__m256i)many, (__m256i)both);
#elif defined(__aarch64__)
        int16x8_t a = (int16x8_t)many, b = (int16x8_t)both;
        return sums + (Ints)vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
#else
        sums += ((many << 16) >> 16) * ((both << 16) >> 16);
        return sums + (many >> 16) * (both >> 16);
#endif
    }

    static const Stored* stored(const Value* from, int count, Stored* room, BFloat16& scale) {
        scale = scale_for(largest_magnitude(from, count));
        store_codes(room, from, count, to_whole(float_of(scale), 1.0f));
        return room;
    }
    // The least number of 16 bits that leaves no code above the largest one. A NaN stays one.
    static BFloat16 scale_for(float magnitude) {
        float least = magnitude / LARGEST_CODE;
        uint32_t bits;
        std::memcpy(&bits, &least, sizeof bits);
        return {static_cast<uint16_t>(least == least ? (bits + 0xffff) >> 16 : 0x7fc0)};
    }

    static float put_query(const Value* from, int count, int32_t* to) {
        float magnitude = largest_magnitude(from, count), largest = largest_factor(count), factor = to_whole(magnitude, largest);
        for (int d = 0; d < count; d += LANES)
            store_part(reinterpret_cast<int16_t*>(to) + d, load_part(from + d, count - d) * factor, count - d);
        put_in_pairs((count + PER_UNIT - 1) / PER_UNIT * WORDS, to);
        return magnitude / largest;
    }
    static int32_t first_score(const int32_t*, int) { return 0; }
    static Sums first_scores(int32_t first) { return Sums{} + first; }
    static Floats score(Sums sums, float query_scale, const float* key_scales) {
        return __builtin_convertvector(sums, Floats) * query_scale * load(key_scales);
    }

    static float put_weights(const Floats (&weights)[GROUPS], const ValueScales& value_scales, Seen seen, float* to) {
        float own[KEYS];
        const float* factors = seen.all() ? value_scales.factors : own;
        float scale = seen.all() ? value_scales.scale : value_scales.put_factors(seen, own);
        for (int group = 0; group < GROUPS; ++group)
            store(reinterpret_cast<int16_t*>(to) + group * LANES, weights[group] * load(factors + group * LANES));
        put_in_pairs(KEYS / PER_UNIT * WORDS, reinterpret_cast<int32_t*>(to));
        return scale;
    }
    static Sums first_sums(const float*) { return Sums{}; }
    static Floats last_sums(Sums sums, const float* output, float weight_scale) {
        return multiply_add(__builtin_convertvector(sums, Floats), fill(weight_scale), load(output));
    }
};

// A query of more dimensions has two parts: with one Gemma's perplexity is a third of a percent larger, SmolLM2's the same.
constexpr int MOST_OF_ONE_PART = 64;

// A chunk's weights times the values' scales, and of each lane the largest one's bits: as unsigned numbers they have the order of the
// weights, none of which is negative, and those of a NaN are the largest.
struct ScaledWeights {
    Floats weights[GROUPS];
    UnsignedInts most;

    ScaledWeights(const Floats (&unscaled)[GROUPS], const ValueScales& value_scales, Seen seen) : most{} {
        for (int group = 0; group < GROUPS; ++group) weights[group] = unscaled[group] * load(value_scales.scales + group * LANES);
        if (!seen.all())
            for (int group = 0; group < GROUPS; ++group) weights[group] = seen.holds(group) ? weights[group] : Floats{};
        for (int group = 0; group < GROUPS; ++group) most = max(most, (UnsignedInts)weights[group]);
    }
};

// Codes that are multiplied by a query's codes, and by scaled weights as bytes. Of two PARTS the second has a query's codes of what
// the first leaves, each a 256th of the first's.
template <int PARTS>
struct CodesByCodes : KVCodes<BFloat16> {
    static constexpr int WORDS = PARTS;
    static constexpr int WEIGHT_DEGREE = 3;
    static constexpr bool WHOLE_WEIGHTS = false;

    // `count` is whole units; part by part.
    static float put_query(const BFloat16* from, int count, int32_t* to) {
        constexpr int STEPS = PARTS == 1 ? 1 : 256;
        auto* codes = reinterpret_cast<int8_t*>(to);
        float magnitude = largest_magnitude(from, count), factor = to_whole(magnitude, LARGEST_CODE * STEPS);
        if constexpr (PARTS == 1) {
            store_codes(codes, from, count, factor);
        } else {
            for (int d = 0; d < count; d += LANES) {
                Ints whole = to_nearest(load_part(from + d, count - d) * factor), first = (whole + STEPS / 2) >> 8;
                store_whole(codes + d, first, count - d);
                store_whole(codes + count + d, whole - first * STEPS, count - d);
            }
        }
        return magnitude / (LARGEST_CODE * STEPS);
    }
    static void store_whole(int8_t* to, Ints whole, int count) {
        QuarterBytes codes = __builtin_convertvector(whole, QuarterBytes);
        if (count >= LANES) std::memcpy(to, &codes, LANES);  // of a fixed size it is no call
        else std::memcpy(to, &codes, count);
    }
};

// As tiles multiply them (attention_code_tiles.cpp), where weights become bytes for many queries at a time.
template <int PARTS>
struct CodesInTiles : CodesByCodes<PARTS> {
    struct Place {
        float* weights;  // [KEYS]
        uint32_t* most;  // [LANES]
    };

    static float put_weights(const Floats (&weights)[GROUPS], const ValueScales& value_scales, Seen seen, Place to) {
        ScaledWeights scaled(weights, value_scales, seen);
        for (int group = 0; group < GROUPS; ++group) store(to.weights + group * LANES, scaled.weights[group]);
        std::memcpy(to.most, &scaled.most, sizeof scaled.most);
        return 1.0f;
    }
};

#if defined(QUIRE_VNNI)
// As registers multiply them, bytes without a sign by bytes with one. Keys are raised to have none, by what a query's scores are then
// sums from.
struct CodesInRegisters : CodesByCodes<1> {
    static constexpr uint8_t RAISED = 128;

    template <int>
    static Ints read(const Unit* from) { return load_units(from); }
    template <int>
    static Ints read(const Unit* from, int count) { return load_units(from, count); }
    static int32_t first_score(const int32_t* query, int num_words) {
        int32_t sum = 0;
        for (int i = 0; i < num_words * PER_UNIT; ++i) sum += reinterpret_cast<const int8_t*>(query)[i];
        return -RAISED * sum;
    }
    static Sums add_to_scores(Sums sums, Ints keys, int32_t query) {
        return add_products_of_bytes(sums, (Ints)((Bytes)keys ^ RAISED), Ints{} + query);
    }
    static Sums add_to_output(Sums sums, Ints values, int32_t weights) {
        return add_products_of_bytes(sums, Ints{} + weights, values);
    }
    static float put_weights(const Floats (&weights)[GROUPS], const ValueScales& value_scales, Seen seen, float* to) {
        ScaledWeights scaled(weights, value_scales, seen);
        float magnitude = of_bits(static_cast<int32_t>(max_of(scaled.most))), factor = to_whole(magnitude, LARGEST_BYTE);
        for (int group = 0; group < GROUPS; group += 4) {
            const Floats* w = scaled.weights + group;
            store(reinterpret_cast<uint8_t*>(to) + group * LANES, w[0] * factor, w[1] * factor, w[2] * factor, w[3] * factor);
        }
        return magnitude / LARGEST_BYTE;
    }
};
#endif

using InFloat32 = KVNumbers<Float32, 6>;
using InBFloat16 = KVNumbers<PairOfBFloat16, 3>;  // whose rounding is 2^-9

// The same for processors that do not multiply bfloat16: what meets many becomes float32 once.
struct WidenedBFloat16 : InBFloat16 {
    static constexpr int WORDS = 2;

    template <int WORD>
    static Ints read(const Unit* from) { return widened<WORD>(load_units(from)); }
    template <int WORD>
    static Ints read(const Unit* from, int count) { return widened<WORD>(load_units(from, count)); }
    template <int WORD>
    static Ints widened(Ints pairs) { return WORD == 0 ? pairs << 16 : pairs & ~0xffff; }
    static Sums add_to_scores(Sums sums, Ints keys, int32_t query) { return multiply_add((Floats)keys, fill(of_bits(query)), sums); }
    static Sums add_to_output(Sums sums, Ints values, int32_t weights) { return multiply_add((Floats)values, fill(of_bits(weights)), sums); }

    static float put_query(const Value* from, int count, int32_t* to) {
        for (int d = 0; d < count; d += LANES) store_part(reinterpret_cast<float*>(to) + d, load_part(from + d, count - d), count - d);
        return 1.0f;
    }
    static float put_weights(const Floats (&weights)[GROUPS], const ValueScales&, Seen, float* to) {
        for (int group = 0; group < GROUPS; ++group) store(to + group * LANES, rounded_to<Value>(weights[group]));
        return 1.0f;
    }
};

}  // namespace quire::QUIRE_ISA
