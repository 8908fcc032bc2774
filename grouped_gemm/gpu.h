// SwiGLU and quantisation of a grouped GEMM's product as a pass of its own, for AMD and NVIDIA GPUs: the kernels of
// ../common/rows/gpu over the rows that are live. How many those are is read on the device, so that the launch depends
// on sizes alone. After the vendor's swiglu_fp8/*/gated.h.
//
// On AMD GPUs it is for what does not fit into the product's epilogue (hip/gated.h): scales of rows, which no tile holds;
// 16-bit weights; hidden values that are no multiple of 128; sizes that other tiles fill better.
#pragma once

#include "../swiglu_fp8/gpu.h"
#include "grouped_gemm.h"

namespace rocm_fp8::grouped_gemm {
namespace {

// Gated values of the rows before *end.
template <DType in>
struct LiveGated : swiglu::Gated<in> {
    const int32_t* end;

    LiveGated from(int64_t row, int64_t column) const { return {swiglu::Gated<in>::from(row, column), end}; }

    // The results without the other rows. Behind whatever wrote *end.
    __device__ QuantizedRows live(const QuantizedRows& to) const {
        wait_for_previous_kernel();
        QuantizedRows rows = to;
        const int64_t count = *global<int32_t>(end);
        rows.rows = count < to.rows ? count : to.rows;
        return rows;
    }
};

template <DType in, int kScale, int kHeld>
__global__ __launch_bounds__(kRowsThreads) void grouped_swiglu_flat(LiveGated<in> x, QuantizedRows to, FlatWork work,
                                                                    Maxima maxima) {
    let_next_kernel_start();
    to = x.live(to);
    const int64_t count = to.rows * work.row_of.divisor;
    if (count < work.count) work.count = uint32_t(count);
    if (blockIdx.x * blockDim.x >= work.count) return;
    write_flat<LiveGated<in>, kScale, kHeld, kRowsThreads>(x, to, work, maxima);
}

template <DType in, Holder holder, int kHeld>
__global__ __launch_bounds__(most_threads(holder)) void grouped_swiglu_rows(LiveGated<in> x, QuantizedRows to) {
    let_next_kernel_start();
    to = x.live(to);
    if (RowHolder<holder>().row >= to.rows) return;
    write_row<LiveGated<in>, kHeld, holder>(x, to);
}

template <DType in, int kScale>
__global__ __launch_bounds__(kRowsThreads) void grouped_swiglu_fallback(LiveGated<in> x, QuantizedRows to,
                                                                        Maxima maxima) {
    let_next_kernel_start();
    write_by_element<LiveGated<in>, kScale, kRowsThreads>(x, x.live(to), maxima);
}

template <DType in>
struct SwigluKernels {
    using Source = LiveGated<in>;
    template <int kScale, int kHeld>
    static auto flat() {
        // Maxima of tensors are not asked for.
        return grouped_swiglu_flat < in, kScale == kFromMaxima ? kGiven : kScale,
               kHeld < kMostNeighbours ? kHeld : kMostNeighbours > ;
    }
    template <Holder holder, int kHeld>
    static auto row() {
        return grouped_swiglu_rows<in, holder, kHeld>;
    }
    template <int kScale>
    static auto any() {
        return grouped_swiglu_fallback < in, kScale == kGiven ? kGiven : kComputed > ;
    }
};

// gated.x: the product [m, 2 d], rows 2 d apart; live rows: those before offsets[groups].
template <DType in, class Vendor>
Status launch_swiglu_pass_as(const Args& args, const swiglu::Args& gated, const Vendor& vendor) {
    using K = SwigluKernels<in>;
    const LiveGated<in> x{{gated.x, gated.x_stride * 2, gated.d * 2, gated.limit}, args.offsets + args.groups};
    const auto to = QuantizedRows::of(gated, gated.scale);
    const bool native = gated.out_dtype == vendor.fp8;
    const Fit fit{native && swiglu::rows_fit(gated, kEight, kEight),
                  native && kMostNeighbours == 2 && swiglu::rows_fit(gated, 2 * kEight, 2 * kEight)};
    if (gated.scale) return launch_flat<K>(x, to, kGiven, fit, Maxima{}, vendor);
    return launch_computed<K>(x, to, fit, vendor);
}

template <class Vendor>
Status launch_swiglu_pass(const Args& args, const swiglu::Args& gated, const Vendor& vendor) {
    return gated.dtype == DType::f16 ? launch_swiglu_pass_as<DType::f16>(args, gated, vendor)
                                     : launch_swiglu_pass_as<DType::bf16>(args, gated, vendor);
}

// The product in memory of the launch's own, then the pass.
template <class Vendor>
Status launch_in_two(const Args& args, swiglu::Args gated, const Vendor& vendor, const Executor& on) {
    if (args.m == 0 || args.n == 0) return {};
    void* product = on.scratch(on.context, args.m * args.n * 2);
    if (!product) return {"no memory for the product before SwiGLU"};
    Args gemm = args;
    gemm.out = {0, product, args.n, gated.dtype};
    if (const Status status = launch(gemm, on); !status.ok()) return status;
    gated.x = product, gated.x_stride = args.n;
    return launch_swiglu_pass(args, gated, vendor);
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm
