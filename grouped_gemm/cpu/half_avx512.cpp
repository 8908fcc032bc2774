#include "../../common/cpu/simd_avx512.h"
#include "half.h"

namespace rocm_fp8::grouped_gemm {
HalfKernel half_avx512(const Args& args) { return pick_half<Avx512>(args); }
}  // namespace rocm_fp8::grouped_gemm
