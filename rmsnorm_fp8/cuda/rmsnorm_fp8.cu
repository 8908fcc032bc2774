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
#include "../../common/cuda/mbarrier.h"
#include "../../common/rows/cuda/vendor.h"
#include "config.h"
#include "../gpu.h"

namespace rocm_fp8::rms_norm::cuda {
namespace {

struct Machine {
    static __device__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
    static __device__ float rsqrt(float v) { return rsqrtf(v); }
    static __device__ float sqrt(float v) { return sqrtf(v); }
};

struct Rows {
    using Machine = cuda::Machine;
    static constexpr int kVector = cuda::kVector, kThreads = kSmallCta;  // of rms_norm_fallback
    static constexpr int kSlots = 256;                                   // sums of 32 vectors each: 65536 elements
    // The sum of a row from the sums of its groups of 32 vectors. Every lane gets it.
    static __device__ float sum_of_slots(const float* slots, int used) {
        const int lane = threadIdx.x % kWarp;
        float v[1] = {0};  // not the scalar sum_over_lanes: nvcc generates different code for it than was measured
        for (int i = lane; i < used; i += kWarp) v[0] += slots[i];
        sum_over_warp(v);
        return v[0];
    }
};

// How a launch overlaps with its neighbours in the stream: see rows_to_fetch, rows_ahead and next_at_once.
struct RowOverlap {
    int64_t fetched, ahead;
    bool next_at_once;
};

// Who holds a row, for computed_quotients.
template <RowOwner owner>
struct Holder {
    int64_t row;
    int lanes, t;
    Barrier* maxima_full;  // of a cluster
    __device__ uint32_t largest(uint32_t v) const {
        if constexpr (owner == RowOwner::warp) return max_over_lanes<kWarp>(v);
        else if constexpr (owner == RowOwner::cta) return largest_of_workgroup<kMostThreads>(v, lanes);
        else return largest_of_cluster(maxima_full, v);
    }
};

// kHeld: vectors per thread. fetches_ahead: compiled with the fetch of rows_ahead.
template <DType in, DType weight_type, Output output, bool with_residual, RowOwner owner, int kHeld,
          bool fetches_ahead = false>
__global__ __launch_bounds__(owner == RowOwner::warp ? kSmallCta : kMostThreads) void rms_norm_fast(
    Args a, RowOverlap overlap) {
    constexpr bool computed = output == Output::computed, to_fp8 = computed || output == Output::fp8;
    constexpr bool by_warp = owner == RowOwner::warp, by_cluster = owner == RowOwner::cluster;
    const int ctas = by_cluster ? int(ctas_in_cluster()) : 1, rank = by_cluster ? int(rank_in_cluster()) : 0;
    const int lanes = by_warp ? kWarp : int(blockDim.x), lane = threadIdx.x % kWarp;
    const int t = by_warp ? lane : int(threadIdx.x);
    const int64_t row = by_warp ? int64_t(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp : blockIdx.x / ctas;
    constexpr bool always_at_once = always_next_at_once(owner, kHeld);
    if (always_at_once || overlap.next_at_once) let_next_kernel_start();
    if (by_warp && row >= a.rows) return;

    const void* x = offset(a.x, row * a.x_stride * 2);
    // With computed scales it is known at run time alone: half the kernels.
    const bool adds = with_residual && (!computed || a.residual);
    void* residual = adds ? offset(a.residual, row * a.residual_stride * 2) : nullptr;
    const int vectors = int(a.d / kVector);
    const auto index = [&](int v) { return (v * ctas + rank) * lanes + t; };
    if constexpr (!by_warp) {
        if (t < kHeld && row < overlap.fetched) {
            const int first = (t * ctas + rank) * lanes, end = first + lanes < vectors ? first + lanes : vectors;
            if (first < end) {
                const uint32_t bytes = (end - first) * 16;
                fetch_to_l2(offset(x, first * 16), bytes);
                if (adds) fetch_to_l2(offset(residual, first * 16), bytes);
                constexpr int kLoads = Eight<weight_type>::kLoads;
                if (row == 0) fetch_to_l2(offset(a.weight, first * 16 * kLoads), bytes * kLoads);
            }
        }
    }
    __shared__ Barrier slots_full, maxima_full;  // used with clusters alone
    // Closes: no CTA writes to another CTA of the cluster before that one runs.
    if constexpr (by_cluster) {
        if (t == 0) {
            make_barrier(&slots_full, 1);
            publish_barriers();
            arrive_expecting(&slots_full, kHeld * ctas * (lanes / kWarp) * sizeof(float));
            if constexpr (computed) expect_maxima(&maxima_full);
        }
        __syncwarp();
        arrive_at_cluster_start();
    }
    wait_for_previous_kernel();
    if (!always_at_once && !overlap.next_at_once) let_next_kernel_start();

    uint4 h[kHeld], added[kHeld];
    // If registers allow it, weights are loaded together with the row, so that one latency covers both. Else they are
    // loaded before the exchange, which hides the latency. Those that do not fit are loaded at their use.
    constexpr bool weights_first = kHeld <= 2, weights_last = kHeld * Eight<weight_type>::kLoads > 4;
    Eight<weight_type> weight[weights_last ? 1 : kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        // Threads beyond the row's end load its last vector, but do not add it to the sum.
        const int loaded = index(v) < vectors ? index(v) : vectors - 1;
        h[v] = load(offset(x, loaded * 16));
        if (adds) added[v] = load(offset(residual, loaded * 16));
    }
    const auto load_weight = [&](int v, Eight<weight_type>& w) {
        w.load_from(a.weight, index(v) < vectors ? index(v) : vectors - 1);
    };
    if constexpr (weights_first) {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) load_weight(v, weight[v]);
    }
    const QuantizationScale scale = output == Output::fp8 ? QuantizationScale(a.scale) : QuantizationScale();

    float sums[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        f32x2 wide[kVector / 2];
#pragma unroll
        for (int i = 0; i < kVector / 2; ++i) {
            if (adds) word(h[v], i) = Pairs<in>::add(word(h[v], i), word(added[v], i));
            wide[i] = Pairs<in>::widen(word(h[v], i));
        }
        sums[v] = index(v) < vectors ? sum_of_squares(wide) : 0.0f;
    }
    if (adds) {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            if (index(v) < vectors) store(offset(residual, index(v) * 16), h[v]);
        }
    }
    if constexpr (!weights_first && !weights_last) {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) load_weight(v, weight[v]);
    }

