// FP8 to 16-bit floats, eight codes at a time. The chips convert two codes an instruction, of their own format alone.
#pragma once

#include "../fp8.h"
#include "half_pairs.h"
#include "quantize.h"

namespace rocm_fp8 {
namespace {

// Four codes of e4m3fn to the chip's own format, whose values are half of e4m3fn's on gfx942: NaN, which has two codes
// there and one here, and -0, whose code is NaN's here and which becomes 0.
__device__ inline uint32_t native_of_fn(uint32_t codes) {
#if defined(__gfx942__)
    constexpr uint32_t kMagnitudes = 0x7F7F7F7Fu, kSigns = 0x80808080u, kOnes = 0x01010101u;
    const uint32_t magnitudes = codes & kMagnitudes;
    // Of each byte bit 7: that it is not 0; that it is NaN.
    const uint32_t some = magnitudes + kMagnitudes, nan = magnitudes + kOnes & kSigns;
    codes &= some | kMagnitudes;
    return (codes & ~(nan - (nan >> 7))) | nan;
#else
    return codes;
#endif
}
// What the native value of a code of e4m3fn is multiplied by.
#if defined(__gfx942__)
constexpr float kFnOfNative = 2;
#else
constexpr float kFnOfNative = 1;
#endif

// Values of codes 0 and 1, or 2 and 3, of a word, in the chip's own format.
template <bool upper>
__device__ inline f32x2 two_values(uint32_t codes) {
    return __builtin_bit_cast(f32x2, __builtin_amdgcn_cvt_pk_f32_fp8(int(codes), upper));
}

// Every number of FP8 is one of `type` (f16 or bf16).
template <DType type>
__device__ inline uint32_t exact_pair(f32x2 v) {
    if constexpr (type == DType::bf16) {
        constexpr uint32_t kUpperHalves = 0x07060302u;
        const u32x2 u = __builtin_bit_cast(u32x2, v);
        return __builtin_amdgcn_perm(u.y, u.x, kUpperHalves);
    } else {
        return Pairs<DType::f16>::round(v);
    }
}

// of(values): a pair of them as `type`.
template <class Of>
__device__ inline u32x4 eight_of(u32x2 codes, const Of& of) {
    return {of(two_values<false>(codes.x)), of(two_values<true>(codes.x)), of(two_values<false>(codes.y)),
            of(two_values<true>(codes.y))};
}

// Eight codes of the chip's own format as `type`.
template <DType type>
__device__ inline u32x4 eight_values(u32x2 codes) {
    return eight_of(codes, [](f32x2 v) { return exact_pair<type>(v); });
}
// Eight codes of e4m3fn times a scale, rounded to `type`. A scale that is NaN has zeros in its lower half.
template <DType type>
__device__ inline u32x4 scaled_fn_values(u32x2 codes, float scale) {
    return eight_of(u32x2{native_of_fn(codes.x), native_of_fn(codes.y)},
                    [&](f32x2 v) { return Pairs<type>::round(v * both(kFnOfNative) * both(scale)); });
}

}  // namespace
}  // namespace rocm_fp8
