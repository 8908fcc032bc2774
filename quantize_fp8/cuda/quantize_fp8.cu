// Quantisation to FP8 for NVIDIA GPUs: what the kernels of ../gpu.h need of the vendor, and the launcher.
//
// Limit today: not tuned. Steps and figures: docs/journal/quantize_fp8-cuda.md.
#include "../../common/cuda/device.h"
#include "../../common/cuda/pdl.h"
#include "../../common/cuda/quantize.h"
#include "../../common/vendor.h"

namespace rocm_fp8::quantize {
namespace {
__device__ inline void begin_kernel() {
    let_next_kernel_start();
    wait_for_previous_kernel();
}
__device__ inline void after_loads() {}
}  // namespace
}  // namespace rocm_fp8::quantize

#include "../gpu.h"

namespace rocm_fp8::quantize {

Status launch(const Args& args, const Executor& on) {
    if (args.rows == 0 || args.d == 0) return {};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    const auto go = [&, chip = chip](auto kernel, int64_t ctas, int threads, auto... arguments) -> Status {
        if (ctas > kMaxCtas) return {"x has more rows than one launch takes"};
        return launch_kernel(kernel, chip, {ctas, threads}, on, arguments...);
    };
    return launch_by_type(args, chip.multiprocessors, args.out_dtype == DType::e4m3fn, on, go);
}

}  // namespace rocm_fp8::quantize
