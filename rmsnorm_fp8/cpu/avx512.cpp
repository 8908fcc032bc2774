#include "../../common/cpu/simd_avx512.h"
#include "kernel.h"

namespace rocm_fp8::rms_norm {
RowsKernel<Job> kernel_avx512(const Job& job) { return pick<Lanes<Avx512>>(job); }
}  // namespace rocm_fp8::rms_norm
