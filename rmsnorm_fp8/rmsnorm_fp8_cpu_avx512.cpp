#include "../common/cpu/simd_avx512.h"
#include "rmsnorm_fp8_cpu.h"

namespace rocm_fp8 {
RowsKernel<RmsNormFp8Args> rms_norm_avx512(const RmsNormFp8Args& args) { return pick_rms_norm<Lanes<Avx512>>(args); }
}  // namespace rocm_fp8
