// What is done to each token by itself: norms, rotation, gates, sums.
#pragma once

#include <cstdint>

namespace quire {

// T tokens, H vectors of D values each; strides are in elements. All memory holds float32, or all bfloat16.
struct Vectors {
    void* data;
    int64_t token_stride, head_stride;
};

struct NormCall {
    Vectors x, y;
    const void* weight;  // [D]
    const void* bias;    // [D], or null; of layer_norm alone
    int64_t num_tokens, num_heads, width;
    float eps;
    bool bfloat16;
    bool adds = false;  // y holds what results are added to, before they are rounded; of rms_norm alone
};

// The first 2 S of D values are rotated in place, value i with value S + i.
struct RopeCall {
    Vectors x;
    const void* cos;  // [T, S]
    const void* sin;
    int64_t num_tokens, num_heads, half;
    bool bfloat16;
};

enum class Activation { silu, gelu, gelu_tanh, relu };

// y = activation(gate) * up, each [T, D].
struct GateCall {
    Vectors gate, up, y;
    int64_t num_tokens, width;
    Activation activation;
    bool bfloat16;
};

// y = activation(x), each [T, D].
struct ActivateCall {
    Vectors x, y;
    int64_t num_tokens, width;
    Activation activation;
    bool bfloat16;
};

// y = x + z, each [T, D].
struct AddCall {
    Vectors x, z, y;
    int64_t num_tokens, width;
    bool bfloat16;
};

// y = x * factor, or factor tanh(x / factor); each [T, D].
struct ScaleCall {
    Vectors x, y;
    int64_t num_tokens, width;
    float factor;
    bool bfloat16;
};

// Rows of a table [V, D] to y [T, D].
struct GatherCall {
    const void* table;
    int64_t stride;  // elements
    const int64_t* indices;  // [T]
    void* y;
    int64_t num_tokens, width;
    bool bfloat16;
};

}  // namespace quire
