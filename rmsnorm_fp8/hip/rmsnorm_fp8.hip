// Residual + RMSNorm + FP8 for MI300X (gfx942) and MI350 (gfx950).
//
// Bytes, with a residual and 16-bit types: 2 (x) + 2 (residual) + 2 (residual written) + 1 (out) = 7 an element. The
// weights (2 d a row) come from the caches. Floor: those bytes at the memory rate; estimated for an MI300X (4.2 TB/s)
// 56 us for 2048 rows of 16384. Each element is read once and written once: a row stays in registers between sum and
// normalisation.
//
//     workgroup    row r:  | vector 0 | vector 1 | ... | vector T-1 |  T threads, 8 elements (16 bytes) each
//                          | vector T | ...                         |  thread t holds vectors t, t + T, ...
//     wave         the same with T = 64, four rows a workgroup, no LDS
//     quarter      T = 16, sixteen rows a workgroup
//
//   1 load       x and residual, 128 bits a lane, all of a thread's vectors before the first is used
//   2 h, sum     packed addition; h goes back to the residual; squares of a vector, then a tree by DPP over 64 vectors
//   3 exchange   the sums of 64 vectors through LDS, one barrier; every wave adds them in the same tree
//   4 normalise  registers * r * weight / scale -> FP8, two numbers an instruction; lanes swap halves: 128-bit stores
//
// The tree of the sum depends on d alone: not on the number of rows, on T, or on the layout in memory. The
// element-by-element kernel (rms_norm_fallback) adds in the same order.
//
// Files: rmsnorm_fp8.hip (entries, launcher), config.h (launch geometry), ../gpu.h (the kernels' bodies),
// ../reciprocal_rms.h.
//
// Limit today: unknown, nothing has been measured on an AMD GPU. By the estimates many rows are bound by HBM; one row
// is bound by the 96 KiB that one compute unit loads and the instructions that follow, 3.6 us in all.
//
// Steps and the design's estimates: docs/journal/rmsnorm_fp8-hip.md.
#include "../../common/rows/hip/vendor.h"
#include "config.h"
#include "../gpu.h"

namespace rocm_fp8::rms_norm::hip {
namespace {

// What the loads need stands first, outside of Args: it is in registers when a wave begins. `threads`: of the workgroup.
template <DType in, DType weight_type, Output output, bool with_residual, Holder holder, int kHeld>
__global__ __launch_bounds__(most_threads(holder)) void rms_norm_fast(const void* first_x, void* first_residual,
                                                                      int64_t x_stride, int64_t residual_stride,
                                                                      const void* weights, uint32_t d, int threads,
                                                                      Args a) {
    const RowHolder<holder, kHeld> by(threads);
    // Only whole waves, or whole rows of 16 lanes, leave here: no data are exchanged between those.
    if (holder != Holder::workgroup && by.row >= a.rows) return;
    const Hidden<in, with_residual ? Residual::added : Residual::none> h{first_x, first_residual, x_stride,
                                                                         residual_stride};
    write_normalized<weight_type, output, kHeld>(h, weights, d, by, a, [] {});
}

template <DType in>
__global__ __launch_bounds__(kRowsThreads) void rms_norm_fallback(Args a) {
    write_normalized_by_element<in>(a);
}

}  // namespace
}  // namespace rocm_fp8::rms_norm::hip

namespace rocm_fp8::rms_norm {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    const Vendor vendor(chip.arch, on);
    return launch_rows(args, on, [&](const Args& a) -> Status {
        const bool native = !is_fp8(a.out_dtype) || a.out_dtype == vendor.fp8;
        const Config config = pick_config(a.rows, a.d, chip.arch, rows_fit(a, 2 * kEight, 16) && native);
        const int64_t groups = ceil_div(a.rows, config.rows);
        if (config.is_fallback()) {
            return vendor.launch(a.dtype == DType::f16 ? rms_norm_fallback<DType::f16> : rms_norm_fallback<DType::bf16>,
                                 groups, config.threads, 1, a);
        }
        const auto kernel = by_types(a, [&]<DType in, DType weight, Output output, bool with_residual>() {
            return kernel_at<kFormCount>(form_of(config), []<int i>() {
                return rms_norm_fast<in, weight, output, with_residual, kForms[i].holder, kForms[i].held>;
            });
        });
        return vendor.launch(kernel, groups, config.threads, 1, a.x, a.residual, a.x_stride, a.residual_stride,
                             a.weight, uint32_t(a.d), config.threads, a);
    });
}

}  // namespace rocm_fp8::rms_norm
