// How much of what a program was recorded for is computed when it runs.
#pragma once

#include "kernels.h"
#include "program.h"

namespace quire {

inline void resize(AttentionCall& call, const Counts& counts) { call.num_rows = counts.rows; }
inline void resize(MostLikelyCall& call, const Counts& counts) { call.num_rows = counts.rows; }
inline void resize(DenseCall& call, const Counts& counts) { call.rows.num_rows = counts.of(call.rows.num_rows); }
inline void resize(DenseGatedCall& call, const Counts& counts) { call.linear.rows.num_rows = call.gate.num_tokens = counts.of(call.gate.num_tokens); }
inline void resize(QuantizedCall& call, const Counts& counts) { call.rows.num_rows = counts.of(call.rows.num_rows); }
inline void resize(QuantizedGatedCall& call, const Counts& counts) { call.linear.rows.num_rows = call.gate.num_tokens = counts.of(call.gate.num_tokens); }
inline void resize(DenseMostLikelyCall& call, const Counts& counts) { call.linear.rows.num_rows = call.most_likely.num_rows = counts.of(call.most_likely.num_rows); }
inline void resize(QuantizedMostLikelyCall& call, const Counts& counts) { call.linear.rows.num_rows = call.most_likely.num_rows = counts.of(call.most_likely.num_rows); }
inline void resize(DenseRowsCall& call, const Counts& counts) { call.num_indices = counts.of(call.num_indices); }
inline void resize(PanelRowsCall& call, const Counts& counts) { call.num_indices = counts.of(call.num_indices); }

// Of what is done to each token by itself. What knows no tokens is computed whole: an encoder's texts, of which those that are not there are empty.
template <typename Call>
void resize(Call& call, const Counts& counts) {
    if constexpr (requires { call.num_tokens; }) call.num_tokens = counts.of(call.num_tokens);
}

}  // namespace quire
