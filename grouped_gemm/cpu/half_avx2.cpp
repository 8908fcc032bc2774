#include "../../common/cpu/simd_avx2.h"
#include "half.h"

namespace rocm_fp8::grouped_gemm {
HalfKernel half_avx2(const Args& args) { return pick_half<Avx2>(args); }
}  // namespace rocm_fp8::grouped_gemm
