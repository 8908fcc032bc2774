// Quantisation to FP8 for MI300X (gfx942) and MI350 (gfx950): what the kernels of ../gpu.h need of the vendor, and the
// launcher.
//
// Limit today: unknown, nothing has been measured on an AMD GPU. Steps: docs/journal/quantize_fp8-hip.md.
#include "../../common/hip/device.h"
#include "../../common/hip/quantize.h"
#include "../../common/vendor.h"

namespace rocm_fp8::quantize {
namespace {
__device__ inline void begin_kernel() {}
// Code above does not wait for the loads; code below does.
__device__ inline void after_loads() { __builtin_amdgcn_sched_barrier(0); }
}  // namespace
}  // namespace rocm_fp8::quantize

#include "../gpu.h"

namespace rocm_fp8::quantize {

Status launch(const Args& args, const Executor& on) {
    if (args.rows == 0 || args.d == 0) return {};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    const auto go = [&](auto kernel, int64_t groups, int threads, auto... arguments) -> Status {
        if (groups * threads > kMaxThreads) return {"x has more rows than one launch takes"};
        return launch_kernel(kernel, groups, threads, on, arguments...);
    };
    return launch_by_type(args, compute_units(chip.arch), args.out_dtype == native_fp8(chip.arch), on, go);
}

}  // namespace rocm_fp8::quantize
