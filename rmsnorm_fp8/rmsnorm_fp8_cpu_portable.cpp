#include "../common/cpu/simd_portable.h"
#include "rmsnorm_fp8_cpu.h"

namespace rocm_fp8 {
RowsKernel<RmsNormFp8Args> rms_norm_portable(const RmsNormFp8Args& args) { return pick_rms_norm<Lanes<Portable>>(args); }
}  // namespace rocm_fp8
