// fp8(y / scale), eight elements a lane. It gives the same byte as a rounded float32 division and a saturating
// conversion.
//
// The chips convert two numbers an instruction, in the chip's own format. The conversion rounds to nearest even and
// keeps NaN, but does not saturate: a number beyond the largest one becomes NaN too.
//
// A division takes some ten instructions. Here it takes three, packed: y times the reciprocal, corrected by the
// remainder, which fma gives exactly (Markstein). That needs numbers far from float32's limits, so scales outside
// [2^-60, 2^60] use the division, in a separate branch. Saturation tests the eight numbers together. They are clamped
// one by one only if a number of the wave reaches the largest FP8 number.
#pragma once

#include "../fp8.h"
#include "half_pairs.h"

namespace rocm_fp8 {
namespace {

#if defined(__gfx942__)
constexpr DType kNativeFp8 = DType::e4m3fnuz;
#else
constexpr DType kNativeFp8 = DType::e4m3fn;
#endif

struct QuantizationScale {
    float scale = 1, reciprocal = 1;
    bool usual = true;
    __device__ QuantizationScale() {}
    __device__ explicit QuantizationScale(float value)
        : scale(value), reciprocal(1.0f / value), usual(value >= 0x1p-60f && value <= 0x1p60f) {}
    __device__ explicit QuantizationScale(const float* p) : QuantizationScale(load_scalar(p)) {}
    // Makes the compiler divide by this point. It would do so at the use, behind all waiting.
    __device__ void have_now() { have_computed(reciprocal); }
};

// Clamps |v| to the largest number; NaN stays NaN.
__device__ inline float saturate(float v) {
    constexpr float kMax = Fp8Format<kNativeFp8>::max;
    const float clamped = __builtin_amdgcn_fmed3f(v, -kMax, kMax);
    return v == v ? clamped : v;
}

__device__ inline uint32_t four_to_fp8(f32x2 a, f32x2 b) {
    constexpr bool kLowHalf = false, kHighHalf = true;
    const int low = __builtin_amdgcn_cvt_pk_fp8_f32(a.x, a.y, 0, kLowHalf);
    return uint32_t(__builtin_amdgcn_cvt_pk_fp8_f32(b.x, b.y, low, kHighHalf));
}

// fp8(y / scale) of eight numbers, as the bytes of two registers.
__device__ inline u32x2 quantize_eight(const f32x2 (&y)[4], const QuantizationScale& s) {
    f32x2 q[4];
    if (__builtin_expect(s.usual, 1)) {
        float largest = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            q[i] = y[i] * s.reciprocal;
            largest = __builtin_fmaxf(__builtin_fmaxf(largest, __builtin_fabsf(q[i].x)), __builtin_fabsf(q[i].y));
        }
        // The remainder with this sign keeps a quotient of -0.
        auto correct = [&](int i) { q[i] = fma(-fma(q[i], both(s.scale), -y[i]), both(s.reciprocal), q[i]); };
        // fmaxf ignores NaN, which needs no clamping.
        if (any_lane(largest >= Fp8Format<kNativeFp8>::max)) [[unlikely]] {
            keep_branch();
            for (int i = 0; i < 4; ++i) {
                // A finite estimate for an infinite y, or the correction would be NaN.
                constexpr float kHuge = 0x1p100f;
                const f32x2 estimate = q[i];
                q[i] = f32x2{__builtin_amdgcn_fmed3f(estimate.x, -kHuge, kHuge),
                             __builtin_amdgcn_fmed3f(estimate.y, -kHuge, kHuge)};
                correct(i);
                q[i] = f32x2{saturate(q[i].x), saturate(q[i].y)};
            }
        } else {
            for (int i = 0; i < 4; ++i) correct(i);
        }
    } else {
        for (int i = 0; i < 4; ++i) q[i] = f32x2{saturate(y[i].x / s.scale), saturate(y[i].y / s.scale)};
    }
    return u32x2{four_to_fp8(q[0], q[1]), four_to_fp8(q[2], q[3])};
}

// The same with scales that differ between lanes, of numbers of any type. The name is common with CUDA.
template <DType>
__device__ inline u32x2 quantize_vector(const f32x2 (&y)[4], QuantizationScale s) {
    // The division is right for every lane, so that the whole wave takes it or none does.
    if (any_lane(!s.usual)) [[unlikely]] {
        keep_branch();
        s.usual = false;
        return quantize_eight(y, s);
    }
    s.usual = true;
    return quantize_eight(y, s);
}

}  // namespace
}  // namespace rocm_fp8
