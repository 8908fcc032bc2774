// MX weights on NVIDIA GPUs: the launcher.
//
// Files: stream.h             MXFP4 weights, rows of 16 bits or of FP8 with a scale each
//        ../gpu.h, products.h   all others: the plain kernel
#include "../../common/rows/cuda/vendor.h"
#include "../../common/vendor.h"
#include "products.h"
#include "../gpu.h"
#include "stream.h"

namespace rocm_fp8::mx_gemm {

Status launch(const Args& args, const Executor& on) {
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    return launch_by_type(args, Vendor(chip, on), streams, launch_stream<Vendor>);
}

}  // namespace rocm_fp8::mx_gemm
