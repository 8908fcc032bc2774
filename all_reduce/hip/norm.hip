// All-reduce, residual, RMSNorm and FP8 in one launch, for MI300X (gfx942) and MI350 (gfx950) of one host.
//
// Bytes: those of all_reduce.hip over the links and into the memory of the receiver; 2 (x) + 2 (residual) + 2 (residual
// written) + 1 (out) an element. A row stays in registers from the sum on.
//
//   1 load       x and residual, 128 bits a lane; the epoch
//   2 send       x to the other ranks
//   3 sum        of what comes from them
//   4 to 6       residual, RMSNorm, FP8: ../../rmsnorm_fp8/gpu.h, of which this is a source of rows
//
// Files: norm.hip (kernels, launcher), config.h (who holds a row), all_reduce.hip, ../gpu.h. What these kernels do not
// take (weights of float32 beside 16-bit rows, odd widths, a scale of the tensor, the other chip's FP8) is a sum in
// memory and rms_norm.
//
// Limit today: unknown, nothing has been measured on an AMD GPU. Journal: docs/journal/all_reduce.md.
#include "../../common/rows/hip/vendor.h"
#include "../../rmsnorm_fp8/gpu.h"
#include "../gemm.h"
#include "config.h"

namespace rocm_fp8::all_reduce {
namespace {

using rms_norm::Residual;

// `threads`: of the workgroup.
template <DType in, Output output, Holder holder, int kHeld, int kMost>
__global__ __launch_bounds__(most_threads(holder)) void norm_of_sum(int threads, rms_norm::Args a, Peers peers, Way way,
                                                                    uint32_t what) {
    const RowHolder<holder, kHeld> by(threads);
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

using Kernel = void (*)(int, rms_norm::Args, Peers, Way, uint32_t);

template <DType in, Output output, int kMost>
Kernel kernel_of_form(const RowForm& form) {
    return kernel_at<hip::kNormFormCount>(hip::form_of(form), []<int i>() -> Kernel {
        constexpr RowForm f = hip::kNormForms[i];
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
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    const Vendor vendor(chip.arch, on);
    const int64_t row_bytes = args.d * 2, at_once = row_bytes ? message_at_once(peers) / row_bytes : 0;
    const bool fits = at_once > 0 && fused(args, vendor.fp8) && rms_norm::rows_fit(args, 2 * kEight, 16);
    if (args.rows == 0 || args.d == 0) return {};
    if (peers.ranks == 1) return rms_norm::launch(args, on);
    if (hip::norm_config(args.rows, args.d, chip.arch, fits).is_fallback())
        return launch_apart(args, on, [&](const Args& sum) {
            return sent ? launch_received(sum, peers, *sent, on) : launch(sum, peers, on);
        });
    return each_epoch(args.rows, at_once, [&](int64_t first, int64_t count) {
        const rms_norm::Args part = rows_of(args, first, count);
        const hip::Config config = hip::norm_config(count, args.d, chip.arch, true);
        const uint32_t what = sent ? *sent : comm::signature(Operation::norm, args.dtype, count, args.d);
        const Way way = sent ? Way::sent : way_of(peers, count * row_bytes);
        const Kernel kernel = args.dtype == DType::f16 ? kernel_of<DType::f16>(config, args.is_dynamic(), peers.ranks)
                                                       : kernel_of<DType::bf16>(config, args.is_dynamic(), peers.ranks);
        return vendor.launch(kernel, ceil_div(count, config.rows), config.threads, 1, config.threads, part, peers, way,
                             what);
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
