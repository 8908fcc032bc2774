// SwiGLU of eight elements on NVIDIA GPUs: silu's machine functions, and the choice of its form.
#pragma once

#include "../../common/rows/gpu/eight.h"
#include "../silu.h"

namespace rocm_fp8::swiglu {
namespace {

struct Machine {
    __device__ static float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
    __device__ static float exp2(float v) {
        float e;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v));
        return e;
    }
    __device__ static float rcp(float v) {
        float r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
        return r;
    }
};

// round(round(silu(gate)) * up)
template <DType in>
__device__ inline uint4 gated(const uint4& gate, const uint4& up) {
    f32x2 v[kEight / 2];
    uint32_t smallest = word(gate, 0), largest = word(gate, 0);
#pragma unroll
    for (int i = 0; i < kEight / 2; ++i) {
        v[i] = Pairs<in>::widen(word(gate, i));
        smallest = Pairs<in>::min(smallest, word(gate, i));
        largest = Pairs<in>::max(largest, word(gate, i));
    }
    const f32x2 low = Pairs<in>::widen(smallest), high = Pairs<in>::widen(largest);
    if (__builtin_expect(fminf(low.x, low.y) < kSiluLow || fmaxf(high.x, high.y) > kSiluHigh, 0)) {
#pragma unroll
        for (f32x2& two : v) two = {silu_any(two.x, Machine()), silu_any(two.y, Machine())};
    } else {
#pragma unroll
        for (f32x2& two : v) two = {silu_usual(two.x, Machine()), silu_usual(two.y, Machine())};
    }
    uint4 y;
#pragma unroll
    for (int i = 0; i < kEight / 2; ++i) word(y, i) = Pairs<in>::mul(Pairs<in>::round(v[i]), word(up, i));
    return y;
}

}  // namespace
}  // namespace rocm_fp8::swiglu
