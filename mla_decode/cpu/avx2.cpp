#include "../../common/cpu/simd_avx2.h"
#include "append.h"
#include "kernel.h"

namespace rocm_fp8::mla_decode {
Kernels kernels_avx2(const Args& args) { return pick<Avx2>(args); }
AppendRows append_avx2(const AppendArgs& args) { return pick_append<Lanes<Avx2>>(args); }
}  // namespace rocm_fp8::mla_decode
