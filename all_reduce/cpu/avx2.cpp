#include "../../common/cpu/simd_avx2.h"
#include "sum.h"

namespace rocm_fp8::all_reduce {
RowsKernel<SumArgs> sum_avx2(const SumArgs& args) { return pick<Lanes<Avx2>>(args); }
}  // namespace rocm_fp8::all_reduce
