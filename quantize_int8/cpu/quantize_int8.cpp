#include "kernel.h"

namespace rocm_fp8::quantize_int8 {

Status launch(const Args& args, const Executor& on) {
    return launch_rows(args, RowsKernels<Args>{kernel_portable, kernel_avx2, kernel_avx512}, on);
}

}  // namespace rocm_fp8::quantize_int8
