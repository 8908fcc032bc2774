// Quantisation to FP8 for NVIDIA GPUs: the launcher of ../gpu.h's kernels.
//
// Steps and figures: docs/journal/quantize_fp8-cuda.md.
#include "../../common/rows/cuda/vendor.h"
#include "../gpu.h"

namespace rocm_fp8::quantize {

Status launch_by_maxima(const Args& args, const uint32_t* maxima, int64_t count, const Executor& on) {
    const auto [chip, status] = current_chip();
    return status.ok() ? launch_by_type(args, {maxima, count}, Vendor(chip, on), on) : status;
}

Status launch(const Args& args, const Executor& on) { return launch_by_maxima(args, nullptr, 0, on); }

}  // namespace rocm_fp8::quantize
