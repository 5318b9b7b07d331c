// Rows are searched in parts, so that one row keeps all members busy: the one who computed a logit has it in its cache.
#include "most_likely.h"

#include "kernels.h"
#include "largest_logit.h"

namespace quire::QUIRE_ISA {
void most_likely(const MostLikelyCall& call, const Team& team) {
    Largest* parts = static_cast<Largest*>(call.scratch);
    int64_t num_parts = parts_of(call.num_tokens);
    share(team, call.num_rows * num_parts, [&](int64_t item) {
        int64_t first = item % num_parts * TOKENS_A_PART;
        int64_t last = call.num_tokens - first < TOKENS_A_PART ? call.num_tokens : first + TOKENS_A_PART;
        parts[item] = largest_logit(call.logits + item / num_parts * call.num_tokens, first, last);
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
