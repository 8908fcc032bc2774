// SwiGLU + FP8 for MI300X (gfx942) and MI350 (gfx950).
//
// Bytes: 4 (gate, up) + 1 (out) = 5 an output element, each moved once. Floor: those bytes at the memory rate;
// estimated for an MI300X (4.2 TB/s) 20 us for 2048 rows of 8192 results.
//
//     all vectors of 8 elements, row after row:  | 0 | 1 | ... |      thread t of workgroup g takes vector
//     2 a thread:  g * 512 + t  and  g * 512 + 256 + t     (row, column) by a multiplication, not a division
//
//   1 load       gate and up of all of a thread's vectors, 128 bits a lane, before the first is used
//   2 silu       in float32 (silu.h): exp2 and a reciprocal, each corrected. The rest is two numbers an instruction.
//   3 quantise   packed product; division by the scale, from its reciprocal; two numbers a conversion
//   4 store      lanes swap halves, so that a store is 128 bits as well
//
// Files: swiglu_fp8.hip (kernel, launcher), gated.h, config.h (launch geometry), ../gpu.h (computed scales; the careful
// kernel), ../silu.h.
//
// Limit today: unknown, nothing has been measured on an AMD GPU. By the estimates many rows are bound by HBM; their 24
// instructions an element, 12 us of issue at 2048 rows, hide behind the loads.
//
// Steps and the design's estimates: docs/journal/swiglu_fp8-hip.md.
#include "../../common/rows/hip/vendor.h"
#include "config.h"
#include "gated.h"
#include "../gpu.h"

namespace rocm_fp8::swiglu::hip {
namespace {

constexpr int kFastThreads = 256;

// kHeld: vectors per thread. What the loads need stands by itself, and first: it is in registers when a wave begins.
// `up_bytes` from a gate to its up; a row's vectors and what divides by them; `count` vectors in all.
template <DType in, int kHeld>
__global__ __launch_bounds__(kFastThreads) void swiglu_fast(const void* first, int64_t row_bytes, int64_t up_bytes,
                                                            uint32_t count, uint32_t threads, uint32_t divisor,
                                                            uint32_t factor, uint32_t shift, const float* scale_pointer,
                                                            void* results, int64_t result_stride) {
    const Divider row_of{divisor, factor, shift};
    const uint32_t t = threadIdx.x;
    u32x4 gate[kHeld], up[kHeld];
    uint32_t index[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        index[v] = (blockIdx.x * kHeld + v) * threads + t;
        // Threads beyond the end load the last vector: a branch around loads would keep them from being in flight
        // together.
        const uint32_t n = index[v] < count ? index[v] : count - 1, row = divide(n, row_of);
        const void* x = offset(first, row * row_bytes + (n - row * row_of.divisor) * 16);
        gate[v] = load_once<u32x4>(x, 0);
        up[v] = load_once<u32x4>(offset(x, up_bytes), 0);
    }
    QuantizationScale scale(scale_pointer);
    scale.have_now();
    __builtin_amdgcn_sched_barrier(0);

    u32x2 q[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        const Eight<in> y{{gated<in>(gate[v], up[v])}};
        q[v] = quantize_eight({y.wide(0), y.wide(1), y.wide(2), y.wide(3)}, scale);
    }
    const auto out = [&](uint32_t n) {
        const uint32_t row = divide(n, row_of);
        return offset(results, row * result_stride + (n - row * row_of.divisor) * 8);
    };
    if constexpr (kHeld == 1) {
        if (index[0] < count) store(out(index[0]), 0, q[0]);
    } else {
        // Neighbours belong to one row, because a row has an even number of vectors.
        const u32x4 two = pair_up(q[0], q[1]);
        const uint32_t first = t & 1 ? index[1] - 1 : index[0];
        if (first < count) store(out(first), 0, two);
    }
}

constexpr int kAnyThreads = 256;

template <DType in>
__global__ __launch_bounds__(kAnyThreads) void swiglu_fallback(Args a) {
    swiglu_elements<in, kAnyThreads>(a, load_scalar(a.scale));
}

// The fast kernel makes `columns` of the results.
template <DType in>
Status launch_as(const Args& a, int64_t columns, const Config& c, const Executor& on) {
    if (!c.fast) {
        constexpr int64_t kMostGroups = 1 << 20;  // the kernel's loop takes the rest
        return launch_kernel(swiglu_fallback<in>, c.groups < kMostGroups ? c.groups : kMostGroups, c.threads, on, a);
    }
    const uint32_t a_row = uint32_t(columns / kVector), count = uint32_t(a.rows) * a_row;
    const Divider row_of = divider_by(a_row);
    return launch_kernel(c.vectors == 1 ? swiglu_fast<in, 1> : swiglu_fast<in, 2>, c.groups, c.threads, on, a.x,
                         a.x_stride * 2, a.d * 2, count, uint32_t(c.threads), row_of.divisor, row_of.factor,
                         row_of.shift, a.scale, a.out, a.out_stride);
}

}  // namespace
}  // namespace rocm_fp8::swiglu::hip

namespace rocm_fp8::swiglu {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    if (args.rows == 0 || args.d == 0) return {};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    if (!args.scale) return launch_computed(args, Vendor(chip.arch, on), on);
    const bool fits = rows_fit(args, 2 * kVector, 16) && args.out_dtype == native_fp8(chip.arch);
    const auto part = [&, chip = chip](int64_t first, int64_t columns) {
        const Config config = pick_config(args.rows, columns, chip.arch, fits);
        const Args a = columns_from(args, first);
        return args.dtype == DType::f16 ? launch_as<DType::f16>(a, columns, config, on)
                                        : launch_as<DType::bf16>(a, columns, config, on);
    };
    return each_columns(args.d, fits ? columns_at_once(args.rows, args.d, 2) : args.d, part);
}

}  // namespace rocm_fp8::swiglu
