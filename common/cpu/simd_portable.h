// 16 float lanes in plain C++: the path for any x86-64 processor, and the text to read first. AVX2
// (simd_avx2.h) and AVX-512 (simd_avx512.h) implement the same members.
//
// All three compute the same operations in the same order on the same 16 lanes, so the row kernels
// written over them (rmsnorm_fp8, swiglu_fp8) give the same bytes on every path.
//
// Everything is in an unnamed namespace: see ../fp8.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../fp8.h"

namespace rocm_fp8 {
namespace {

struct Portable {
    static constexpr int lanes = 16;
    struct F {
        float v[lanes];
    };

    template <class Op>
    static F map(Op op) {
        F r;
        for (int i = 0; i < lanes; ++i) r.v[i] = op(i);
        return r;
    }

    static F set1(float x) { return map([=](int) { return x; }); }
    static F add(F a, F b) { return map([&](int i) { return a.v[i] + b.v[i]; }); }
    static F sub(F a, F b) { return map([&](int i) { return a.v[i] - b.v[i]; }); }
    static F mul(F a, F b) { return map([&](int i) { return a.v[i] * b.v[i]; }); }
    static F div(F a, F b) { return map([&](int i) { return a.v[i] / b.v[i]; }); }
    // Through double: the product is exact and only ties of the second rounding could differ from fmaf,
    // which without FMA hardware is a library call a lane.
    static F fma(F a, F b, F c) {
        return map([&](int i) { return float(double(a.v[i]) * double(b.v[i]) + double(c.v[i])); });
    }
    // As the x86 instructions: the second operand where either is NaN.
    static F min(F a, F b) { return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
    static F max(F a, F b) { return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
    static F abs(F a) { return map([&](int i) { return std::fabs(a.v[i]); }); }
    static F round_to_integer(F a) { return map([&](int i) { return std::nearbyintf(a.v[i]); }); }
    // a where x < 0, b elsewhere (also where x is NaN).
    static F select_negative(F x, F a, F b) { return map([&](int i) { return x.v[i] < 0 ? a.v[i] : b.v[i]; }); }
    // 2^n for integral n in [-127, 127]; n = -127 gives 0.
    static F pow2(F n) { return map([&](int i) { return bits_float(uint32_t(int32_t(n.v[i]) + 127) << 23); }); }

    static F load_f32(const void* p) {
        F r;
        std::memcpy(r.v, p, sizeof r.v);
        return r;
    }
    static F load_bf16(const void* p) {
        uint16_t h[lanes];
        std::memcpy(h, p, sizeof h);
        return map([&](int i) { return bits_float(uint32_t(h[i]) << 16); });
    }
    static F load_f16(const void* p) {
        uint16_t h[lanes];
        std::memcpy(h, p, sizeof h);
        return map([&](int i) { return half_to_float(h[i]); });
    }

    static void store_f32(void* p, F a) { std::memcpy(p, a.v, sizeof a.v); }
    static void store_bf16(void* p, F a) {
        uint16_t h[lanes];
        for (int i = 0; i < lanes; ++i) h[i] = float_to_bf16(a.v[i]);
        std::memcpy(p, h, sizeof h);
    }
    static void store_f16(void* p, F a) {
        uint16_t h[lanes];
        for (int i = 0; i < lanes; ++i) h[i] = float_to_half(a.v[i]);
        std::memcpy(p, h, sizeof h);
    }
    template <DType format>
    static void store_fp8(void* p, F a) {
        uint8_t q[lanes];
        for (int i = 0; i < lanes; ++i) q[i] = fp8_encode<format>(a.v[i]);
        std::memcpy(p, q, sizeof q);
    }

    static F round_bf16(F a) {
        return map([&](int i) { return bits_float(uint32_t(float_to_bf16(a.v[i])) << 16); });
    }
    static F round_f16(F a) { return map([&](int i) { return half_to_float(float_to_half(a.v[i])); }); }

    // skinny_gemm: 16 fp8 bytes -> floats, times 1 / Fp8Format::half_scale; NaN codes come out as some
    // finite number and are found by nan_mask.
    static constexpr int gemm_lanes = 16;
    using G = F;
    static G g_zero() { return set1(0); }
    static G g_load(const float* p) { return load_f32(p); }
    static void g_store(float* p, G a) { store_f32(p, a); }
    static G g_fma(G a, G b, G c) { return fma(a, b, c); }
    static void g_decode(const uint8_t* p, G* out) {
        out[0] = map([&](int i) { return half_to_float(uint16_t((p[i] & 0x80u) << 8 | (p[i] & 0x7Fu) << 7)); });
    }
    // Nonzero once a byte that codes NaN has been seen.
    struct NanMask {
        uint32_t seen = 0;
    };
    template <DType format>
    static void note_nan(NanMask& mask, const uint8_t* p) {
        for (int i = 0; i < 16; ++i)
            mask.seen |= Fp8Format<format>::has_negative_zero ? (p[i] & 0x7Fu) == 0x7Fu : p[i] == 0x80u;
    }
    static bool any_nan(const NanMask& mask) { return mask.seen != 0; }

  private:
    static uint16_t float_to_bf16(float x) {
        const uint32_t u = float_bits(x);
        if (x != x) return uint16_t((u >> 16) | 0x0040u);
        return uint16_t((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
    }
    // IEEE half, round to nearest even. The float adder does the rounding of subnormals.
    static uint16_t float_to_half(float x) {
        const uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;
        if (a > 0x7F800000u) return uint16_t(sign | 0x7E00u | ((a >> 13) & 0x3FFu));
        if (a >= 0x477FF000u) return uint16_t(sign | 0x7C00u);  // 65520 and above round to infinity
        if (a < 0x38800000u) {                                  // below 2^-14: units of 2^-24
            return uint16_t(sign | (float_bits(bits_float(a) + 0.5f) - float_bits(0.5f)));
        }
        return uint16_t(sign | ((a + 0xFFFu + ((a >> 13) & 1u) - 0x38000000u) >> 13));
    }
    static float half_to_float(uint16_t h) {
        const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3FFu;
        if (exponent == 31) return bits_float(sign | 0x7F800000u | (mantissa ? 0x400000u : 0) | (mantissa << 13));
        if (exponent == 0) return bits_float(sign | float_bits(float(mantissa) * 0x1p-24f));
        return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
    }
};

}  // namespace
}  // namespace rocm_fp8
