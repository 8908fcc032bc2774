#include "../common/cpu/simd_avx512.h"
#include "skinny_gemm_cpu.h"

namespace rocm_fp8 {
SkinnyGemmKernel skinny_gemm_avx512(const SkinnyGemmArgs& args) { return pick_skinny_gemm<Avx512>(args); }
}  // namespace rocm_fp8
