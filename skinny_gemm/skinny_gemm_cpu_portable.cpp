#include "../common/cpu/simd_portable.h"
#include "skinny_gemm_cpu.h"

namespace rocm_fp8 {
SkinnyGemmKernel skinny_gemm_portable(const SkinnyGemmArgs& args) { return pick_skinny_gemm<Portable>(args); }
}  // namespace rocm_fp8
