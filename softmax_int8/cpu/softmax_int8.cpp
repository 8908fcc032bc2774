#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::softmax_int8 {

Status launch(const Args& args, const Executor& on) {
    const Job job{args, args.Args::rows()};
    return launch_rows(job, RowsKernels<Job>{pick<Lanes<Portable>>, kernel_avx2, kernel_avx512}, on);
}

}  // namespace rocm_fp8::softmax_int8
