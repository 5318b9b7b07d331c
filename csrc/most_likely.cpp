// Rows are searched in parts, so that one row keeps all members busy: the one who computed a logit has it in its cache.
#include "most_likely.h"

#include <limits>

#include "kernels.h"
#include "vectors.h"

namespace quire::QUIRE_ISA {
namespace {

Largest largest_of(const float* logits, int64_t first, int64_t last) {
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

}  // namespace

void most_likely(const MostLikelyCall& call, const Team& team) {
    Largest* parts = static_cast<Largest*>(call.scratch);
    int64_t num_parts = parts_of(call.num_tokens);
    share(team, call.num_rows * num_parts, [&](int64_t item) {
        int64_t first = item % num_parts * TOKENS_A_PART;
        int64_t last = call.num_tokens - first < TOKENS_A_PART ? call.num_tokens : first + TOKENS_A_PART;
        parts[item] = largest_of(call.logits + item / num_parts * call.num_tokens, first, last);
    });
    team.wait();
    share(team, call.num_rows, [&](int64_t row) {
        const Largest* of_row = parts + row * num_parts;
        Largest found = of_row[0];
        for (int64_t part = 1; part < num_parts; ++part)
            if (exceeds(of_row[part].logit, found.logit)) found = of_row[part];
        call.token_ids[row] = found.token_id;
        call.largest[row] = found.logit;
    });
}

}  // namespace quire::QUIRE_ISA
