// quantize_mxfp4 for MI300X (gfx942) and MI350 (gfx950): the launcher of ../gpu.h's kernel.
#include "../../common/rows/hip/vendor.h"
#include "../../common/vendor.h"
#include "../gpu.h"

namespace rocm_fp8::quantize_mxfp4 {

Status launch(const Args& args, const Executor& on) {
    const ArchResult chip = current_arch();
    return chip.status.ok() ? launch_by(args, Vendor(chip.arch, on)) : chip.status;
}

}  // namespace rocm_fp8::quantize_mxfp4
