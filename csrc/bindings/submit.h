// What the Python module's functions have in common: addresses come as numbers, kernels go into a program or run at once.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "counts.h"
#include "crew.h"
#include "instruction_sets.h"
#include "kernel_clock.h"
#include "program.h"

namespace quire {

template <typename T>
T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

// Into the program, or at once where there is none. `num_tokens`, `weight` and `first_tokens` are Program::add's.
template <typename Call>
void submit(Program* program, int num_threads, Kernel<Call> kernel, const Call& call, int64_t num_tokens = 0,
            Range weight = {nullptr, 0}, int64_t first_tokens = 0) {
    auto part = [kernel, call](const Team& team, const std::optional<Counts>& counts) {
        Call sized = call;
        if (counts) resize(sized, *counts);
        kernel(sized, team);
    };
    if (program) return program->add(clocked(part, typeid(Call), program->size(), weight), num_tokens, first_tokens, weight);
    nanobind::gil_scoped_release released;
    run_on_team(num_threads, [&](const Team& team) { kernel(call, team); });
}

// What a second thread is worth: waking it takes as long as some thousand values.
inline int threads_for(int64_t num_values, int num_threads) { return num_values < 16384 ? 1 : num_threads; }

// A tensor [T, H, D] with the last dimension contiguous: address and strides.
using Strided = std::tuple<uintptr_t, int64_t, int64_t>;

inline Vectors vectors(const Strided& strided) {
    return {at<void>(std::get<0>(strided)), std::get<1>(strided), std::get<2>(strided)};
}

}  // namespace quire
