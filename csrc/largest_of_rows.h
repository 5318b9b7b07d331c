// The largest result of each row of a linear layer, instead of all: what the most likely tokens are found by.
#pragma once

#include <limits>

#include "linear.h"
#include "most_likely.h"
#include "vectors.h"

namespace quire::QUIRE_ISA {

// Of one row, as far as one member has come: for each place in a panel the largest result there, and of which panel it is. Of several that
// are equal the first panel's; a value that is not a number is larger than all others, and equal to its like.
struct alignas(64) LargestOfRow {
    float results[PANEL];
    int32_t panels[PANEL];

    void begin() {
        for (float& result : results) result = -std::numeric_limits<float>::infinity();
        std::memset(panels, 0, sizeof panels);
    }

    // Results of LANES outputs from `first` on of a panel, of which `count` are there. In any order of panels.
    [[gnu::always_inline]] void take(Floats v, Ints panel, int first = 0, int count = LANES) {
        Floats most = load(results + first);
        Ints its, odd = v != v, most_odd = most != most;
        std::memcpy(&its, panels + first, sizeof its);
        Ints same = (v == most) | (odd & most_odd);
        Ints better = (v > most) | (odd & ~most_odd) | (same & (panel < its));
        if (count < LANES) better &= lane_numbers() < count;
        store(results + first, better ? v : most);
        its = better ? panel : its;
        std::memcpy(panels + first, &its, sizeof its);
    }

    Largest found() const {
        Largest best = {results[0], int64_t{panels[0]} * PANEL};
        for (int n = 1; n < PANEL; ++n) {
            Largest other = {results[n], int64_t{panels[n]} * PANEL + n};
            if (is_more_likely(other, best)) best = other;
        }
        return best;
    }
};

static_assert(sizeof(LargestOfRow) == LARGEST_OF_ROW_BYTES);

// What a member writes to: its own part of the memory for all.
inline LargestOfRow* largest_of_member(const MostLikelyCall& call, int member) {
    return static_cast<LargestOfRow*>(call.scratch) + member * call.num_rows;
}

// function(rows): a linear layer whose results go where they say. Then the largest of each row, by all members.
template <typename Function>
void find_largest(const MostLikelyCall& call, LinearRows rows, const Team& team, Function&& linear) {
    LargestOfRow* own = largest_of_member(call, team.thread);
    for (int64_t row = 0; row < call.num_rows; ++row) own[row].begin();
    rows.y = own;
    rows.y_stride = 1;
    rows.keeps_largest = true;
    linear(rows);
    team.wait();
    share(team, call.num_rows, [&](int64_t row) {
        Largest best = largest_of_member(call, 0)[row].found();
        for (int member = 1; member < team.size; ++member) {
            Largest other = largest_of_member(call, member)[row].found();
            if (is_more_likely(other, best)) best = other;
        }
        call.token_ids[row] = best.token_id;
        call.largest[row] = best.logit;
    });
}

}  // namespace quire::QUIRE_ISA
