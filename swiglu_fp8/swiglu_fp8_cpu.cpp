#include "../common/cpu/features.h"
#include "swiglu_fp8_cpu.h"

namespace rocm_fp8 {

Status launch_swiglu_fp8(const SwigluFp8Args& args, const Executor& on) {
    if (args.rows == 0 || args.d == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    RowsKernel<SwigluFp8Args> kernel = choice.isa == Isa::avx512 ? swiglu_avx512(args)
                                       : choice.isa == Isa::avx2 ? swiglu_avx2(args)
                                                                 : swiglu_portable(args);
    run_rows(args, 2 * args.d, kernel, on);
    return {};
}

}  // namespace rocm_fp8
