// MX weights on NVIDIA GPUs: the launcher.
//
// Files: stream.h             few rows of one matrix; chips other than Hopper
//        tiles.h              all others on Hopper
//        epilogue.h           its lanes' columns, and what becomes of their sums
//        order.h              16-bit numbers of codes and rows for both; rows as the tiles take them
//        ../gpu.h, products.h   what those do not take: the plain kernel
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
        const bool by_tiles = tiles_fit(a, vendor.chip) && !streams_at_once(a, vendor.chip);
        return by_tiles ? launch_tiles(a, vendor.chip, vendor.on) : launch_stream(a, vendor);
    };
    const auto fits = [&](const Args& a) { return tiles_fit(a, chip) || streams(a); };
    return launch_by_type(args, Vendor(chip, on), fits, fast);
}

bool gates(const Args& args) {
    const auto [chip, status] = current_chip();
    return status.ok() && (tiles_fit(args, chip) || streams(args));
}

}  // namespace rocm_fp8::mx_gemm
