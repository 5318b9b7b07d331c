// Every kernel, once an instruction set. The files that define them are compiled for each (CMakeLists.txt).
#pragma once

#include "attention.h"
#include "logits.h"

#define QUIRE_KERNELS(ISA)                        \
    namespace quire::ISA {                        \
    void attention_float32(const AttentionCall&); \
    void attention_bfloat16(const AttentionCall&); \
    void logits_float32(const LogitsCall&);       \
    void logits_bfloat16(const LogitsCall&);      \
    }

QUIRE_KERNELS(portable)
#if defined(__x86_64__)
QUIRE_KERNELS(avx2)
QUIRE_KERNELS(avx512)
#endif
