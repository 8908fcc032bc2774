// mla_append for MI300X (gfx942) and MI350 (gfx950): the launcher of ../gpu.h's kernels.
#include "../../common/rows/hip/vendor.h"
#include "../gpu.h"

namespace rocm_fp8::mla_append {

Status launch(const Args& args, const Executor& on) {
    const ArchResult chip = current_arch();
    return chip.status.ok() ? launch_by_type(args, Vendor(chip.arch, on)) : chip.status;
}

}  // namespace rocm_fp8::mla_append
