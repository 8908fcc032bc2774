#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::rms_norm {
RowsKernel<Args> kernel_portable(const Args& args) { return pick<Lanes<Portable>>(args); }
}  // namespace rocm_fp8::rms_norm
