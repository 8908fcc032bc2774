#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::rms_norm {

Status launch(const Args& args, const Executor& on) {
    return launch_dynamic(args, RowsKernels<Job>{pick<Lanes<Portable>>, kernel_avx2, kernel_avx512}, on,
                          [](Job& again) {
                              // The first run has updated the residual, and written the normalised values.
                              if (again.residual) {
                                  again.x = again.residual;
                                  again.x_stride = again.residual_stride;
                                  again.residual = nullptr;
                              }
                              again.normalized = nullptr;
                          });
}

}  // namespace rocm_fp8::rms_norm
