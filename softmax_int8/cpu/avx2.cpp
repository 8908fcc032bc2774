#include "../../common/cpu/simd_avx2.h"
#include "kernel.h"

namespace rocm_fp8::softmax_int8 {
RowsKernel<Job> kernel_avx2(const Job& job) { return pick<Lanes<Avx2>>(job); }
}  // namespace rocm_fp8::softmax_int8
