#include "../../common/cpu/simd_avx512.h"
#include "kernel.h"

namespace rocm_fp8::mla_decode {
Kernels kernels_avx512(const Args& args) { return pick<Avx512>(args); }
}  // namespace rocm_fp8::mla_decode
