// moe_gate for NVIDIA GPUs: the launcher of ../gpu.h's kernel.
#include "../../common/rows/cuda/vendor.h"
#include "../../common/vendor.h"
#include "../gpu.h"

namespace rocm_fp8::moe_gate {

Status launch(const Args& args, const Executor& on) {
    const auto [chip, status] = current_chip();
    return status.ok() ? launch_by(args, Vendor(chip, on)) : status;
}

}  // namespace rocm_fp8::moe_gate
