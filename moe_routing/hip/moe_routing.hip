// What surrounds the GEMMs of a mixture of experts on MI300X (gfx942) and MI350 (gfx950): the launchers of ../gpu.h's
// kernels.
//
// Limit today: unknown, nothing has been measured on an AMD GPU.
#include "../../common/rows/hip/vendor.h"
#include "../gpu.h"

namespace rocm_fp8::moe_routing {

Status launch_route(const RouteArgs& args, const Executor& on) {
    const ArchResult chip = current_arch();
    return chip.status.ok() ? route_by_type(args, Vendor(chip.arch, on)) : chip.status;
}

Status launch_sort(const SortArgs& args, const Executor& on) {
    const ArchResult chip = current_arch();
    return chip.status.ok() ? sort_by_type(args, Vendor(chip.arch, on), on) : chip.status;
}

Status launch_combine(const CombineArgs& args, const Executor& on) {
    const ArchResult chip = current_arch();
    return chip.status.ok() ? combine_by_type(args, Vendor(chip.arch, on)) : chip.status;
}

}  // namespace rocm_fp8::moe_routing
