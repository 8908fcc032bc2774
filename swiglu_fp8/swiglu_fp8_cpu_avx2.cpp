#include "../common/cpu/simd_avx2.h"
#include "swiglu_fp8_cpu.h"

namespace rocm_fp8 {
RowsKernel<SwigluFp8Args> swiglu_avx2(const SwigluFp8Args& args) { return pick_swiglu<Lanes<Avx2>>(args); }
}  // namespace rocm_fp8
