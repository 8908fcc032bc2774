// Quantisation to MXFP4 on the CPU.
#include "../../common/cpu/half.h"
#include "../../common/gemm/scales.h"
#include "../quantize_mxfp4.h"

namespace rocm_fp8::quantize_mxfp4 {

Status launch(const Args& args, const Executor& on) {
    if (args.rows == 0 || args.k == 0) return {};
    on.parallel_for(
        0, args.rows * (args.k / kMxBlock), 256,
        [](void* context, int64_t begin, int64_t end) {
            const Args& a = *static_cast<const Args*>(context);
            const int64_t blocks = a.k / kMxBlock;
            for (int64_t n = begin; n < end; ++n) {
                const int64_t first = n / blocks * a.x_stride + n % blocks * kMxBlock;
                float values[kMxBlock];
                for (int i = 0; i < kMxBlock; ++i) {
                    values[i] = a.dtype == DType::f32
                                    ? static_cast<const float*>(a.x)[first + i]
                                    : gemm::widened(a.dtype, static_cast<const uint16_t*>(a.x)[first + i]);
                }
                quantize_block([&](int i) { return values[i]; }, a.even, a.codes + n * (kMxBlock / 2), a.scales + n);
            }
        },
        const_cast<Args*>(&args));
    return {};
}

}  // namespace rocm_fp8::quantize_mxfp4
