// The largest of a row of logits.
#pragma once

#include <limits>

#include "most_likely.h"
#include "vectors.h"

namespace quire::QUIRE_ISA {

// Of tokens [first, last), of which there is one at least.
inline Largest largest_logit(const float* logits, int64_t first, int64_t last) {
    constexpr float LEAST = -std::numeric_limits<float>::infinity();
    Floats best = fill(LEAST);
    Ints step = {}, best_step = {}, odd = {};
    int64_t whole = first + (last - first) / LANES * LANES;
    for (int64_t i = first; i < whole; i += LANES, step += 1) {
        Floats v = load(logits + i);
        Ints better = v > best;
        odd |= v != v;
        best = better ? v : best;
        best_step = better ? step : best_step;
    }
    bool has_odd = false;
    for (int lane = 0; lane < LANES; ++lane) has_odd |= odd[lane] != 0;
    Largest found = {logits[first], first};
    if (has_odd) {
        for (int64_t i = first; i < last; ++i)
            if (exceeds(logits[i], found.logit)) found = {logits[i], i};
        return found;
    }
    for (int lane = 0; lane < LANES; ++lane) {
        int64_t i = first + best_step[lane] * int64_t{LANES} + lane;
        if (i < whole && (best[lane] > found.logit || (best[lane] == found.logit && i < found.token_id)))
            found = {best[lane], i};
    }
    for (int64_t i = whole; i < last; ++i)
        if (exceeds(logits[i], found.logit)) found = {logits[i], i};
    return found;
}

}  // namespace quire::QUIRE_ISA
