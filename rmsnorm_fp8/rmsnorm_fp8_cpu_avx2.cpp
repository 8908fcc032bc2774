#include "../common/cpu/simd_avx2.h"
#include "rmsnorm_fp8_cpu.h"

namespace rocm_fp8 {
RowsKernel<RmsNormFp8Args> rms_norm_avx2(const RmsNormFp8Args& args) { return pick_rms_norm<Lanes<Avx2>>(args); }
}  // namespace rocm_fp8
