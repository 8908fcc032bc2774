#include "../../common/cpu/simd_avx512.h"
#include "kernel.h"

namespace rocm_fp8::layer_norm_int8 {
RowsKernel<Args> kernel_avx512(const Args& args) { return pick<Lanes<Avx512>>(args); }
}  // namespace rocm_fp8::layer_norm_int8
