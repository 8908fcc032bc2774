// IEEE half and bfloat16 on the CPU, one number at a time.
#pragma once

#include "../fp8.h"

namespace rocm_fp8 {
namespace {

// IEEE half, round to nearest even. The float adder does the rounding of subnormals.
inline uint16_t float_to_half(float x) {
    const uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;
    if (a > 0x7F800000u) return uint16_t(sign | 0x7E00u | ((a >> 13) & 0x3FFu));
    if (a >= 0x477FF000u) return uint16_t(sign | 0x7C00u);  // 65520 and above round to infinity
    if (a < 0x38800000u) {                                  // below 2^-14: units of 2^-24
        return uint16_t(sign | (float_bits(bits_float(a) + 0.5f) - float_bits(0.5f)));
    }
    return uint16_t(sign | ((a + 0xFFFu + ((a >> 13) & 1u) - 0x38000000u) >> 13));
}
// bfloat16, round to nearest even; every NaN becomes the default one.
inline uint16_t float_to_bfloat16(float x) {
    const uint32_t u = float_bits(x);
    return x == x ? uint16_t((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16) : uint16_t(0x7FC0);
}
inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3FFu;
    if (exponent == 31) return bits_float(sign | 0x7F800000u | (mantissa ? 0x400000u : 0) | (mantissa << 13));
    if (exponent == 0) return bits_float(sign | float_bits(float(mantissa) * 0x1p-24f));
    return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// As vendor.h names them.
template <class T>
const T* global(const void* p) {
    return static_cast<const T*>(p);
}
template <class T>
T* global(void* p) {
    return static_cast<T*>(p);
}
inline float load_scalar(const float* p) { return *p; }
struct FloatPair {
    float x, y;
};
template <DType>
struct Pairs;
template <>
struct Pairs<DType::f16> {
    static FloatPair widen(uint32_t v) { return {half_to_float(uint16_t(v)), half_to_float(uint16_t(v >> 16))}; }
};
template <>
struct Pairs<DType::bf16> {
    static FloatPair widen(uint32_t v) { return {bits_float(v << 16), bits_float(v & 0xFFFF0000u)}; }
};

}  // namespace
}  // namespace rocm_fp8
