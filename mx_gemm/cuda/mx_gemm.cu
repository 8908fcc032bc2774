// MX weights on NVIDIA GPUs: the launcher.
//
// Files: tiles.h              Hopper: all but rows in float16
//        epilogue.h           its lanes' columns, and what becomes of their sums
//        order.h              rows as its tiles take them
//        stream.h             MXFP4 weights beside 16 bits or FP8 with scales of rows, where those do not serve
//        ../gpu.h, products.h   all others: the plain kernel
#include "../../common/rows/cuda/vendor.h"
#include "../../common/vendor.h"
#include "products.h"
#include "../gpu.h"
#include "stream.h"
#include "tiles.h"

namespace rocm_fp8::mx_gemm {

Status launch(const Args& args, const Executor& on) {
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    const auto fast = [&](const Args& a, const Vendor& vendor) {
        return tiles_fit(a, vendor.chip) ? launch_tiles(a, vendor.chip, vendor.on) : launch_stream(a, vendor);
    };
    const auto fits = [&](const Args& a) { return tiles_fit(a, chip) || streams(a); };
    return launch_by_type(args, Vendor(chip, on), fits, fast);
}

bool gates(const Args& args) {
    const auto [chip, status] = current_chip();
    return status.ok() && tiles_fit(args, chip);
}

}  // namespace rocm_fp8::mx_gemm
