#include "../../common/cpu/features.h"
#include "kernel.h"

namespace rocm_fp8::rms_norm {

Status launch(const Args& args, const Executor& on) {
    if (args.rows == 0 || args.d == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    RowsKernel<Args> kernel = choice.isa == Isa::avx512 ? kernel_avx512(args)
                              : choice.isa == Isa::avx2 ? kernel_avx2(args)
                                                        : kernel_portable(args);
    run_rows(args, args.d, kernel, on);
    return {};
}

}  // namespace rocm_fp8::rms_norm
