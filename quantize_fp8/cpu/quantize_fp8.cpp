#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::quantize {

Status launch(const Args& args, const Executor& on) {
    Args same = args;
    DynamicScale& rule = same.dynamic;
    // A row as long as a group is one.
    if (rule.group == DynamicScale::kRow && (args.d == 32 || args.d == 64 || args.d == 128)) rule.group = int(args.d);
    if (rule.group == args.d) rule.group_stride = rule.row_stride;
    return launch_dynamic(same, RowsKernels<Job>{pick<Lanes<Portable>>, kernel_avx2, kernel_avx512}, on, [](Job&) {});
}

}  // namespace rocm_fp8::quantize
