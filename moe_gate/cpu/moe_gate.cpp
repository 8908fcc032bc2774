#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::moe_gate {

Status launch(const Args& args, const Executor& on) {
    Args live = args;
    if (args.end) live.rows = std::clamp<int64_t>(*args.end, 0, args.rows);
    return launch_rows(live, RowsKernels<Args>{pick<Lanes<Portable>>, kernel_avx2, kernel_avx512}, on);
}

}  // namespace rocm_fp8::moe_gate
