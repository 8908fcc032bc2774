// mla_append for NVIDIA GPUs: the launcher of ../gpu.h's kernels.
#include "../../common/rows/cuda/vendor.h"
#include "../gpu.h"

namespace rocm_fp8::mla_append {

Status launch(const Args& args, const Executor& on) {
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    // Such a cache could be written, but mla_decode does not read it here.
    if (args.cache.dtype == DType::e4m3fnuz) return {"cache: dtype float8_e4m3fnuz; NVIDIA GPUs decode float8_e4m3fn"};
    return launch_by_type(args, Vendor(chip, on));
}

}  // namespace rocm_fp8::mla_append
