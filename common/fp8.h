// Bit-exact FP8 codecs, host and device.
//
//              e4m3fn (OCP)            e4m3fnuz
//   layout     s eeee mmm, bias 7      s eeee mmm, bias 8
//   largest    448 (0x7E)              240 (0x7F)
//   NaN        0x7F and 0xFF           0x80 alone, so there is no -0
//   where      gfx950, NVIDIA, CPU     gfx942 (MI300X)
//
// Encoding rounds float32 to nearest even in one step, saturates (infinities too) and keeps NaN. A
// negative value that rounds to zero is -0 in e4m3fn; in fnuz that byte would be NaN, so it is +0.
//
// Everything here is `static`: the header is compiled into translation units with different
// instruction sets, and the linker must not replace one unit's copy by another's.
#pragma once

#include <cstdint>

#include "types.h"

namespace rocm_fp8 {

// min_normal is 2^(1 - bias); adding `subnormal_shift` to a smaller magnitude leaves, in the low bits of
// the sum's mantissa, that magnitude rounded to nearest even in units of the smallest subnormal.
// half_scale: what the byte's bits, widened to IEEE half (bias 15), must be multiplied by.
template <DType>
struct Fp8Format;
template <>
struct Fp8Format<DType::e4m3fn> {
    static constexpr int bias = 7;
    static constexpr float max = 448.0f, min_normal = 0x1p-6f, subnormal_shift = 0x1p14f;
    static constexpr uint8_t nan = 0x7F;
    static constexpr bool has_negative_zero = true;
    static constexpr float half_scale = 256.0f;
};
template <>
struct Fp8Format<DType::e4m3fnuz> {
    static constexpr int bias = 8;
    static constexpr float max = 240.0f, min_normal = 0x1p-7f, subnormal_shift = 0x1p13f;
    static constexpr uint8_t nan = 0x80;
    static constexpr bool has_negative_zero = false;
    static constexpr float half_scale = 128.0f;
};

namespace {

ROCM_FP8_HD inline uint32_t float_bits(float v) { return __builtin_bit_cast(uint32_t, v); }
ROCM_FP8_HD inline float bits_float(uint32_t u) { return __builtin_bit_cast(float, u); }

// The bits of a number that float16 or bfloat16 holds exactly, and that is normal in it.
template <DType type>
constexpr uint16_t bits16(float v) {
    const uint32_t u = __builtin_bit_cast(uint32_t, v);
    if (type == DType::bf16) return uint16_t(u >> 16);
    return uint16_t((u >> 16 & 0x8000u) | ((u & 0x7FFFFFFFu) - (112u << 23)) >> 13);
}

// float32 -> fp8 byte.
template <DType format>
ROCM_FP8_HD inline uint8_t fp8_encode(float v) {
    using F = Fp8Format<format>;
    if (v != v) return F::nan;
    const uint32_t sign = (float_bits(v) >> 24) & 0x80u;
    float a = v < 0 ? -v : v;
    a = a < F::max ? a : F::max;
    uint32_t code;
    if (a < F::min_normal) {
        code = float_bits(a + F::subnormal_shift) - float_bits(F::subnormal_shift);
    } else {
        const uint32_t u = float_bits(a);
        // Half an ulp of the 3-bit mantissa, less one where the kept part is even: ties go to even.
        code = ((u + 0x7FFFFu + ((u >> 20) & 1u)) >> 20) - (uint32_t(127 - F::bias) << 3);
    }
    if (!F::has_negative_zero && code == 0) return 0;
    return uint8_t(code | sign);
}

// fp8(y / scale), to either format: on a GPU for the one that is not the chip's.
ROCM_FP8_HD inline uint8_t quantize_one(float y, float scale, bool fnuz) {
    const float q = y / scale;
    return fnuz ? fp8_encode<DType::e4m3fnuz>(q) : fp8_encode<DType::e4m3fn>(q);
}

// fp8 byte -> float32, exact.
template <DType format>
ROCM_FP8_HD inline float fp8_decode(uint8_t byte) {
    using F = Fp8Format<format>;
    const bool is_nan = F::has_negative_zero ? (byte & 0x7Fu) == F::nan : byte == F::nan;
    if (is_nan) return bits_float(0x7FC00000u);
    const uint32_t exponent = (byte >> 3) & 15u, mantissa = byte & 7u;
    const float magnitude = exponent == 0 ? float(mantissa) * (F::min_normal / 8)
                                          : bits_float(((exponent + 127 - F::bias) << 23) | (mantissa << 20));
    return (byte & 0x80u) ? -magnitude : magnitude;
}

// float8_e8m0fnu: 2^(byte - 127), of which the first is subnormal in float32; 255 is NaN.
ROCM_FP8_HD inline float e8m0_value(uint32_t byte) {
    constexpr uint32_t kNan = 0x7FC00000u, kHalfOfMinNormal = 0x00400000u;
    return bits_float(byte == 0 ? kHalfOfMinNormal : byte == 255 ? kNan : byte << 23);
}

}  // namespace
}  // namespace rocm_fp8
