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
// Files: rmsnorm_fp8.hip (kernels, launcher), config.h (launch geometry), ../gpu.h (what HIP and CUDA share),
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

struct Machine {
    __device__ static float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
    __device__ static float rsqrt(float v) { return __builtin_amdgcn_rsqf(v); }
    __device__ static float sqrt(float v) { return __builtin_sqrtf(v); }
};

struct Rows {
    using Machine = hip::Machine;
    static constexpr int kVector = hip::kVector, kSlots = 2 * kWave, kThreads = 256;  // of rms_norm_fallback
    // The sum of a row from the sums of its groups of 64 vectors, in LDS. Every lane gets it.
    __device__ static float sum_of_slots(const float* slots, int used) {
        const int lane = threadIdx.x % kWave;
        float v = lane < used ? slots[lane] : 0.0f;
        if (used > kWave) v += kWave + lane < used ? slots[kWave + lane] : 0.0f;
        return of_last_lane(sum_to_last_lane(v));
    }
};

// Who holds a row, for computed_quotients.
template <RowOwner owner>
struct Holder {
    int64_t row;
    int lanes, t;
    __device__ uint32_t largest(uint32_t v) const {
        if constexpr (owner == RowOwner::workgroup) return largest_of_workgroup<kMostThreads>(v, lanes);
        else return max_over_lanes<owner == RowOwner::quarter_wave ? 16 : kWave>(v);
    }
};

// kHeld vectors a thread. What the loads need stands first, outside of Args: it is in registers when a wave begins.
// `threads`: of the workgroup.
template <DType in, DType weight_type, Output output, bool with_residual, RowOwner owner, int kHeld>
__global__ __launch_bounds__(owner == RowOwner::workgroup ? kMostThreads : 256) void rms_norm_fast(
    const void* first_x, void* first_residual, int64_t x_stride, int64_t residual_stride, const void* weights,
    uint32_t d, int threads, Args a) {
    constexpr bool whole_group = owner == RowOwner::workgroup, quarter = owner == RowOwner::quarter_wave;
    constexpr bool computed = output == Output::computed, to_fp8 = computed || output == Output::fp8;
    // If registers allow it, weights are loaded together with the row, so that one latency covers both. Else they are
    // loaded before the exchange, which hides the latency. Those of eight vectors do not fit and are loaded at their
    // use.
    constexpr bool weights_first = kHeld <= 2, weights_last = kHeld == 8;
    const int lanes = whole_group ? threads : quarter ? 16 : kWave;
    const int t = whole_group ? int(threadIdx.x) : int(threadIdx.x) % lanes;
    int64_t row = blockIdx.x;
    if constexpr (owner == RowOwner::wave) row = row * 4 + uniform(threadIdx.x / kWave);
    if constexpr (quarter) row = row * 16 + threadIdx.x / 16;
    // Only whole waves, or whole rows of 16 lanes, leave here: no data are exchanged between those.
    if (!whole_group && row >= a.rows) return;

    const void* x = offset(first_x, row * x_stride * 2);
    void* residual = with_residual ? offset(first_residual, row * residual_stride * 2) : nullptr;
    const uint32_t vectors = d / kVector;
    const auto index = [&](int v) { return uint32_t(v * lanes + t); };
    // Threads beyond the row's end load its last vector and do not count it: a branch around loads would keep them from
    // being in flight together.
    const auto loaded = [&](int v) { return index(v) < vectors ? index(v) : vectors - 1; };

    u32x4 h[kHeld], added[kHeld];
    Eight<weight_type> weight[weights_last ? 1 : kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        h[v] = load<u32x4>(x, loaded(v) * 16);
        if constexpr (with_residual) added[v] = load<u32x4>(residual, loaded(v) * 16);
    }
    // Keeps the order of the loads, so that the first sum waits for the row alone.
    __builtin_amdgcn_sched_barrier(0);
    const auto load_weights = [&] {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) weight[v].load_from(weights, loaded(v));
    };
    if constexpr (weights_first) load_weights();
    float reciprocal_d = 1.0f / float(int(d));
    QuantizationScale scale;
    if constexpr (output == Output::fp8) {
        scale = QuantizationScale(a.scale);
        scale.have_now();
    }
    have_computed(reciprocal_d);
    have_now(a.epsilon);
    have_now(a.out);
    // Code above does not wait for the row; code below does.
    __builtin_amdgcn_sched_barrier(0);

    float sums[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        f32x2 squares = both(0.0f);  // in the order of sum_of_squares
#pragma unroll
        for (int i = 0; i < kVector / 2; ++i) {
            if constexpr (with_residual) h[v][i] = Pairs<in>::add(h[v][i], added[v][i]);
            squares = Pairs<in>::add_squares(h[v][i], squares);
        }
        sums[v] = index(v) < vectors ? squares.x + squares.y : 0.0f;
    }
    // Loads come before stores, because vmcnt counts both in order: a later load's wait would include the stores.
    if constexpr (!weights_first && !weights_last) load_weights();
    __builtin_amdgcn_sched_barrier(0);
    if constexpr (with_residual) {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            if (index(v) < vectors) store(residual, index(v) * 16, h[v]);
        }
    }

    float sum;
    if constexpr (quarter) {
        sum = sum_of_row(sums[0]);
    } else {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) sums[v] = sum_to_last_lane(sums[v]);
        if constexpr (whole_group) {
            __shared__ float slots[Rows::kSlots];
            const int waves = lanes / kWave, wave = uniform(t / kWave);
            if (t % kWave == kWave - 1) {
#pragma unroll
                for (int v = 0; v < kHeld; ++v) slots[v * waves + wave] = sums[v];
            }
            // Closes: the slots are read below by waves that did not write them.
            __syncthreads();
            sum = Rows::sum_of_slots(slots, kHeld * waves);
        } else {
            // The same bits as sum_of_slots.
            sum = of_last_lane(sums[0]);
            if constexpr (kHeld >= 2) sum = of_last_lane(sums[1]) + sum;
            if constexpr (kHeld == 4) sum = (of_last_lane(sums[3]) + of_last_lane(sums[2])) + sum;
        }
    }
    const float r = reciprocal_rms(sum, reciprocal_d, a.epsilon, Machine());
    const auto weight_of = [&](int v) {
        if constexpr (!weights_last) return weight[v];
        weight[0].load_from(weights, loaded(v));
        return weight[0];
    };

    if constexpr (to_fp8) {
        u32x2 q[kHeld];
        if constexpr (computed) {
            Eight<in> y[kHeld];
#pragma unroll
            for (int v = 0; v < kHeld; ++v) {
                const Eight<weight_type> w = weight_of(v);
#pragma unroll
                for (int i = 0; i < kVector / 2; ++i) y[v].bits[0][i] = normalize<in>(h[v][i], r, w.pair(i));
            }
            if (!computed_quotients(a, Holder<owner>{row, lanes, t}, y, q)) return;
        } else {
#pragma unroll
            for (int v = 0; v < kHeld; ++v) {
                f32x2 y[kVector / 2];
                const Eight<weight_type> w = weight_of(v);
#pragma unroll
                for (int i = 0; i < kVector / 2; ++i) y[i] = Pairs<in>::widen(normalize<in>(h[v][i], r, w.pair(i)));
                q[v] = quantize_eight(y, scale);
            }
        }
        void* out = offset(a.out, row * a.out_stride);
        if constexpr (kHeld == 1) {
            if (index(0) < vectors) store(out, index(0) * 8, q[0]);
        }
#pragma unroll
        for (int v = 0; v + 1 < kHeld; v += 2) {
            const u32x4 two = pair_up(q[v], q[v + 1]);
            const uint32_t first = t & 1 ? index(v + 1) - 1 : index(v);
            if (first < vectors) store(out, first * 8, two);
        }
    } else {
        void* out = offset(a.out, row * a.out_stride * 2);
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            u32x4 y;
            const Eight<weight_type> w = weight_of(v);
#pragma unroll
            for (int i = 0; i < kVector / 2; ++i) y[i] = normalize<in>(h[v][i], r, w.pair(i));
            if (index(v) < vectors) store(out, index(v) * 16, y);
        }
    }
}

