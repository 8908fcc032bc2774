#include "../../common/cpu/simd_portable.h"
#include "sum.h"

namespace rocm_fp8::all_reduce {
RowsKernel<SumArgs> sum_portable(const SumArgs& args) { return pick<Lanes<Portable>>(args); }
}  // namespace rocm_fp8::all_reduce
