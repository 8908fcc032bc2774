// All-reduce, residual, RMSNorm and FP8 in one launch, for NVIDIA GPUs of one host.
//
// Bytes: those of all_reduce.cu over the links and into the memory of the receiver; 2 (x) + 2 (residual) + 2 (residual
// written) + 1 (out) an element. A row stays in registers from the sum on.
//
//   1 load       x and residual, 128 bits a lane; the epoch
//   2 send       x to the other ranks
//   3 sum        of what comes from them
//   4 to 6       residual, RMSNorm, FP8: ../../rmsnorm_fp8/gpu.h, of which this is a source of rows
//
// Files: norm.cu (kernels, launcher), all_reduce.cu, ../gpu.h; rows' holders are those of rmsnorm_fp8/cuda/config.h.
// What these kernels do not take (weights of float32 beside 16-bit rows, odd widths, a scale of the tensor, fnuz) is a
// sum in memory and rms_norm. Journal: docs/journal/all_reduce.md.
#include "../../common/rows/cuda/vendor.h"
#include "../../rmsnorm_fp8/cuda/config.h"
#include "../../rmsnorm_fp8/gpu.h"
#include "../gemm.h"

namespace rocm_fp8::all_reduce {
namespace {

using rms_norm::Residual;

// Several vectors a thread, or one of each of eight ranks, take more registers than a thousand threads have.
constexpr int most_threads_of(const RowForm& form, int most_ranks) {
    return (most_ranks > 2 || form.held > 1) && most_threads(form.holder) > 512 ? 512 : most_threads(form.holder);
}

// A sum waits for a link, which few multiprocessors do not fill: rows that a CTA each would take go to clusters while
// two CTAs a multiprocessor are enough for all. For the norm alone these are no faster (rmsnorm_fp8/cuda/config.h).
constexpr rms_norm::cuda::Config spread(const rms_norm::cuda::Config& config, int64_t rows, int64_t d,
                                        const Vendor& on) {
    constexpr int kMostThreads = 512, kWarpLanes = 32;
    if (config.holder != Holder::workgroup || config.is_fallback() || !on.clusters) return config;
    const int64_t vectors = d / kEight;
    for (int cluster = 4; cluster > 1; cluster /= 2) {
        const int64_t threads = ceil_div(vectors, int64_t(cluster) * kWarpLanes) * kWarpLanes;
        if (rows * cluster <= 2 * on.units && threads <= kMostThreads)
            return {{Holder::cluster, 1}, int(threads), 1, cluster};
    }
    return config;
}

template <DType in, Output output, Holder holder, int kHeld, int kMost>
__global__
__launch_bounds__(most_threads_of({holder, kHeld}, kMost),
                  1) void norm_of_sum(rms_norm::Args a, const __grid_constant__ Peers peers, Way way, uint32_t what) {
    const RowHolder<holder, kHeld> by;
    let_next_kernel_start();
    by.expect(output == Output::computed);
    wait_for_previous_kernel();
    Exchange<kMost> exchange(peers);
    exchange.begin(what, way == Way::sent);
    // A workgroup of several rows has some behind the last one. They take part in its barriers.
    const uint32_t vectors = uint32_t(a.d) / kEight;
    if (by.row < a.rows) {
        using Hidden = rms_norm::Hidden<in, Residual::added>;
        const PeerSum<in, kMost, Hidden> sum{
            {a.x, a.residual, a.x_stride, a.residual_stride}, {exchange, way, what}, uint32_t(by.row) * vectors};
        rms_norm::write_normalized<in, output, kHeld>(sum, a.weight, uint32_t(a.d), by, a, [] {});
    }
    // Barrier: nobody counts the epoch before all of the workgroup have read it.
    __syncthreads();
    exchange.end(what);
}

using Kernel = void (*)(rms_norm::Args, Peers, Way, uint32_t);

constexpr RowForm kNormForms[] = {{Holder::wave, 1},      {Holder::wave, 2},      {Holder::wave, 4},
                                  {Holder::workgroup, 2}, {Holder::workgroup, 4}, {Holder::cluster, 1}};
constexpr int kNormFormCount = sizeof(kNormForms) / sizeof(kNormForms[0]);

template <DType in, Output output, int kMost>
Kernel kernel_of_form(const RowForm& form) {
    int at = 0;
    while (at + 1 < kNormFormCount && !(kNormForms[at] == form)) ++at;
    return kernel_at<kNormFormCount>(at, []<int i>() -> Kernel {
        constexpr RowForm f = kNormForms[i];
        return norm_of_sum<in, output, f.holder, f.held, kMost>;
    });
}
template <DType in, int kMost>
Kernel kernel_of_output(const RowForm& form, bool computed) {
    return computed ? kernel_of_form<in, Output::computed, kMost>(form) : kernel_of_form<in, Output::fp8, kMost>(form);
}
template <DType in>
Kernel kernel_of(const RowForm& form, bool computed, int ranks) {
    return ranks <= 2 ? kernel_of_output<in, 2>(form, computed)
                      : kernel_of_output<in, comm::kMostRanks>(form, computed);
}

// sent: the signature of x, one message that a GEMM has sent; or nullptr.
Status launch_norm(const rms_norm::Args& args, const Peers& peers, const Executor& on, const uint32_t* sent) {
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    const Vendor vendor(chip, on);
    const int64_t row_bytes = args.d * 2, at_once = row_bytes ? message_at_once(peers) / row_bytes : 0;
    const bool fits = at_once > 0 && fused(args, DType::e4m3fn) && rms_norm::rows_fit(args, kEight, kEight);
    const auto config_of = [&](int64_t rows) {
        auto config = rms_norm::cuda::pick_config(rows, args.d, vendor.units, vendor.clusters, fits);
        config = spread(config, rows, args.d, vendor);
        const auto most = [&] { return most_threads_of(config, peers.ranks); };
        if (config.threads > most() && config.held == 2)
            config.held = 4, config.threads = (config.threads / 2 + 31) / 32 * 32;
        if (config.threads > most()) static_cast<RowForm&>(config) = rms_norm::cuda::kFallback;
        return config;
    };
    if (args.rows == 0 || args.d == 0) return {};
    if (peers.ranks == 1) return rms_norm::launch(args, on);
    if (config_of(args.rows).is_fallback())
        return launch_apart(args, on, [&](const Args& sum) {
            return sent ? launch_received(sum, peers, *sent, on) : launch(sum, peers, on);
        });
    return each_epoch(args.rows, at_once, [&](int64_t first, int64_t count) {
        const rms_norm::Args part = rows_of(args, first, count);
        const auto config = config_of(count);
        const uint32_t what = sent ? *sent : comm::signature(Operation::norm, args.dtype, count, args.d);
        const Way way = sent ? Way::sent : way_of(peers, count * row_bytes);
        const Kernel kernel = args.dtype == DType::f16 ? kernel_of<DType::f16>(config, args.is_dynamic(), peers.ranks)
                                                       : kernel_of<DType::bf16>(config, args.is_dynamic(), peers.ranks);
        return vendor.launch(kernel, ceil_div(count, config.rows) * config.cluster, config.threads, config.cluster,
                             part, peers, way, what);
    });
}

}  // namespace

Status launch(const rms_norm::Args& args, const Peers& peers, const Executor& on) {
    return launch_norm(args, peers, on, nullptr);
}
Status launch(const skinny_gemm::Args& gemm, const rms_norm::Args& norm, const Peers& peers, const Executor& on) {
    return launch_gemm(
        gemm, peers, Operation::gemm_norm, on, [&](uint32_t what) { return launch_norm(norm, peers, on, &what); },
        [&] { return launch(norm, peers, on); });
}

}  // namespace rocm_fp8::all_reduce
