#include "../../common/cpu/simd_avx512.h"
#include "kernel.h"

namespace rocm_fp8::mx_gemm {
Kernel kernel_avx512(const Args& args) { return pick<Avx512>(args); }
}  // namespace rocm_fp8::mx_gemm
