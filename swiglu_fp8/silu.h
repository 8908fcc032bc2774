// silu(v) = v / (1 + exp(-v)) in float32 for the 16-bit gates of swiglu_fp8.hip, two at a time.
//
//     t = -v log2(e),  E = 2^t (v_exp_f32),  q = v * rcp(1 + E)              14 packed and scalar instructions for two,
//     and one correction of q by the remainder v - q (1 + E), in which         and four that count fourfold (exp, rcp)
//     also goes what t lost by rounding
//
// Errors, by arithmetic: the remainder takes back those of rcp and of the products, so that about one ulp of v_exp_f32
// (times E / (1 + E)) and the last rounding remain. tests/test_silu_bound.py evaluates this header on every 16-bit
// number with exp and rcp off by an ulp each way: at most 2 ulp.
//
// The two functions at the bottom of the machine (exp2 and rcp) are parameters for that test.
#pragma once

#include "../common/types.h"

namespace rocm_fp8::swiglu {

// Between these bounds no intermediate leaves the range of normal float32 numbers. NaN passes through.
constexpr float kSiluLow = -86.0f, kSiluHigh = 20.0f;

// v in [kSiluLow, kSiluHigh], or NaN. V is float or a vector of floats.
template <class V, class Machine>
ROCM_FP8_HD inline V silu_usual(V v, Machine machine) {
    constexpr float kLog2E = 0x1.715476p+0f, kLog2ELow = 0x1.4ae0cp-26f, kLn2 = 0x1.62e430p-1f;
    const V t = v * -kLog2E;
    const V lost = machine.fma(v, -kLog2ELow, machine.fma(v, -kLog2E, -t));  // t + lost = -v log2(e), almost exactly
    const V e = machine.exp2(t);
    const V r = machine.rcp(e + 1.0f);
    const V q = v * r;
    // q (1 + e (1 + lost ln 2)) - v, smallest terms last; q e - v is about -q, so that adding q is exact. With this sign a
    // zero keeps its own.
    const V excess = machine.fma(q * e, lost * kLn2, machine.fma(q, e, -v) + q);
    return machine.fma(-excess, r, q);
}

// Any v. Below kSiluLow the exponential is taken 2^64 too small, and so is its reciprocal too large.
template <class Machine>
ROCM_FP8_HD inline float silu_any(float v, Machine machine) {
    if (v > kSiluHigh) return v;       // 1 + exp(-v) is 1; infinity
    if (v < -120.0f) return v * 0.0f;  // -0; NaN from -infinity, as infinity / infinity
    if (!(v < kSiluLow)) return silu_usual(v, machine);
    constexpr float kLog2E = 0x1.715476p+0f, kLog2ELow = 0x1.4ae0cp-26f, kLn2 = 0x1.62e430p-1f;
    // silu(v) = v exp(v) here: 1 + exp(-v) is exp(-v).
    const float t = v * kLog2E;
    const float lost = machine.fma(v, kLog2ELow, machine.fma(v, kLog2E, -t));
    const float e = machine.exp2(t + 64.0f);  // an exact sum, at least -110
    const float product = v * e;
    return machine.fma(product, lost * kLn2, product) * 0x1p-64f;
}

}  // namespace rocm_fp8::swiglu
