#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::layer_norm_int8 {

Status launch(const Args& args, const Executor& on) {
    return launch_rows(args, RowsKernels<Args>{pick<Lanes<Portable>>, kernel_avx2, kernel_avx512}, on);
}

}  // namespace rocm_fp8::layer_norm_int8
