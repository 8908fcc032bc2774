// Quantisation to int8 for NVIDIA GPUs: the launcher of ../gpu.h's kernels.
#include "../../common/rows/cuda/vendor.h"
#include "../gpu.h"

namespace rocm_fp8::quantize_int8 {

Status launch(const Args& args, const Executor& on) {
    const auto [chip, status] = current_chip();
    return status.ok() ? launch_by_type(args, Vendor(chip, on)) : status;
}

}  // namespace rocm_fp8::quantize_int8
