// Gates of a linear layer whose outputs are whole panels of them and as many of what they let through. Both are float32 until their
// product is rounded.
#pragma once

#include "activations.h"
#include "linear_rows.h"

namespace quire::QUIRE_ISA {

inline bool gates_are_panels(int64_t num_outputs) { return num_outputs % (2 * PANEL) == 0; }

// Of a linear layer and its gate: what is handed out, where a panel's partner is and where results go. Without a gate there are no partners.
struct GatedRows {
    const GateCall* gate;
    LinearRows results;
    int64_t num_outputs, num_panels;  // of results

    GatedRows(const LinearRows& rows, int64_t outputs, const GateCall* chosen) : gate(chosen), results(rows), num_outputs(outputs) {
        if (gate) {
            num_outputs /= 2;
            results.y = gate->y.data;
            results.y_stride = gate->y.token_stride;
            results.y_bfloat16 = gate->bfloat16;
        }
        num_panels = results.num_panels(num_outputs);
    }
};

// `count` registers of gates become what they let through.
[[gnu::noinline]] inline void let_through(const GateCall& call, Floats* gates, const Floats* ups, int count) {
    auto all = [&](auto activation) {
        for (int i = 0; i < count; ++i) gates[i] = activation(gates[i]) * ups[i];
    };
    if (call.bfloat16) with_activation<BFloat16>(call.activation, all);
    else with_activation<float>(call.activation, all);
}

}  // namespace quire::QUIRE_ISA
