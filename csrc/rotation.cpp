#include "rotation.h"

namespace quire::QUIRE_ISA {

template float rotate(PlainRow<float>&, int64_t, int64_t, float*);
template float rotate(PlainRow<BFloat16>&, int64_t, int64_t, float*);
template float rotate(WeightedRow<float>&, int64_t, int64_t, float*);
template float rotate(WeightedRow<BFloat16>&, int64_t, int64_t, float*);

}  // namespace quire::QUIRE_ISA
