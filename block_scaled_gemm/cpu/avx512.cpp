#include "../../common/cpu/simd_avx512.h"
#include "kernel.h"

namespace rocm_fp8::block_scaled_gemm {
Kernel kernel_avx512(const Args& args) { return pick_block_scaled_gemm<Avx512>(args); }
}  // namespace rocm_fp8::block_scaled_gemm
