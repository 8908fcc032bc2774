#include "../../common/cpu/simd_portable.h"
#include "append.h"
#include "kernel.h"

namespace rocm_fp8::mla_decode {
Kernels kernels_portable(const Args& args) { return pick<Portable>(args); }
AppendRows append_portable(const AppendArgs& args) { return pick_append<Lanes<Portable>>(args); }
}  // namespace rocm_fp8::mla_decode
