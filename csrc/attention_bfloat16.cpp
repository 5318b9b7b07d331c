// Attention over bfloat16 in registers.
#include "attention_registers.h"
#include "kernels.h"

namespace quire::QUIRE_ISA {

void attention_bfloat16(const AttentionCall& call, const Team& team) {
#if defined(__AVX512BF16__)
    attention<InRegisters<InBFloat16>>(call, team);
#else
    attention<InRegisters<WidenedBFloat16>>(call, team);
#endif
}

}  // namespace quire::QUIRE_ISA
