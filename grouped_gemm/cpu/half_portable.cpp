#include "../../common/cpu/simd_portable.h"
#include "half.h"

namespace rocm_fp8::grouped_gemm {
HalfKernel half_portable(const Args& args) { return pick_half<Portable>(args); }
}  // namespace rocm_fp8::grouped_gemm
