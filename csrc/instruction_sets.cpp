#include "instruction_sets.h"

#include <stdexcept>
#include <utility>

#include "amx.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace quire::no_set {
static void take_kernels(InstructionSet&) {}
}

// take_kernels(set): the kernels that are compiled for it, and of another set those that are not.
#define QUIRE_ASSIGN(kernel, Call) to.kernel = kernel;
#define QUIRE_TAKE_KERNELS(set, KERNELS, others)   \
    namespace quire::set {                         \
    static void take_kernels(InstructionSet& to) { \
        others::take_kernels(to);                  \
        KERNELS(QUIRE_ASSIGN)                      \
    }                                              \
    }
QUIRE_SETS(QUIRE_TAKE_KERNELS)

namespace quire {
namespace {

#if defined(__x86_64__)
// All that x86-64-v3 is made of, which the compiler uses as it likes.
bool has_avx2() {
    unsigned a, b, c, d;
    constexpr unsigned MOVBE = 1u << 22, F16C = 1u << 29, LZCNT = 1u << 5;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & MOVBE) && (c & F16C) && __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & LZCNT);
}

// The same instructions as VNNI's of AVX-512, for registers of 256 bits.
bool has_avx_vnni() {
    unsigned a, b, c, d;
    constexpr unsigned AVX_VNNI = 1u << 4;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

bool has_bf16() {
    return has_avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#endif

using TakeKernels = void (*)(InstructionSet&);

InstructionSet made_of(std::string name, bool present, TakeKernels kernels) {
    InstructionSet made{std::move(name), present, true};
    kernels(made);
    return made;
}

[[maybe_unused]] InstructionSet for_tests(InstructionSet set) {
    set.chosen = false;
    return set;
}

const std::vector<InstructionSet>& all_sets() {
    static const std::vector<InstructionSet> sets = {
#if defined(__x86_64__)
        made_of("amx", has_bf16() && has_amx(), amx::take_kernels),
        made_of("avx512_bf16", has_bf16(), avx512_bf16::take_kernels),
        made_of("avx512_vnni", has_avx512() && __builtin_cpu_supports("avx512vnni"), avx512_vnni::take_kernels),
        made_of("avx512", has_avx512(), avx512::take_kernels),
        made_of("avx_vnni", has_avx_vnni(), avx_vnni::take_kernels),
        made_of("avx2", has_avx2(), avx2::take_kernels),
#elif defined(__aarch64__) && defined(__linux__)
        made_of("dotprod", getauxval(AT_HWCAP) & HWCAP_ASIMDDP, dotprod::take_kernels),
#endif
        made_of("portable", true, portable::take_kernels),
#if defined(QUIRE_EMULATE_TILES)
        for_tests(made_of("emulated_tiles", true, emulated_tiles::take_kernels)),
#endif
#if defined(QUIRE_EMULATE_AMX)
        for_tests(made_of("emulated_amx", has_bf16(), emulated_amx::take_kernels)),
#endif
#if defined(QUIRE_EMULATE_AVX_VNNI)
        for_tests(made_of("emulated_avx_vnni", has_avx512() && __builtin_cpu_supports("avx512vnni"), emulated_avx_vnni::take_kernels)),
#endif
    };
    return sets;
}

}  // namespace

std::vector<std::string> instruction_sets(bool chosen) {
    std::vector<std::string> found;
    for (const InstructionSet& set : all_sets())
        if (set.present && set.chosen == chosen) found.push_back(set.name);
    return found;
}

const InstructionSet& instruction_set(const std::string& name) {
    for (const InstructionSet& set : all_sets())
        if (set.present && set.name == name) return set;
    throw std::invalid_argument("This CPU lacks the instruction set " + name + ".");
}

}  // namespace quire