template <DType in>
__global__ __launch_bounds__(Rows::kThreads) void rms_norm_fallback(Args a) {
    rms_norm_row<Rows, in>(a, blockIdx.x);
}

// Every instantiation, chosen by types and the configuration.
using Kernel = void (*)(const void*, void*, int64_t, int64_t, const void*, uint32_t, int, Args);

template <DType in, DType weight, Output output, bool with_residual>
Kernel kernel_by_config(const Config& c) {
    return kernel_at<kRowFormCount>(form_of(c), []<int i>() -> Kernel {
        return rms_norm_fast<in, weight, output, with_residual, kRowForms[i].owner, kRowForms[i].vectors>;
    });
}

}  // namespace
}  // namespace rocm_fp8::rms_norm::hip

namespace rocm_fp8::rms_norm {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    if (args.rows == 0 || args.d == 0) return {};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    const bool foreign = is_fp8(args.out_dtype) && args.out_dtype != native_fp8(chip.arch);
    if (!is_fp8(args.out_dtype) && args.residual) return {"a residual without FP8 is not an operator"};
    const auto once = [&](const Args& a) -> Status {
        const Config config = pick_config(a.rows, a.d, chip.arch, rows_fit(a, 2 * kVector, 16) && !foreign);
        const int64_t groups = (a.rows + config.rows - 1) / config.rows;
        if (groups * config.threads > kMaxThreads) return {"x has more rows than one launch takes"};
        if (config.owner == RowOwner::fallback) {
            return launch_kernel(a.dtype == DType::f16 ? rms_norm_fallback<DType::f16> : rms_norm_fallback<DType::bf16>,
                                 groups, config.threads, on, a);
        }
        const Kernel kernel = by_types(a, [&]<DType in, DType weight, Output output, bool with_residual>() {
            return kernel_by_config<in, weight, output, with_residual>(config);
        });
        return launch_kernel(kernel, groups, config.threads, on, a.x, a.residual, a.x_stride, a.residual_stride,
                             a.weight, uint32_t(a.d), config.threads, a);
    };
    if (args.is_dynamic() && args.dynamic.group == DynamicScale::kTensor) return launch_tensor(args, on, once);
    return once(args);
}

}  // namespace rocm_fp8::rms_norm
