// SwiGLU + FP8 for NVIDIA GPUs.
//
// Bytes: 4 (gate, up) + 1 (out) = 5 an output element, each moved once. Floor: those bytes at the memory rate; on an
// H200 (4.47 TB/s) 18.8 us for 2048 rows of 8192 results.
//
//     all vectors of 8 elements, row after row:  | 0 | 1 | ... |      thread t of CTA b takes vector
//     one a thread:  b * T + t;  two:  b * 2T + t and b * 2T + T + t  (row, column) by a multiplication, not a division
//
//   1 fetch      the first CTAs' vectors into L2, while the previous kernel ends
//   2 load       gate and up of all of a thread's vectors, 128 bits a lane, before the first is used
//   3 silu       in float32 (silu.h): exp2 and a reciprocal, each corrected. At most 2.03 ulp on every 16-bit gate
//   4 quantise   packed product, division by the scale in two multiplications, two numbers a conversion
//
// Files: swiglu_fp8.cu (kernel, launcher), gated.h, config.h (launch geometry), ../gpu.h (computed scales; the careful
// kernel), ../silu.h.
//
// Limit today: few rows are bound by the launch (1.0 us); 2048 rows take 20.2 us, 93 % of the memory rate. Some 25
// instructions an element, 14 us of issue there, hide behind memory.
//
// Steps, dropped attempts and figures: docs/journal/swiglu_fp8-cuda.md.
#include "../../common/rows/cuda/vendor.h"
#include "config.h"
#include "gated.h"
#include "../gpu.h"

namespace rocm_fp8::swiglu::cuda {
namespace {

constexpr int kThreadsALine = 8;  // 128 bytes

// kHeld: vectors per thread. `row_of` divides by the vectors of a row. The first `fetching` CTAs fetch into L2.
template <DType in, int kHeld>
__global__ __launch_bounds__(kMostThreads) void swiglu_fast(Args a, Divider row_of, uint32_t count, uint32_t fetching) {
    const uint32_t threads = blockDim.x, t = threadIdx.x;
    let_next_kernel_start();
    const void* gates[kHeld];
    void* results[kHeld];
    uint4 gate[kHeld], up[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        const uint32_t index = (blockIdx.x * kHeld + v) * threads + t, n = index < count ? index : count - 1;
        const uint32_t row = divide(n, row_of), column = n - row * row_of.divisor;
        gates[v] = offset(a.x, row * a.x_stride * 2 + column * 16);
        results[v] = index < count ? offset(a.out, row * a.out_stride + column * 8) : nullptr;
        if (blockIdx.x < fetching && t % kThreadsALine == 0) {
            fetch_line_to_l2(gates[v]);
            fetch_line_to_l2(offset(gates[v], a.d * 2));
        }
    }
    wait_for_previous_kernel();
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        gate[v] = load(gates[v]);
        up[v] = load(offset(gates[v], a.d * 2));
    }
    const QuantizationScale scale(a.scale);
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        const Eight<in> y{{gated<in>(gate[v], up[v])}};
        if (results[v]) store(results[v], y.quantized(scale));
    }
}

template <DType in>
__global__ __launch_bounds__(kThreads) void swiglu_fallback(Args a) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    swiglu_elements<in, kThreads>(a, *a.scale);
}

// The fast kernel makes `columns` of the results.
template <DType in>
Status launch_as(const Args& a, int64_t columns, const Chip& chip, const Config& c, const Executor& on) {
    if (!c.fast) {
        constexpr int64_t kMostCtas = 1 << 20;  // the kernel's loop takes the rest
        return launch_kernel(swiglu_fallback<in>, chip, {c.ctas < kMostCtas ? c.ctas : kMostCtas, c.threads}, on, a);
    }
    const uint32_t a_row = uint32_t(columns / kVector), count = uint32_t(a.rows) * a_row;
    return launch_kernel(c.vectors == 1 ? swiglu_fast<in, 1> : swiglu_fast<in, 2>, chip, {c.ctas, c.threads}, on, a,
                         divider_by(a_row), count, uint32_t(c.fetching));
}

}  // namespace
}  // namespace rocm_fp8::swiglu::cuda

namespace rocm_fp8::swiglu {

Status launch(const Args& args, const Executor& on) {
    using namespace cuda;
    if (args.rows == 0 || args.d == 0) return {};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    if (!args.scale) return launch_computed(args, Vendor(chip, on), on);
    const bool fits = rows_fit(args, kVector, 8) && args.out_dtype == DType::e4m3fn;
    const auto part = [&, chip = chip](int64_t first, int64_t columns) {
        const Config config = pick_config(args.rows, columns, chip.multiprocessors, fits);
        const Args a = columns_from(args, first);
        return args.dtype == DType::f16 ? launch_as<DType::f16>(a, columns, chip, config, on)
                                        : launch_as<DType::bf16>(a, columns, chip, config, on);
    };
    return each_columns(args.d, fits ? columns_at_once(args.rows, args.d, 2) : args.d, part);
}

}  // namespace rocm_fp8::swiglu
