#include "../../common/cpu/simd_avx2.h"
#include "kernel.h"

namespace rocm_fp8::moe_gate {
RowsKernel<Args> kernel_avx2(const Args& args) { return pick<Lanes<Avx2>>(args); }
}  // namespace rocm_fp8::moe_gate
