// RMSNorm + FP8 on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes, with a residual and 16-bit types: 2 (x) + 2 (residual) + 2 (residual written) + 1 (out) = 7 an
// element. One thread owns a row:
//
//     pass 1   x, residual -> h -> residual            sum of h^2 in 2 x 16 lanes
//     pass 2   h (from the nearest cache: a row of 16384 is 32 KiB) * r * weight / scale -> out
//
// so memory sees each element once each way. The division by the scale is a real one: a multiplication by
// its reciprocal would move some bytes.
//
// Versions, add_rms_norm_fp8 [256, 16384] bf16, 2 cores with AVX2, share of the copy rate (see
// benchmarks/cpu_ratios.py):
//   1  two passes, 16 lanes an iteration, two partial sums
#pragma once

#include <cmath>

#include "../common/cpu/rows.h"
#include "rmsnorm_fp8.h"

namespace rocm_fp8 {
namespace {

template <class S, DType in, DType weight_type, DType out_type, bool with_residual>
void rms_norm_rows(const RmsNormFp8Args& args, int64_t begin, int64_t end) {
    using F = typename S::F;
    // A float32 product is rounded once, to the input's type, and a 16-bit weight's product likewise: the
    // 16-bit multiplication of two 16-bit numbers is the float32 product rounded.
    for (int64_t row = begin; row < end; ++row) {
        const void* x = at<in>(args.x, row * args.x_stride);
        void* residual = with_residual ? at<in>(args.residual, row * args.residual_stride) : nullptr;
        void* out = at<out_type>(args.out, row * args.out_stride);

        F sum[2] = {S::set1(0), S::set1(0)};
        for_blocks(args.d, [&](int64_t i, auto n) {
            F h = load<S, in>(at<in>(x, i), n);
            if constexpr (with_residual) {
                h = round_to<S, in>(S::add(h, load<S, in>(at<in>(residual, i), n)));
                store<S, in>(at<in>(residual, i), h, n);
            }
            F& partial = sum[(i / kLanes) & 1];
            partial = S::fma(h, h, partial);  // h^2 is exact in float32: 16-bit types have at most 11 bits
        });
        const float mean = sum_lanes<S>(S::add(sum[0], sum[1])) / float(args.d);
        const F r = S::set1(1.0f / std::sqrt(mean + args.epsilon));

        const void* h_row = with_residual ? residual : x;
        const F scale = S::set1(is_fp8(out_type) ? *args.scale : 1.0f);
        for_blocks(args.d, [&](int64_t i, auto n) {
            const F normal = round_to<S, in>(S::mul(load<S, in>(at<in>(h_row, i), n), r));
            F y = round_to<S, in>(S::mul(normal, load<S, weight_type>(at<weight_type>(args.weight, i), n)));
            if constexpr (is_fp8(out_type)) y = S::div(y, scale);
            store<S, out_type>(at<out_type>(out, i), y, n);
        });
    }
}

// Every instantiation, chosen by the arguments' types.
template <class S, DType in, DType weight_type, DType out_type>
RowsKernel<RmsNormFp8Args> by_residual(const RmsNormFp8Args& a) {
    return a.residual ? rms_norm_rows<S, in, weight_type, out_type, true>
                      : rms_norm_rows<S, in, weight_type, out_type, false>;
}

template <class S, DType in, DType weight_type>
RowsKernel<RmsNormFp8Args> by_out(const RmsNormFp8Args& a) {
    if (a.out_dtype == DType::e4m3fn) return by_residual<S, in, weight_type, DType::e4m3fn>(a);
    if (a.out_dtype == DType::e4m3fnuz) return by_residual<S, in, weight_type, DType::e4m3fnuz>(a);
    return by_residual<S, in, weight_type, in>(a);
}

template <class S, DType in>
RowsKernel<RmsNormFp8Args> by_weight(const RmsNormFp8Args& a) {
    return a.weight_dtype == DType::f32 ? by_out<S, in, DType::f32>(a) : by_out<S, in, in>(a);
}

template <class S>
RowsKernel<RmsNormFp8Args> pick_rms_norm(const RmsNormFp8Args& a) {
    return a.dtype == DType::f16 ? by_weight<S, DType::f16>(a) : by_weight<S, DType::bf16>(a);
}

}  // namespace

RowsKernel<RmsNormFp8Args> rms_norm_portable(const RmsNormFp8Args& args);
RowsKernel<RmsNormFp8Args> rms_norm_avx2(const RmsNormFp8Args& args);
RowsKernel<RmsNormFp8Args> rms_norm_avx512(const RmsNormFp8Args& args);

}  // namespace rocm_fp8
