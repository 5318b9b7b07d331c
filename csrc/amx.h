#pragma once

namespace quire {

// Whether the processor multiplies tiles of bfloat16, the kernel lets this process use them (it has to be asked), and a
// small product comes out right.
bool has_amx();

}  // namespace quire
