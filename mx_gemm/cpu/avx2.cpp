#include "../../common/cpu/simd_avx2.h"
#include "kernel.h"

namespace rocm_fp8::mx_gemm {
Kernel kernel_avx2(const Args& args) { return pick<Avx2>(args); }
}  // namespace rocm_fp8::mx_gemm
