#include "../../common/cpu/simd_avx512.h"
#include "kernel.h"

namespace rocm_fp8::moe_gate {
RowsKernel<Args> kernel_avx512(const Args& args) { return pick<Lanes<Avx512>>(args); }
}  // namespace rocm_fp8::moe_gate
