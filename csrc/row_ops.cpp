// Arithmetic is float32, rounded once at the end. No token's result depends on another's.
#include "row_ops.h"

#include <cmath>

#include "kernels.h"
#include "vectors.h"

namespace quire::QUIRE_ISA {
namespace {

template <typename T>
T* at(const Vectors& vectors, int64_t token, int64_t head = 0) {
    return static_cast<T*>(vectors.data) + token * vectors.token_stride + head * vectors.head_stride;
}

template <typename T>
void norm_row(const T* x, const T* weight, T* y, int64_t width, float eps) {
    Floats squares = {};
    for (int64_t k = 0; k < width; k += LANES) {
        Floats v = load_part(x + k, static_cast<int>(width - k));
        squares += v * v;
    }
    float scale = 1.0f / std::sqrt(sum_of(squares) / static_cast<float>(width) + eps);
    for (int64_t k = 0; k < width; k += LANES) {
        int count = static_cast<int>(width - k);
        store_part(y + k, load_part(x + k, count) * scale * load_part(weight + k, count), count);
    }
}

template <typename T>
void norm(const NormCall& call, const Team& team) {
    share(team, call.num_tokens, [&](int64_t token) {
        for (int64_t head = 0; head < call.num_heads; ++head)
            norm_row(at<T>(call.x, token, head), static_cast<const T*>(call.weight), at<T>(call.y, token, head), call.width, call.eps);
    });
}

template <typename T>
void rotate(const RopeCall& call, const Team& team) {
    share(team, call.num_tokens, [&](int64_t token) {
        const T* cos = static_cast<const T*>(call.cos) + token * call.half;
        const T* sin = static_cast<const T*>(call.sin) + token * call.half;
        for (int64_t head = 0; head < call.num_heads; ++head) {
            T* x = at<T>(call.x, token, head);
            for (int64_t k = 0; k < call.half; k += LANES) {
                int count = static_cast<int>(call.half - k);
                Floats first = load_part(x + k, count), second = load_part(x + call.half + k, count);
                Floats c = load_part(cos + k, count), s = load_part(sin + k, count);
                store_part(x + k, first * c - second * s, count);
                store_part(x + call.half + k, second * c + first * s, count);
            }
        }
    });
}

inline Floats magnitude(Floats x) { return max(x, -x); }

inline Floats silu(Floats x) {
    Floats e = exp_of_negative(-magnitude(x));
    return x * (x < 0.0f ? e : fill(1.0f)) / (1.0f + e);
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016), and 1 + tanh(u) = 2 / (1 + e^-2u).
inline Floats gelu_tanh(Floats x) {
    Floats u = 0.7978845608f * (x + 0.044715f * x * x * x);
    Floats e = exp_of_negative(-2.0f * magnitude(u));
    return x * (u < 0.0f ? e : fill(1.0f)) / (1.0f + e);
}

inline Floats relu(Floats x) { return x < 0.0f ? Floats{} : x; }

template <typename T, typename Function>
void gate_with(const GateCall& call, const Team& team, Function&& activation) {
    share(team, call.num_tokens, [&](int64_t token) {
        const T* gate = at<T>(call.gate, token);
        const T* up = at<T>(call.up, token);
        T* y = at<T>(call.y, token);
        for (int64_t k = 0; k < call.width; k += LANES) {
            int count = static_cast<int>(call.width - k);
            store_part(y + k, activation(load_part(gate + k, count)) * load_part(up + k, count), count);
        }
    });
}

template <typename T>
void gate(const GateCall& call, const Team& team) {
    switch (call.activation) {
        case Activation::silu: return gate_with<T>(call, team, silu);
        case Activation::gelu_tanh: return gate_with<T>(call, team, gelu_tanh);
        case Activation::relu: return gate_with<T>(call, team, relu);
    }
}

template <typename T>
void add_rows(const AddCall& call, const Team& team) {
    share(team, call.num_tokens, [&](int64_t token) {
        const T* x = at<T>(call.x, token);
        const T* z = at<T>(call.z, token);
        T* y = at<T>(call.y, token);
        for (int64_t k = 0; k < call.width; k += LANES) {
            int count = static_cast<int>(call.width - k);
            store_part(y + k, load_part(x + k, count) + load_part(z + k, count), count);
        }
    });
}

template <typename T>
void scale_rows(const ScaleCall& call, const Team& team) {
    share(team, call.num_tokens, [&](int64_t token) {
        const T* x = at<T>(call.x, token);
        T* y = at<T>(call.y, token);
        for (int64_t k = 0; k < call.width; k += LANES) {
            int count = static_cast<int>(call.width - k);
            store_part(y + k, load_part(x + k, count) * call.factor, count);
        }
    });
}

template <typename T>
void gather_rows(const GatherCall& call, const Team& team) {
    share(team, call.num_tokens, [&](int64_t token) {
        const T* from = static_cast<const T*>(call.table) + call.indices[token] * call.width;
        std::memcpy(static_cast<T*>(call.y) + token * call.width, from, call.width * sizeof(T));
    });
}

}  // namespace

void rms_norm(const NormCall& call, const Team& team) { call.bfloat16 ? norm<BFloat16>(call, team) : norm<float>(call, team); }
void rope(const RopeCall& call, const Team& team) { call.bfloat16 ? rotate<BFloat16>(call, team) : rotate<float>(call, team); }
void gated(const GateCall& call, const Team& team) { call.bfloat16 ? gate<BFloat16>(call, team) : gate<float>(call, team); }
void add(const AddCall& call, const Team& team) { call.bfloat16 ? add_rows<BFloat16>(call, team) : add_rows<float>(call, team); }
void scale(const ScaleCall& call, const Team& team) {
    call.bfloat16 ? scale_rows<BFloat16>(call, team) : scale_rows<float>(call, team);
}
void gather(const GatherCall& call, const Team& team) {
    call.bfloat16 ? gather_rows<BFloat16>(call, team) : gather_rows<float>(call, team);
}

}  // namespace quire::QUIRE_ISA
