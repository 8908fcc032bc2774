#include "../common/cpu/simd_avx2.h"
#include "skinny_gemm_cpu.h"

namespace rocm_fp8 {
SkinnyGemmKernel skinny_gemm_avx2(const SkinnyGemmArgs& args) { return pick_skinny_gemm<Avx2>(args); }
}  // namespace rocm_fp8
