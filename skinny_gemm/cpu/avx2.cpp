#include "../../common/cpu/simd_avx2.h"
#include "kernel.h"

namespace rocm_fp8::skinny_gemm {
Kernel kernel_avx2(const Args& args) { return pick_skinny_gemm<Avx2>(args); }
}  // namespace rocm_fp8::skinny_gemm
