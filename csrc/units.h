// Numbers that are multiplied together: one float32, or two bfloat16, in the 32 bits of a lane.
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
    int32_t padded[LANES] = {};
    std::memcpy(padded, from, sizeof(int32_t) * count);
    return load_units(padded);
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

}  // namespace quire::QUIRE_ISA
