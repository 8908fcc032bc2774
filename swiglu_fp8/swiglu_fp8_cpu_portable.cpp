#include "../common/cpu/simd_portable.h"
#include "swiglu_fp8_cpu.h"

namespace rocm_fp8 {
RowsKernel<SwigluFp8Args> swiglu_portable(const SwigluFp8Args& args) { return pick_swiglu<Lanes<Portable>>(args); }
}  // namespace rocm_fp8
