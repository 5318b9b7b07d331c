#pragma once

namespace quire {

// Whether the processor multiplies tiles of bfloat16 and of bytes, the kernel lets this process use them (it has to be asked),
// and small products come out right.
bool has_amx();

}  // namespace quire
