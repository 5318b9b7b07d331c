// The Python module quire._native. Addresses and sizes come from quire/kernels/native.py, which checks them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;
using namespace quire;

namespace {

struct InstructionSet {
    std::string name;
    bool present;
    void (*attention_float32)(const AttentionCall&);
    void (*attention_bfloat16)(const AttentionCall&);
    void (*logits_float32)(const LogitsCall&);
    void (*logits_bfloat16)(const LogitsCall&);
};

#define QUIRE_SET(ISA, PRESENT) \
    {#ISA, PRESENT, ISA::attention_float32, ISA::attention_bfloat16, ISA::logits_float32, ISA::logits_bfloat16}

// The fastest first.
const std::vector<InstructionSet>& instruction_sets() {
    static const std::vector<InstructionSet> sets = {
#if defined(__x86_64__)
        QUIRE_SET(avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                              __builtin_cpu_supports("avx512cd")),
        QUIRE_SET(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")),
#endif
        QUIRE_SET(portable, true),
    };
    return sets;
}

std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const InstructionSet& set : instruction_sets())
        if (set.present) found.push_back(set.name);
    return found;
}

const InstructionSet& set_named(const std::string& name) {
    for (const InstructionSet& set : instruction_sets())
        if (set.present && set.name == name) return set;
    throw std::invalid_argument("This CPU lacks the instruction set " + name + ".");
}

template <typename T>
T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

void attend(const std::string& isa, bool bfloat16, uintptr_t query, int64_t query_stride, uintptr_t key,
            uintptr_t value, uintptr_t output, uintptr_t block_tables, int64_t max_blocks, uintptr_t query_starts,
            uintptr_t context_lens, int64_t num_rows, int64_t block_size, int num_heads, int num_kv_heads, int head_dim,
            float scale, float softcap, int64_t window, int num_threads) {
    AttentionCall call{at<void>(query),
                       at<void>(key),
                       at<void>(value),
                       at<void>(output),
                       at<int64_t>(block_tables),
                       at<int64_t>(query_starts),
                       at<int64_t>(context_lens),
                       query_stride,
                       num_rows,
                       max_blocks,
                       block_size,
                       num_heads,
                       num_kv_heads,
                       head_dim,
                       scale,
                       softcap,
                       window,
                       num_threads};
    const InstructionSet& set = set_named(isa);
    nb::gil_scoped_release released;
    (bfloat16 ? set.attention_bfloat16 : set.attention_float32)(call);
}

void logits(const std::string& isa, bool bfloat16, uintptr_t x, uintptr_t weight, uintptr_t y, int64_t num_rows,
            int64_t num_features, int64_t num_outputs, int num_threads) {
    LogitsCall call{at<float>(x), at<void>(weight), at<float>(y), num_rows, num_features, num_outputs, num_threads};
    const InstructionSet& set = set_named(isa);
    nb::gil_scoped_release released;
    (bfloat16 ? set.logits_bfloat16 : set.logits_float32)(call);
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Native CPU kernels; quire.kernels.native is their face.";
    module.def("instruction_sets", &names);
    module.def("attend", &attend, nb::kw_only(), nb::arg("isa"), nb::arg("bfloat16"), nb::arg("query"),
               nb::arg("query_stride"), nb::arg("key"), nb::arg("value"), nb::arg("output"), nb::arg("block_tables"),
               nb::arg("max_blocks"), nb::arg("query_starts"), nb::arg("context_lens"), nb::arg("num_rows"),
               nb::arg("block_size"), nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"),
               nb::arg("scale"), nb::arg("softcap"), nb::arg("window"), nb::arg("num_threads"));
    module.def("logits", &logits, nb::kw_only(), nb::arg("isa"), nb::arg("bfloat16"), nb::arg("x"), nb::arg("weight"),
               nb::arg("y"), nb::arg("num_rows"), nb::arg("num_features"), nb::arg("num_outputs"), nb::arg("num_threads"));
}
