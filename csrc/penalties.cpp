#include "penalties.h"

#include <cstring>

#include "kernels.h"
#include "largest_logit.h"

namespace quire::QUIRE_ISA {
namespace {

// In double precision, and rounded once. What is no token of the vocabulary has no logit.
void penalize_row(const PenalizedRow& row, int64_t vocab_size) {
    for (int64_t i = 0; i < row.num_tokens; ++i) {
        if (row.token_ids[i] < 0 || row.token_ids[i] >= vocab_size) continue;
        float& logit = row.penalized[row.token_ids[i]];
        double moved = logit > 0 ? logit / row.repetition : logit * row.repetition;
        moved -= row.frequency * row.output_counts[i];
        if (row.output_counts[i] > 0) moved -= row.presence;
        logit = static_cast<float>(moved);
    }
}

}  // namespace

// A row is one member's, and stays in its cache until the largest is found.
void penalize(const PenalizeCall& call, const Team& team) {
    hand_out(team, static_cast<int64_t>(call.rows->size()), 1, [&](int64_t i) {
        const PenalizedRow& row = (*call.rows)[i];
        if (row.penalized != row.logits) std::memcpy(row.penalized, row.logits, call.vocab_size * sizeof(float));
        penalize_row(row, call.vocab_size);
        call.largest[i] = largest_logit(row.penalized, 0, call.vocab_size);
    });
}

}  // namespace quire::QUIRE_ISA
