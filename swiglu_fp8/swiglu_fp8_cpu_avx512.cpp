#include "../common/cpu/simd_avx512.h"
#include "swiglu_fp8_cpu.h"

namespace rocm_fp8 {
RowsKernel<SwigluFp8Args> swiglu_avx512(const SwigluFp8Args& args) { return pick_swiglu<Lanes<Avx512>>(args); }
}  // namespace rocm_fp8
