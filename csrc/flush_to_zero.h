// Numbers below the smallest normal one as zeros, while a guard lives: x86 takes many times as long for those (denormals) as for others.
#pragma once

#include "vectors.h"

namespace quire::QUIRE_ISA {

#if defined(__x86_64__)
class FlushToZero {
public:
    FlushToZero() : mode_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(mode_ | RESULTS | OPERANDS); }
    FlushToZero(const FlushToZero&) = delete;
    ~FlushToZero() { __builtin_ia32_ldmxcsr(mode_); }

private:
    static constexpr unsigned RESULTS = 1 << 15, OPERANDS = 1 << 6;
    unsigned mode_;
};
#else
// Elsewhere nothing is done: what they cost there is not measured.
struct FlushToZero {
    FlushToZero() {}
};
#endif

}  // namespace quire::QUIRE_ISA
