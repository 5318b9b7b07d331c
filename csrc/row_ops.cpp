// Arithmetic is float32, rounded once at the end. No token's result depends on another's.
#include "row_ops.h"

#include <cmath>

#include "activations.h"
#include "kernels.h"
#include "norms.h"
#include "rope.h"

namespace quire::QUIRE_ISA {
namespace {

template <typename T>
T* at(const Vectors& vectors, int64_t token, int64_t head = 0) {
    return static_cast<T*>(vectors.data) + token * vectors.token_stride + head * vectors.head_stride;
}

// function(T()) with the type of the numbers.
template <typename Function>
void with_type(bool bfloat16, Function&& function) {
    if (bfloat16) function(BFloat16());
    else function(float());
}

// y = function(inputs...), value by value.
template <typename T, typename Function, typename... Inputs>
void map_values(const Team& team, int64_t num_tokens, int64_t width, Vectors y, Function&& function, Inputs... inputs) {
    share(team, num_tokens, [&](int64_t token) {
        for_vectors(width, [&, to = at<T>(y, token), ... from = at<T>(inputs, token)](int64_t k, auto count) {
            store_part(to + k, function(load_part(from + k, count)...), count);
        });
    });
}

template <bool ADDS, typename T>
void rms_norm_row(const T* x, const T* weight, const T*, T* y, int64_t width, float eps) {
    float scale = rms_scale(x, width, eps);
    for_vectors(width, [&](int64_t k, auto count) {
        Floats v = load_part(x + k, count) * scale * load_part(weight + k, count);
        store_part(y + k, ADDS ? load_part(y + k, count) + v : v, count);
    });
}

// Squares are of what is left without the mean: a mean of squares less a squared mean would lose all digits where the mean is large.
template <typename T>
void layer_norm_row(const T* x, const T* weight, const T* bias, T* y, int64_t width, float eps) {
    float mean = sum_over(x, width, [](Floats v) { return v; }) / static_cast<float>(width);
    float squares = sum_over(x, width, [&](Floats v) { return (v - mean) * (v - mean); });
    float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
    for_vectors(width, [&](int64_t k, auto count) {
        Floats v = (load_part(x + k, count) - mean) * scale * load_part(weight + k, count);
        store_part(y + k, bias ? v + load_part(bias + k, count) : v, count);
    });
}

template <typename T, typename Row>
void norm(const NormCall& call, const Team& team, Row&& row) {
    const T* weight = static_cast<const T*>(call.weight);
    const T* bias = static_cast<const T*>(call.bias);
    share(team, call.num_tokens, [&](int64_t token) {
        for (int64_t head = 0; head < call.num_heads; ++head)
            row(at<T>(call.x, token, head), weight, bias, at<T>(call.y, token, head), call.width, call.eps);
    });
}

template <typename T>
void gather_rows(const GatherCall& call, const Team& team) {
    share(team, call.num_tokens, [&](int64_t token) {
        const T* from = static_cast<const T*>(call.table) + call.indices[token] * call.stride;
        std::memcpy(static_cast<T*>(call.y) + token * call.width, from, call.width * sizeof(T));
    });
}

}  // namespace

void rms_norm(const NormCall& call, const Team& team) {
    with_type(call.bfloat16, [&](auto type) {
        using T = decltype(type);
        norm<T>(call, team, call.adds ? rms_norm_row<true, T> : rms_norm_row<false, T>);
    });
}

void layer_norm(const NormCall& call, const Team& team) {
    with_type(call.bfloat16, [&](auto type) { norm<decltype(type)>(call, team, layer_norm_row<decltype(type)>); });
}

void rope(const RopeCall& call, const Team& team) {
    with_type(call.bfloat16, [&](auto type) {
        share(team, call.num_tokens, [&](int64_t token) { rotate_token<decltype(type)>(call, token); });
    });
}

void gated(const GateCall& call, const Team& team) {
    with_type(call.bfloat16, [&](auto type) {
        with_activation<decltype(type)>(call.activation, [&](auto activation) {
            auto product = [&](Floats gate, Floats up) { return activation(gate) * up; };
            map_values<decltype(type)>(team, call.num_tokens, call.width, call.y, product, call.gate, call.up);
        });
    });
}

void activate(const ActivateCall& call, const Team& team) {
    with_type(call.bfloat16, [&](auto type) {
        with_activation<decltype(type)>(call.activation, [&](auto activation) {
            map_values<decltype(type)>(team, call.num_tokens, call.width, call.y, activation, call.x);
        });
    });
}

void add(const AddCall& call, const Team& team) {
    with_type(call.bfloat16, [&](auto type) {
        auto sum = [](Floats x, Floats z) { return x + z; };
        map_values<decltype(type)>(team, call.num_tokens, call.width, call.y, sum, call.x, call.z);
    });
}

void scale(const ScaleCall& call, const Team& team) {
    with_type(call.bfloat16, [&](auto type) {
        auto product = [&](Floats x) { return x * call.factor; };
        map_values<decltype(type)>(team, call.num_tokens, call.width, call.y, product, call.x);
    });
}

void softcap(const ScaleCall& call, const Team& team) {
    with_type(call.bfloat16, [&](auto type) {
        auto capped = [&](Floats x) { return soft_capped(x, call.factor); };
        map_values<decltype(type)>(team, call.num_tokens, call.width, call.y, capped, call.x);
    });
}

void gather(const GatherCall& call, const Team& team) {
    with_type(call.bfloat16, [&](auto type) { gather_rows<decltype(type)>(call, team); });
}

}  // namespace quire::QUIRE_ISA
