// Residual + RMSNorm + FP8 for NVIDIA GPUs.
//
// Bytes, with a residual and 16-bit types: 2 (x) + 2 (residual) + 2 (residual written) + 1 (out) = 7 an element. The
// weights (2 d a row) come from the caches. Floor: those bytes at the memory rate; on an H200 (4.47 TB/s) 52.5 us for
// 2048 rows of 16384. Each element is read once and written once: a row stays in registers between sum and
// normalisation.
//
//     CTA        row r:  | vector 0 | vector 1 | ... | vector T-1 |  T threads, 8 elements (16 bytes) each
//                        | vector T | ...                         |  thread t holds vectors t, t + T, ...
//     cluster    the same with T the threads of 2, 4 or 8 CTAs, whose sums meet in shared memory across the CTAs
//     warp       the same with T = 32, eight rows a CTA, no shared memory
//
//   1 fetch      the first rows and the weights into L2, while the previous kernel ends
//   2 load       x and residual, 128 bits a lane, all of a thread's vectors before the first is used
//   3 h, sum     packed addition; h goes back to the residual; squares of a vector, then a tree over 32 vectors
//   4 exchange   the sums of 32 vectors through shared memory, one barrier; every warp adds them in the same tree
//   5 fetch      with many rows: a row of a later CTA into L2, so that memory stays busy while this CTA computes
//   6 normalise  registers * r * weight / scale -> FP8, two numbers a conversion
//
// The tree of the sum depends on d alone: not on the number of rows, on T, on the chip or on the layout in memory. The
// element-by-element kernel (rms_norm_fallback) adds in the same order.
//
// Files: rmsnorm_fp8.cu (kernels, launcher), config.h (launch geometry, when neighbours start), ../gpu.h (what HIP and
// CUDA share), ../reciprocal_rms.h.
//
// Limit today: few rows are bound by the launch and one latency (1.5 us); 512 rows take 15.4 us against a floor of
// 13.1. There nothing fills the 2 us between a launch's last load and the next one's first.
//
// Steps, dropped attempts and figures: docs/journal/rmsnorm_fp8-cuda.md.
#include "../../common/rows/cuda/vendor.h"
#include "config.h"
#include "../gpu.h"

namespace rocm_fp8::rms_norm::cuda {
namespace {

// How a launch overlaps with its neighbours in the stream: see rows_to_fetch, rows_ahead and next_at_once.
struct RowOverlap {
    int64_t fetched, ahead;
    bool next_at_once;
};

// Of each of the thread block's vectors what its threads load, by one thread.
template <DType weight_type, int kHeld, class Source, class Row>
__device__ inline void fetch_first(const Source& source, const Args& a, const Row& by, uint32_t vectors) {
    if (threadIdx.x >= kHeld) return;
    const uint32_t first = threadIdx.x * by.lanes + (by.t - threadIdx.x), end = min(first + blockDim.x, vectors);
    if (first >= end) return;
    source.fetch(by.row, first, end - first);
    constexpr int kBytes = Eight<weight_type>::kBytes;
    if (by.row == 0) fetch_to_l2(offset(a.weight, int64_t(first) * kBytes), (end - first) * kBytes);
}

// fetches_ahead: compiled with the fetch of rows_ahead. With computed scales it is known at run time whether there is a
// residual: half the kernels.
template <DType in, DType weight_type, Output output, bool with_residual, Holder holder, int kHeld,
          bool fetches_ahead = false>
__global__ __launch_bounds__(most_threads(holder)) void rms_norm_fast(Args a, RowOverlap overlap) {
    constexpr Residual kResidual = output == Output::computed ? Residual::either
                                   : with_residual            ? Residual::added
                                                              : Residual::none;
    constexpr bool always_at_once = always_next_at_once({holder, kHeld});
    const RowHolder<holder, kHeld> by;
    if (always_at_once || overlap.next_at_once) let_next_kernel_start();
    if (holder == Holder::wave && by.row >= a.rows) return;

    const Hidden<in, kResidual> h{a.x, a.residual, a.x_stride, a.residual_stride};
    const uint32_t vectors = uint32_t(a.d) / kEight;
    if (holder != Holder::wave && by.row < overlap.fetched) fetch_first<weight_type, kHeld>(h, a, by, vectors);
    by.expect(output == Output::computed);
    wait_for_previous_kernel();
    if (!always_at_once && !overlap.next_at_once) let_next_kernel_start();
    write_normalized<weight_type, output, kHeld>(h, a.weight, uint32_t(a.d), by, a, [&] {
        if (fetches_ahead && by.t == 0 && overlap.ahead && by.row + overlap.ahead < a.rows)
            h.fetch(by.row + overlap.ahead, 0, vectors);
    });
}

template <DType in>
__global__ __launch_bounds__(kRowsThreads) void rms_norm_fallback(Args a, RowOverlap) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    write_normalized_by_element<in>(a);
}

// Every instantiation, chosen by types and the configuration.
using Kernel = void (*)(Args, RowOverlap);

template <DType in, DType weight, Output output, bool with_residual>
Kernel kernel_by_config(const Config& c, bool ahead) {
    if (c.is_fallback()) return rms_norm_fallback<in>;
    return kernel_at<kFormCount>(form_of(c, ahead), []<int i>() -> Kernel {
        constexpr Form f = kForms[i];
        constexpr bool kResidual = with_residual || output == Output::computed;
        constexpr bool kAhead = f.fetches_ahead && output != Output::values;
        return rms_norm_fast<in, weight, output, kResidual, f.holder, f.held, kAhead>;
    });
}

}  // namespace
}  // namespace rocm_fp8::rms_norm::cuda

namespace rocm_fp8::rms_norm {

Status launch(const Args& args, const Executor& on) {
    using namespace cuda;
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    const Vendor vendor(chip, on);
    return launch_rows(args, on, [&](const Args& a) -> Status {
        const Config config = pick_config(a.rows, a.d, vendor.units, vendor.clusters,
                                          rows_fit(a, kEight, kEight) && a.out_dtype != DType::e4m3fnuz);
        const RowOverlap overlap{rows_to_fetch(a.rows, a.d * (a.residual ? 4 : 2), vendor.units),
                                 rows_ahead(a.rows, config, vendor.units),
                                 next_at_once(a.rows, a.d, config, vendor.units)};
        const Kernel kernel = by_types(a, [&]<DType in, DType weight, Output output, bool with_residual>() {
            return kernel_by_config<in, weight, output, with_residual>(config, overlap.ahead > 0);
        });
        return vendor.launch(kernel, ceil_div(a.rows, config.rows) * config.cluster, config.threads, config.cluster, a,
                             overlap);
    });
}

}  // namespace rocm_fp8::rms_norm
