// MX weights on NVIDIA GPUs: the launcher of ../gpu.h's kernel.
#include "../../common/rows/cuda/vendor.h"
#include "../../common/vendor.h"
#include "products.h"
#include "../gpu.h"

namespace rocm_fp8::mx_gemm {

Status launch(const Args& args, const Executor& on) {
    const auto [chip, status] = current_chip();
    return status.ok() ? launch_by_type(args, Vendor(chip, on)) : status;
}

}  // namespace rocm_fp8::mx_gemm
