// MX weights on MI300X (gfx942) and MI350 (gfx950): the launcher of ../gpu.h's kernel.
#include "../../common/rows/hip/vendor.h"
#include "../../common/vendor.h"
#include "products.h"
#include "../gpu.h"

namespace rocm_fp8::mx_gemm {

Status launch(const Args& args, const Executor& on) {
    const ArchResult chip = current_arch();
    return chip.status.ok() ? launch_by_type(args, Vendor(chip.arch, on)) : chip.status;
}

}  // namespace rocm_fp8::mx_gemm
