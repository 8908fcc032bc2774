// SwiGLU + FP8 on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: 4 (gate, up) + 1 (out) = 5 an output element, each moved once. About 60 vector instructions a
// register, most of them the exponential, the encoding and the two divisions.
//
// Versions, swiglu_fp8 [256, 2 x 16384] bf16, 2 cores of a Zen 4, share of the copy rate with AVX2 / AVX-512
// (benchmarks/cpu_ratios.py):
//   1  silu from exp(-|v|) with selections, right over the whole range in one path    0.15 / 0.22
//   2  silu from exp(-v) above -87, the rest lane by lane; even and odd registers     @SWI2@
#pragma once

#include <cmath>

#include "../common/cpu/lanes.h"
#include "../common/cpu/rows.h"
#include "swiglu_fp8.h"

namespace rocm_fp8 {
namespace {

// Below it, exp(-v) comes near to float32's largest.
constexpr float kSiluBound = -87.0f;

// v / (1 + exp(-v)) for v >= kSiluBound, infinity and NaN included; error below 2 ulp.
template <class R>
inline typename R::V silu(typename R::V v) {
    using V = typename R::V;
    constexpr float log2_e = 1.44269504f;
    // ln 2 in two parts; the first has 9 zero bits at its end, so n * ln2_hi is exact.
    constexpr float ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;
    // Adding it leaves a number rounded to an integer in the sum's low bits.
    const V magic = R::set1(0x1.8p23f);

    // exp(-87) is nothing beside 1, so v is cut off there and n stays within a normal number's exponent.
    const V x = R::at_most(v, -kSiluBound);
    const V magic_n = R::fma(x, R::set1(-log2_e), magic);
    const V n = R::sub(magic_n, magic);
    V t = R::fnmsub(n, R::set1(ln2_hi), x);
    t = R::fnmadd(n, R::set1(ln2_lo), t);
    // exp(t), |t| <= ln 2 / 2: 1 + t + t^2 times a minimax polynomial; relative error 2^-28.
    V p = R::set1(0x1.6a2434p-10f);
    p = R::fma(p, t, R::set1(0x1.1239e2p-7f));
    p = R::fma(p, t, R::set1(0x1.5558f2p-5f));
    p = R::fma(p, t, R::set1(0x1.555492p-3f));
    p = R::fma(p, t, R::set1(0x1.fffffcp-2f));
    p = R::fma(p, t, R::set1(1.0f));
    p = R::fma(p, t, R::set1(1.0f));
    return R::quotient(v, R::add(R::set1(1.0f), R::scale_by(p, magic_n)));
}

// Replaces the results of lanes below kSiluBound. There silu(v) is v exp(v) to float32's accuracy, down into
// the subnormal numbers; the largest negative numbers give -0 and -inf gives NaN, as in torch.
template <class L, DType in>
__attribute__((noinline)) typename L::F silu_tail(typename L::F v, typename L::F result) {
    float gates[L::block], values[L::block];
    using Whole = std::integral_constant<int, L::block>;
    L::template store<DType::f32, in>(gates, v, Whole());
    L::template store<DType::f32, in>(values, result, Whole());
    for (int i = 0; i < L::block; ++i)
        if (gates[i] < kSiluBound) values[i] = float(double(gates[i]) * std::exp(double(gates[i])));
    return L::template load<DType::f32, in>(values, Whole());
}

template <class R, class L, DType in, DType out_type>
void swiglu_rows(const SwigluFp8Args& args, int64_t begin, int64_t end) {
    using F = typename L::F;
    const typename L::Scale scale(*args.scale, Fp8Format<out_type>::max);
    for (int64_t row = begin; row < end; ++row) {
        const void* gate = at<in>(args.x, row * args.x_stride);
        const void* up = at<in>(gate, args.d);
        void* out = at<out_type>(args.out, row * args.out_stride);
        alignas(64) char y[kStage * element_size(in)];
        for (int64_t begin = 0; begin < args.d; begin += kStage) {
            const int64_t length = args.d - begin < kStage ? args.d - begin : kStage;
            for_blocks<L>(length, [&](int64_t i, auto n, int) {
                prefetch(at<in>(gate, begin + i + kStage));
                prefetch(at<in>(up, begin + i + kStage));
                const F v = L::template load<in, in>(at<in>(gate, begin + i), n);
                F g = L::each([](auto part) { return silu<R>(part); }, v);
                // The products with `up` may be large again, so that subnormal numbers count.
                if (__builtin_expect(L::any_below(v, kSiluBound) || L::any_subnormal(g), 0))
                    L::template store<in, in>(at<in>(y, i), L::template round_to<in>(silu_tail<L, in>(v, g)), n);
                else
                    L::template store_for_fp8<in>(at<in>(y, i), g, scale, n);
            });
            for_blocks<L>(length, [&](int64_t i, auto n, int) {
                const F g = L::template load<in, in>(at<in>(y, i), n);
                const F product = L::mul(g, L::template load<in, in>(at<in>(up, begin + i), n));
                L::template store_for_fp8<in>(at<in>(y, i), product, scale, n);
            });
            L::template quantize<out_type, in>(y, at<out_type>(out, begin), length, scale);
        }
    }
}

// Every instantiation, chosen by the arguments' types.
template <class R, DType in>
RowsKernel<SwigluFp8Args> swiglu_by_out(const SwigluFp8Args& a) {
    return a.out_dtype == DType::e4m3fn ? swiglu_rows<R, Lanes<R>, in, DType::e4m3fn>
                                        : swiglu_rows<R, Lanes<R>, in, DType::e4m3fnuz>;
}

template <class R>
RowsKernel<SwigluFp8Args> pick_swiglu(const SwigluFp8Args& a) {
    return a.dtype == DType::f16 ? swiglu_by_out<R, DType::f16>(a) : swiglu_by_out<R, DType::bf16>(a);
}

}  // namespace

RowsKernel<SwigluFp8Args> swiglu_portable(const SwigluFp8Args& args);
RowsKernel<SwigluFp8Args> swiglu_avx2(const SwigluFp8Args& args);
RowsKernel<SwigluFp8Args> swiglu_avx512(const SwigluFp8Args& args);

}  // namespace rocm_fp8
