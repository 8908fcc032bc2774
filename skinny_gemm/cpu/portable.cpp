#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::skinny_gemm {
Kernel kernel_portable(const Args& args) { return pick_skinny_gemm<Portable>(args); }
}  // namespace rocm_fp8::skinny_gemm
