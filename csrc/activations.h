// What feed-forward layers do to each value, in registers.
#pragma once

#include "functions.h"
#include "row_ops.h"

namespace quire::QUIRE_ISA {

inline Floats magnitude(Floats x) { return max(x, -x); }

// x / (1 + e^-x), of `T` as precise as that is. Where e^-x is infinite its reciprocal is 0.
template <typename T>
inline Floats silu(Floats x) {
    if constexpr (sizeof(T) == 2) return x * rough_reciprocal(1.0f + power_of_two<3>(x * -LOG2_E));
    Floats e = power_of_two<6>(magnitude(x) * -LOG2_E);
    return x * (x < 0.0f ? e : fill(1.0f)) * reciprocal(1.0f + e);
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016), and 1 + tanh(u) = 2 / (1 + e^-2u).
inline Floats gelu_tanh(Floats x) {
    Floats u = 0.7978845608f * (x + 0.044715f * x * x * x);
    Floats e = exp_of_negative(-2.0f * magnitude(u));
    return x * (u < 0.0f ? e : fill(1.0f)) / (1.0f + e);
}

// x times the normal distribution's share below x. Above 0 that is 1 less the tail, below it is the tail: erfc(|x| / sqrt(2)) / 2,
// by the fit of Press et al. (Numerical Recipes, 1992, erfcc), whose error is 1.2e-7 of it everywhere.
inline Floats gelu(Floats x) {
    Floats z = 0.7071067812f * magnitude(x);
    Floats t = 1.0f / (1.0f + 0.5f * z);
    Floats p = fill(0.17087277f);
    for (float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f})
        p = multiply_add(p, t, fill(c));
    Floats tail = 0.5f * t * exp_of_negative(p - z * z);
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

inline Floats relu(Floats x) { return x < 0.0f ? Floats{} : x; }

template <typename T, typename Function>
void with_activation(Activation activation, Function&& function) {
    switch (activation) {
        case Activation::silu: return function([](Floats x) { return silu<T>(x); });
        case Activation::gelu: return function([](Floats x) { return gelu(x); });
        case Activation::gelu_tanh: return function([](Floats x) { return gelu_tanh(x); });
        case Activation::relu: return function([](Floats x) { return relu(x); });
    }
}

}  // namespace quire::QUIRE_ISA
