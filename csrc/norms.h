// Root mean squares of rows.
#pragma once

#include "vectors.h"

namespace quire::QUIRE_ISA {

// The first `count` lanes; the rest become zeros.
inline Floats first_lanes(Floats v, int count) { return lane_numbers() < count ? v : Floats{}; }

// The sum of function(v) over a row's vectors. Several sums side by side: one would wait for each addition.
template <typename T, typename Function>
inline float sum_over(const T* x, int64_t width, Function&& function) {
    constexpr int SUMS = 4;
    Floats sums[SUMS] = {};
    int64_t k = 0;
    for (; k + SUMS * LANES <= width; k += SUMS * LANES)
        for (int i = 0; i < SUMS; ++i) sums[i] += function(load(x + k + i * LANES));
    for_vectors(width - k, [&](int64_t rest, auto count) { sums[0] += first_lanes(function(load_part(x + k + rest, count)), count); });
    return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// What each value of a row is multiplied by, and then by its weight (Zhang and Sennrich 2019), where its squares add up to `squares`.
inline float rms_scale(float squares, int64_t width, float eps) { return 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps); }

template <typename T>
inline float rms_scale(const T* x, int64_t width, float eps) {
    return rms_scale(sum_over(x, width, [](Floats v) { return v * v; }), width, eps);
}

}  // namespace quire::QUIRE_ISA
