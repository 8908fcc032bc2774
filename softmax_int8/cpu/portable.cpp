#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::softmax_int8 {
RowsKernel<Job> kernel_portable(const Job& job) { return pick<Lanes<Portable>>(job); }
}  // namespace rocm_fp8::softmax_int8
