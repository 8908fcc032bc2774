#include "../../common/cpu/simd_avx512.h"
#include "combine.h"

namespace rocm_fp8::moe_routing {
RowsKernel<CombineArgs> combine_avx512(const CombineArgs& args) { return pick<Lanes<Avx512>>(args); }
}  // namespace rocm_fp8::moe_routing
