#include "../../common/cpu/simd_portable.h"
#include "combine.h"

namespace rocm_fp8::moe_routing {
RowsKernel<CombineArgs> combine_portable(const CombineArgs& args) { return pick<Lanes<Portable>>(args); }
}  // namespace rocm_fp8::moe_routing
