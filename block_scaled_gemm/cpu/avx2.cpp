#include "../../common/cpu/simd_avx2.h"
#include "kernel.h"

namespace rocm_fp8::block_scaled_gemm {
Kernel kernel_avx2(const Args& args) { return pick_block_scaled_gemm<Avx2>(args); }
}  // namespace rocm_fp8::block_scaled_gemm
