#include "../../common/cpu/simd_avx512.h"
#include "sum.h"

namespace rocm_fp8::all_reduce {
RowsKernel<SumArgs> sum_avx512(const SumArgs& args) { return pick<Lanes<Avx512>>(args); }
}  // namespace rocm_fp8::all_reduce
