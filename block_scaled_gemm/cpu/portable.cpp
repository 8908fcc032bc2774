#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::block_scaled_gemm {
Kernel kernel_portable(const Args& args) { return pick_block_scaled_gemm<Portable>(args); }
}  // namespace rocm_fp8::block_scaled_gemm
