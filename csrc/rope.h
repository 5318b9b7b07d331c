// One token's heads rotated in place (Su et al. 2021).
#pragma once

#include "row_ops.h"
#include "vectors.h"

namespace quire::QUIRE_ISA {

template <typename T>
inline void rotate_token(const RopeCall& call, int64_t token) {
    const T* cos = static_cast<const T*>(call.cos) + token * call.half;
    const T* sin = static_cast<const T*>(call.sin) + token * call.half;
    T* heads = static_cast<T*>(call.x.data) + token * call.x.token_stride;
    for_vectors(call.half, [&](int64_t k, auto count) {
        Floats c = load_part(cos + k, count), s = load_part(sin + k, count);
        for (int64_t head = 0; head < call.num_heads; ++head) {
            T* x = heads + head * call.x.head_stride + k;
            Floats first = load_part(x, count), second = load_part(x + call.half, count);
            store_part(x, first * c - second * s, count);
            store_part(x + call.half, second * c + first * s, count);
        }
    });
}

}  // namespace quire::QUIRE_ISA