    sum_over_warp(sums);
    float sum;
    if constexpr (by_warp) {
        // The same bits as sum_of_slots.
        sum = sums[0];
        if constexpr (kHeld >= 2) sum += sums[1];
        if constexpr (kHeld == 4) sum += sums[2] + sums[3];
    } else {
        __shared__ float slots[Rows::kSlots];
        const int warps = lanes / kWarp, warp = t / kWarp;
        const auto slot = [&](int v) { return (v * ctas + rank) * warps + warp; };
        if constexpr (by_cluster) {
            wait_for_cluster_start();
            if (lane < ctas) {
                const uint32_t barrier = address_in_cta(&slots_full, lane);
#pragma unroll
                for (int v = 0; v < kHeld; ++v)
                    send_in_cluster(address_in_cta(slots + slot(v), lane), sums[v], barrier);
            }
            // Closes: the slots are read below by warps and CTAs that did not write them.
            wait_for(&slots_full, 0);
        } else {
            if (lane == 0) {
#pragma unroll
                for (int v = 0; v < kHeld; ++v) slots[slot(v)] = sums[v];
            }
            // Closes: the slots are read below by warps that did not write them.
            __syncthreads();
        }
        sum = Rows::sum_of_slots(slots, kHeld * ctas * warps);
    }
    if (fetches_ahead && t == 0 && overlap.ahead && row + overlap.ahead < a.rows) {
        fetch_to_l2(offset(x, overlap.ahead * a.x_stride * 2), vectors * 16);
        if (adds) fetch_to_l2(offset(residual, overlap.ahead * a.residual_stride * 2), vectors * 16);
    }
    const float r = reciprocal_rms(sum, 1.0f / float(int(a.d)), a.epsilon, Machine());

