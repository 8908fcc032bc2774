#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::quantize_int8 {
RowsKernel<Args> kernel_portable(const Args& args) { return pick<Lanes<Portable>>(args); }
}  // namespace rocm_fp8::quantize_int8
