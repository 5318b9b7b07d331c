// Attention of models of float32, in registers.
#include "attention_registers.h"
#include "kernels.h"

namespace quire::QUIRE_ISA {

void attention_float32(const AttentionCall& call, const Team& team) { attention<InRegisters<InFloat32>>(call, team); }
void attention_float32_over_codes(const AttentionCall& call, const Team& team) { attention<InRegisters<KVCodes<float>>>(call, team); }

}  // namespace quire::QUIRE_ISA