    void* out = offset(a.out, row * a.out_stride * (to_fp8 ? 1 : 2));
    if constexpr (computed) {
        Eight<in> y[kHeld];
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            Eight<weight_type>& w = weight[weights_last ? 0 : v];
            if constexpr (weights_last) load_weight(v, w);
#pragma unroll
            for (int i = 0; i < kVector / 2; ++i) word(y[v].bits[0], i) = normalize<in>(word(h[v], i), r, w.pair(i));
        }
        uint2 q[kHeld];
        if (!computed_quotients(a, Holder<owner>{row, ctas * lanes, rank * lanes + t, &maxima_full}, y, q)) return;
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            if (index(v) < vectors) store(offset(out, index(v) * 8), q[v]);
        }
    } else {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            uint4 y;
            Eight<weight_type>& w = weight[weights_last ? 0 : v];
            if constexpr (weights_last) load_weight(v, w);
#pragma unroll
            for (int i = 0; i < kVector / 2; ++i) word(y, i) = normalize<in>(word(h[v], i), r, w.pair(i));
            if constexpr (to_fp8) {
                f32x2 wide[kVector / 2];
#pragma unroll
                for (int i = 0; i < kVector / 2; ++i) wide[i] = Pairs<in>::widen(word(y, i));
                const uint2 q = quantize_eight(wide, scale);
                if (index(v) < vectors) store(offset(out, index(v) * 8), q);
            } else {
                if (index(v) < vectors) store(offset(out, index(v) * 16), y);
            }
        }
    }
}

template <DType in>
__global__ __launch_bounds__(Rows::kThreads) void rms_norm_fallback(Args a, RowOverlap) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    rms_norm_row<Rows, in>(a, blockIdx.x);
}

// Every instantiation, chosen by types and the configuration.
using Kernel = void (*)(Args, RowOverlap);

template <DType in, DType weight, Output output, bool with_residual>
Kernel kernel_by_config(const Config& c, bool ahead) {
    if (c.owner == RowOwner::fallback) return rms_norm_fallback<in>;
    return kernel_at<kRowFormCount>(form_of(c, ahead), []<int i>() -> Kernel {
        constexpr RowForm f = kRowForms[i];
        return rms_norm_fast < in, weight, output, with_residual || output == Output::computed, f.owner, f.vectors,
               f.fetches_ahead && output != Output::values > ;
    });
}

}  // namespace
}  // namespace rocm_fp8::rms_norm::cuda

namespace rocm_fp8::rms_norm {

Status launch(const Args& args, const Executor& on) {
    using namespace cuda;
    if (args.rows == 0 || args.d == 0) return {};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    if (!is_fp8(args.out_dtype) && args.residual) return {"a residual without FP8 is not an operator"};
    const auto once = [&, chip = chip](const Args& a) -> Status {
        const Config config = pick_config(a.rows, a.d, chip.multiprocessors, chip.hopper(),
                                          rows_fit(a, kVector, 8) && a.out_dtype != DType::e4m3fnuz);
        const int64_t ctas = (a.rows + config.rows - 1) / config.rows * config.cluster;
        if (ctas > kMaxCtas) return {"x has more rows than one launch takes"};
        const int64_t row_bytes = a.d * (a.residual ? 4 : 2);
        const RowOverlap overlap{rows_to_fetch(a.rows, row_bytes, chip.multiprocessors),
                                 rows_ahead(a.rows, config, chip.multiprocessors),
                                 next_at_once(a.rows, a.d, config, chip.multiprocessors)};
        const Kernel kernel = by_types(a, [&]<DType in, DType weight, Output output, bool with_residual>() {
            return kernel_by_config<in, weight, output, with_residual>(config, overlap.ahead > 0);
        });
        return launch_kernel(kernel, chip, {ctas, config.threads, config.cluster}, on, a, overlap);
    };
    if (args.is_dynamic() && args.dynamic.group == DynamicScale::kTensor) return launch_tensor(args, on, once);
    return once(args);
}

}  // namespace rocm_fp8::rms_norm
