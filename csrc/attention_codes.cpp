// Attention of models of bfloat16 over codes, in registers.
#include "attention_registers.h"
#include "kernels.h"

namespace quire::QUIRE_ISA {

void attention_bfloat16_over_codes(const AttentionCall& call, const Team& team) {
#if defined(QUIRE_VNNI)
    if (call.layout.head_dim <= MOST_OF_ONE_PART) return attention<InRegisters<CodesInRegisters>>(call, team);
#endif
    attention<InRegisters<KVCodes<BFloat16>>>(call, team);
}

}  // namespace quire::QUIRE_ISA
