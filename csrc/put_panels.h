// How tiles' kernels put results down: of one row for two panels, where each panel's are one register, side by side, added to what is
// there, or gated; and gated ones of any kind.
#pragma once

#include "gates.h"

namespace quire::QUIRE_ISA {

// `place`: where results from an output on go, in a row that begins at `to`. Those of rows that are put together are for `panel` and its
// partner.
struct InPlace {
    using Place = BFloat16;
    static constexpr bool GATED = false;
    static BFloat16* place(BFloat16* to, int64_t output) { return to + output; }
    void begin(int64_t) {}
};

struct PutBoth : InPlace {
    void operator()(BFloat16* to, Floats first, Floats second) const { store(to, first, second); }
};

struct PutSums : InPlace {
    void operator()(BFloat16* to, Floats first, Floats second) const { store(to, load(to) + first, load(to + LANES) + second); }
};

// Of neighbouring panels, the largest.
struct PutLargest {
    using Place = LargestOfRow;
    static constexpr bool GATED = false;
    Ints panel = {};
    static LargestOfRow* place(LargestOfRow* to, int64_t) { return to; }
    void begin(int64_t first) { panel = Ints{} + static_cast<int32_t>(first); }
    void operator()(LargestOfRow* to, Floats first, Floats second) const {
        to->take(first, panel);
        to->take(second, panel + 1);
    }
};

template <typename Activation>
struct PutGated : InPlace {
    static constexpr bool GATED = true;
    Activation activation;
    explicit PutGated(Activation chosen) : activation(chosen) {}
    void operator()(BFloat16* to, Floats gate, Floats up) const { store(to, activation(gate) * up); }
};

// function(put): PutGated where there is a `gate`.
template <typename Function>
void with_put(const LinearRows& rows, const GateCall* gate, Function&& function) {
    if (!gate && rows.keeps_largest) return function(PutLargest());
    if (!gate && rows.adds) return function(PutSums());
    if (!gate) return function(PutBoth());
    with_activation<BFloat16>(gate->activation, [&](auto activation) { function(PutGated<decltype(activation)>(activation)); });
}

// What M rows' gates let through.
template <typename T, int M>
void put_gated(const GateCall& call, int64_t row, int64_t output, const Floats (&gates)[M][PARTS], const Floats (&ups)[M][PARTS]) {
    with_activation<T>(call.activation, [&](auto activation) {
        for (int m = 0; m < M; ++m)
            for (int p = 0; p < PARTS; ++p) {
                T* to = static_cast<T*>(call.y.data) + (row + m) * call.y.token_stride + output + p * LANES;
                store(to, activation(gates[m][p]) * ups[m][p]);
            }
    });
}

template <int M>
void put_gated(const GateCall& call, int64_t row, int64_t output, const Floats (&gates)[M][PARTS], const Floats (&ups)[M][PARTS]) {
    if (call.bfloat16) put_gated<BFloat16>(call, row, output, gates, ups);
    else put_gated<float>(call, row, output, gates, ups);
}

// When rows are put down between products: each of `num_calls` calls of `some` puts its share, the last ones what is left. For a
// member of the caller's own, so that its values stay in registers.
class Shares {
public:
    Shares(int num_rows, int num_calls) : left_(num_rows), step_(num_rows), num_calls_(num_calls) {}

    template <typename Function>
    [[gnu::always_inline]] void some(Function&& put) {
        for (due_ += step_; due_ >= num_calls_ && left_ > 0; due_ -= num_calls_, --left_) put();
    }
    template <typename Function>
    [[gnu::always_inline]] void rest(Function&& put) {
        for (; left_ > 0; --left_) put();
    }
    int left() const { return left_; }

private:
    int left_, step_, num_calls_, due_ = 0;
};

}  // namespace quire::QUIRE_ISA
