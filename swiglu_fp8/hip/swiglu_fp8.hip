// SwiGLU + FP8 for MI300X (gfx942) and MI350 (gfx950).
//
// Bytes: 4 (gate, up) + 1 (out) = 5 an output element, each moved once. Floor: those bytes at the memory rate;
// estimated for an MI300X (4.2 TB/s) 20 us for 2048 rows of 8192 results.
//
//     all vectors of 8 elements, row after row:  | 0 | 1 | ... |      thread t of workgroup g takes vector
//     2 a thread:  g * 512 + t  and  g * 512 + 256 + t     (row, column) by a multiplication, not a division
//
//   1 load       gate and up of all of a thread's vectors, 128 bits a lane, before the first is used
//   2 silu       in float32 (silu.h): exp2 and a reciprocal, each corrected; two numbers an instruction otherwise
//   3 quantise   packed product, division by the scale from its reciprocal, two numbers a conversion
//   4 store      lanes swap halves, so that a store is 128 bits as well
//
// Files: swiglu_fp8.hip (kernels, launcher), config.h (launch geometry), ../gpu.h (what HIP and CUDA share),
// ../silu.h.
//
// Limit today: unknown, nothing has been measured on an AMD GPU. By the estimates many rows are bound by HBM; their 24
// instructions an element, 12 us of issue at 2048 rows, hide behind the loads.
//
// Steps and the design's estimates: docs/journal/swiglu_fp8-hip.md.
#include "../../common/divider.h"
#include "../../common/hip/device.h"
#include "../../common/hip/quantize.h"
#include "../../common/hip/dpp.h"
#include "config.h"
#include "../gpu.h"

namespace rocm_fp8::swiglu::hip {
namespace {

struct Machine {
    __device__ static float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
    __device__ static f32x2 fma(f32x2 a, f32x2 b, f32x2 c) { return __builtin_elementwise_fma(a, b, c); }
    __device__ static f32x2 fma(f32x2 a, float b, f32x2 c) { return fma(a, both(b), c); }
    __device__ static float exp2(float v) { return __builtin_amdgcn_exp2f(v); }
    __device__ static float rcp(float v) { return __builtin_amdgcn_rcpf(v); }
    __device__ static f32x2 exp2(f32x2 v) { return f32x2{exp2(v.x), exp2(v.y)}; }
    __device__ static f32x2 rcp(f32x2 v) { return f32x2{rcp(v.x), rcp(v.y)}; }
};

// Whether a gate lies outside of [kSiluLow, kSiluHigh] or is NaN, by its bits: those of numbers of one sign have the
// order of their magnitudes. Not by v_min3_f32 and v_max3_f32: of a signalling NaN they make a quiet one, and then
// forget the numbers that they held.
template <DType in>
__device__ inline bool any_unusual(u32x4 gate) {
    using i16x2 = int16_t __attribute__((ext_vector_type(2)));
    using u16x2 = uint16_t __attribute__((ext_vector_type(2)));
    constexpr i16x2 kHigh = int16_t(bits16<in>(kSiluHigh));
    constexpr u16x2 kLow = bits16<in>(kSiluLow);
    i16x2 largest = kHigh;       // positive numbers, and NaN, stand above all negative ones
    u16x2 most_negative = kLow;  // negative ones, and NaN, above all positive ones
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
        const uint32_t word = gate[i];  // clang 22 takes the bits of gate[0] for those of any element of a vector
        largest = __builtin_elementwise_max(largest, __builtin_bit_cast(i16x2, word));
        most_negative = __builtin_elementwise_max(most_negative, __builtin_bit_cast(u16x2, word));
    }
    const auto differs = [](auto a, auto b) {
        return __builtin_bit_cast(uint32_t, a) != __builtin_bit_cast(uint32_t, b);
    };
    return differs(largest, kHigh) || differs(most_negative, kLow);
}

// round(round(silu(gate)) * up), widened to float32.
template <DType in>
__device__ inline void gated(u32x4 gate, u32x4 up, f32x2 (&y)[kVector / 2]) {
    f32x2 v[kVector / 2];
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) v[i] = Pairs<in>::widen(gate[i]);
    if (any_lane(any_unusual<in>(gate))) {
#pragma unroll
        for (int i = 0; i < kVector / 2; ++i) v[i] = f32x2{silu_any(v[i].x, Machine()), silu_any(v[i].y, Machine())};
    } else {
#pragma unroll
        for (int i = 0; i < kVector / 2; ++i) v[i] = silu_usual(v[i], Machine());
    }
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) y[i] = Pairs<in>::widen(Pairs<in>::mul(Pairs<in>::round(v[i]), up[i]));
}

constexpr int kFastThreads = 256;

// kHeld: vectors per thread. `row_of` divides by the vectors of a row.
template <DType in, int kHeld>
__global__ __launch_bounds__(kFastThreads) void swiglu_fast(Args a, Divider row_of, uint32_t count) {
    const uint32_t threads = blockDim.x, t = threadIdx.x;
    u32x4 gate[kHeld], up[kHeld];
    uint32_t index[kHeld];
    const int64_t up_bytes = a.d * 2;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        index[v] = (blockIdx.x * kHeld + v) * threads + t;
        // Threads beyond the end load the last vector: a branch around loads would keep them from being in flight
        // together.
        const uint32_t n = index[v] < count ? index[v] : count - 1, row = divide(n, row_of);
        const void* x = offset(a.x, row * a.x_stride * 2 + (n - row * row_of.divisor) * 16);
        gate[v] = load_once<u32x4>(x, 0);
        up[v] = load_once<u32x4>(offset(x, up_bytes), 0);
    }
    const QuantizationScale scale(a.scale);
    __builtin_amdgcn_sched_barrier(0);

    u32x2 q[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        f32x2 y[kVector / 2];
        gated<in>(gate[v], up[v], y);
        q[v] = quantize(y, scale);
    }
    const auto out = [&](uint32_t n) {
        const uint32_t row = divide(n, row_of);
        return offset(a.out, row * a.out_stride + (n - row * row_of.divisor) * 8);
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
__global__ __launch_bounds__(kAnyThreads) void swiglu_any(Args a) {
    swiglu_elements<in, kAnyThreads>(a, load_scalar(a.scale), Machine());
}

template <DType in>
Status launch_as(const Args& a, const Config& c, const Executor& on) {
    if (!c.fast) {
        constexpr int64_t kMostGroups = 1 << 20;  // the kernel's loop takes the rest
        return launch_kernel(swiglu_any<in>, c.groups < kMostGroups ? c.groups : kMostGroups, c.threads, on, a);
    }
    const uint32_t a_row = uint32_t(a.d / kVector), count = uint32_t(a.rows) * a_row;
    return launch_kernel(c.vectors == 1 ? swiglu_fast<in, 1> : swiglu_fast<in, 2>, c.groups, c.threads, on, a,
                         divider_by(a_row), count);
}

}  // namespace
}  // namespace rocm_fp8::swiglu::hip

namespace rocm_fp8::swiglu {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    if (args.rows == 0 || args.d == 0) return {};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    const bool native = args.out_dtype == native_fp8(chip.arch);
    const Config config = pick_config(args.rows, args.d, chip.arch, rows_fit(args, 2 * kVector, 16) && native);
    return args.dtype == DType::f16 ? launch_as<DType::f16>(args, config, on)
                                    : launch_as<DType::bf16>(args, config, on);
}

}  // namespace rocm_fp8::swiglu
