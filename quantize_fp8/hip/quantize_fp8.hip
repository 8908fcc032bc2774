// Quantisation to FP8 for MI300X (gfx942) and MI350 (gfx950): the launcher of ../gpu.h's kernels.
//
// Limit today: unknown, nothing has been measured on an AMD GPU. Steps: docs/journal/quantize_fp8-hip.md.
#include "../../common/rows/hip/vendor.h"
#include "../gpu.h"

namespace rocm_fp8::quantize {

Status launch_by_maxima(const Args& args, const uint32_t* maxima, int64_t count, const Executor& on) {
    const ArchResult chip = current_arch();
    return chip.status.ok() ? launch_by_type(args, {maxima, count}, Vendor(chip.arch, on), on) : chip.status;
}

Status launch(const Args& args, const Executor& on) { return launch_by_maxima(args, nullptr, 0, on); }

}  // namespace rocm_fp8::quantize
