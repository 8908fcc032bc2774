#include "../../common/cpu/simd_avx512.h"
#include "kernel.h"

namespace rocm_fp8::softmax_int8 {
RowsKernel<Job> kernel_avx512(const Job& job) { return pick<Lanes<Avx512>>(job); }
}  // namespace rocm_fp8::softmax_int8
