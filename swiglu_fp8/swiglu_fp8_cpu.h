// SwiGLU + FP8 on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: 4 (gate, up) + 1 (out) = 5 an output element, each moved once. About 60 vector instructions a
// block of 8 lanes, most of them the exponential and the two divisions.
//
// Versions, swiglu_fp8 [256, 2 x 16384] bf16, 2 cores with AVX2, share of the copy rate (see
// benchmarks/cpu_ratios.py):
//   1  exp(-|v|), one division, 16 lanes an iteration
#pragma once

#include "../common/cpu/rows.h"
#include "swiglu_fp8.h"

namespace rocm_fp8 {
namespace {

// silu(v) from z = exp(-|v|) = p 2^n, which never overflows:
//     v >= 0:  v / (1 + z)
//     v <  0:  v p / (1 + z) * 2^n, the power applied last and in two steps, so that results near the
//              smallest normal number keep their digits where z itself is subnormal
// As in torch, the largest negative numbers give -0 (finite * 0) and -inf gives NaN (infinity * 0).
template <class S>
inline typename S::F silu(typename S::F v) {
    using F = typename S::F;
    constexpr float log2_e = 1.44269504f;
    // ln 2 in two parts; the first has 9 zero bits at its end, so n * ln2_hi is exact.
    constexpr float ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;

    // At the bound n = -289, power2 below is 0, and the result long since underflowed.
    const F a = S::max(S::sub(S::set1(0), S::abs(v)), S::set1(-200.0f));
    const F n = S::round_to_integer(S::mul(a, S::set1(log2_e)));
    F t = S::fma(n, S::set1(-ln2_hi), a);
    t = S::fma(n, S::set1(-ln2_lo), t);
    // exp(t), |t| <= ln 2 / 2: Taylor to t^7, whose remainder is below a tenth of an ulp.
    F p = S::set1(1.0f / 5040);
    for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = S::fma(p, t, S::set1(c));

    const F n1 = S::max(n, S::set1(-126.0f));
    const F power1 = S::pow2(n1), power2 = S::pow2(S::max(S::sub(n, n1), S::set1(-127.0f)));
    const F z = S::mul(S::mul(p, power1), power2);
    // v p / 2 cannot overflow, where v p could.
    const F quotient = S::div(S::select_negative(v, S::mul(v, S::mul(p, S::set1(0.5f))), v), S::add(S::set1(1), z));
    return S::select_negative(v, S::mul(S::mul(quotient, S::add(power1, power1)), power2), quotient);
}

template <class S, DType in, DType out_type>
void swiglu_rows(const SwigluFp8Args& args, int64_t begin, int64_t end) {
    using F = typename S::F;
    const F scale = S::set1(*args.scale);
    for (int64_t row = begin; row < end; ++row) {
        const void* gate = at<in>(args.x, row * args.x_stride);
        const void* up = at<in>(gate, args.d);
        void* out = at<out_type>(args.out, row * args.out_stride);
        for_blocks(args.d, [&](int64_t i, auto n) {
            const F g = round_to<S, in>(silu<S>(load<S, in>(at<in>(gate, i), n)));
            const F y = round_to<S, in>(S::mul(g, load<S, in>(at<in>(up, i), n)));
            store<S, out_type>(at<out_type>(out, i), S::div(y, scale), n);
        });
    }
}

// Every instantiation, chosen by the arguments' types.
template <class S, DType in>
RowsKernel<SwigluFp8Args> by_out(const SwigluFp8Args& a) {
    return a.out_dtype == DType::e4m3fn ? swiglu_rows<S, in, DType::e4m3fn> : swiglu_rows<S, in, DType::e4m3fnuz>;
}

template <class S>
RowsKernel<SwigluFp8Args> pick_swiglu(const SwigluFp8Args& a) {
    return a.dtype == DType::f16 ? by_out<S, DType::f16>(a) : by_out<S, DType::bf16>(a);
}

}  // namespace

RowsKernel<SwigluFp8Args> swiglu_portable(const SwigluFp8Args& args);
RowsKernel<SwigluFp8Args> swiglu_avx2(const SwigluFp8Args& args);
RowsKernel<SwigluFp8Args> swiglu_avx512(const SwigluFp8Args& args);

}  // namespace rocm_fp8
