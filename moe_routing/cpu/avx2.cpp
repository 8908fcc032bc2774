#include "../../common/cpu/simd_avx2.h"
#include "combine.h"

namespace rocm_fp8::moe_routing {
RowsKernel<CombineArgs> combine_avx2(const CombineArgs& args) { return pick<Lanes<Avx2>>(args); }
}  // namespace rocm_fp8::moe_routing
