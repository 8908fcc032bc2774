#include "../common/cpu/features.h"
#include "rmsnorm_fp8_cpu.h"

namespace rocm_fp8 {

Status launch_rms_norm_fp8(const RmsNormFp8Args& args, const Executor& on) {
    if (args.rows == 0 || args.d == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    RowsKernel<RmsNormFp8Args> kernel = choice.isa == Isa::avx512 ? rms_norm_avx512(args)
                                        : choice.isa == Isa::avx2 ? rms_norm_avx2(args)
                                                                  : rms_norm_portable(args);
    run_rows(args, args.d, kernel, on);
    return {};
}

}  // namespace rocm_fp8
