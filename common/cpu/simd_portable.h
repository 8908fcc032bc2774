// Registers of 8 floats in plain C++: the path for any x86-64 processor, and the version to read first.
// simd_avx2.h and simd_avx512.h implement the same members.
#pragma once

#include <cmath>

#include "half.h"
#include "lanes.h"

namespace rocm_fp8 {
namespace {

struct Portable {
    static constexpr int width = 8;
    static constexpr bool flushes = false;  // see Lanes::can_flush
    struct V {
        float v[width];
    };

    template <class Op>
    static V map(Op op) {
        V r;
        for (int i = 0; i < width; ++i) r.v[i] = op(i);
        return r;
    }

    static V set1(float x) {
        return map([=](int) { return x; });
    }
    static V add(V a, V b) {
        return map([&](int i) { return a.v[i] + b.v[i]; });
    }
    static V mul(V a, V b) {
        return map([&](int i) { return a.v[i] * b.v[i]; });
    }
    static V fma(V a, V b, V c) {
        return map([&](int i) { return fma1(a.v[i], b.v[i], c.v[i]); });
    }
    // The bound where x is NaN, as the x86 instruction.
    static V at_most(V x, float bound) {
        return map([&](int i) { return x.v[i] < bound ? x.v[i] : bound; });
    }
    // Within [low, high]; NaN stays NaN.
    static V clamp(V x, float low, float high) {
        return map([&](int i) { return x.v[i] < low ? low : x.v[i] > high ? high : x.v[i]; });
    }
    static V magnitude(V x) {
        return map([&](int i) { return bits_float(float_bits(x.v[i]) & 0x7FFFFFFFu); });
    }
    // NaN is not below anything.
    static bool any_not_below(V a, V b, float bound) {
        bool any = false;
        for (int i = 0; i < width; ++i) any |= !(a.v[i] < bound) || !(b.v[i] < bound);
        return any;
    }
    static bool any_nan(V a, V b) {
        bool any = false;
        for (int i = 0; i < width; ++i) any |= a.v[i] != a.v[i] || b.v[i] != b.v[i];
        return any;
    }

    static V round_bf16(V a) {
        return map([&](int i) {
            const uint32_t u = float_bits(a.v[i]);
            return bits_float((u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u);
        });
    }
    static V round_f16(V a) {
        return map([&](int i) { return half_to_float(float_to_half(a.v[i])); });
    }
    static V tame_nan(V a) {
        return map([&](int i) { return a.v[i] != a.v[i] ? bits_float(0x7FC00000u) : a.v[i]; });
    }

    static void load_bf16(const void* p, V& a, V& b) {
        uint16_t h[2 * width];
        std::memcpy(h, p, sizeof h);
        a = map([&](int i) { return bits_float(uint32_t(h[2 * i]) << 16); });
        b = map([&](int i) { return bits_float(uint32_t(h[2 * i + 1]) << 16); });
    }
    static void load_f16(const void* p, V& a, V& b) {
        uint16_t h[2 * width];
        std::memcpy(h, p, sizeof h);
        a = map([&](int i) { return half_to_float(h[i]); });
        b = map([&](int i) { return half_to_float(h[i + width]); });
    }
    template <bool even_odd>
    static void load_f32(const void* p, V& a, V& b) {
        float f[2 * width];
        std::memcpy(f, p, sizeof f);
        a = map([&](int i) { return f[even_odd ? 2 * i : i]; });
        b = map([&](int i) { return f[even_odd ? 2 * i + 1 : i + width]; });
    }

    // Values already rounded to the type.
    static void store_bf16(void* p, V a, V b) {
        uint16_t h[2 * width];
        for (int i = 0; i < width; ++i) {
            h[2 * i] = uint16_t(float_bits(a.v[i]) >> 16);
            h[2 * i + 1] = uint16_t(float_bits(b.v[i]) >> 16);
        }
        std::memcpy(p, h, sizeof h);
    }
    static void store_f16(void* p, V a, V b) {
        uint16_t h[2 * width];
        for (int i = 0; i < width; ++i) {
            h[i] = float_to_half(a.v[i]);
            h[i + width] = float_to_half(b.v[i]);
        }
        std::memcpy(p, h, sizeof h);
    }
    template <bool even_odd>
    static void store_f32(void* p, V a, V b) {
        store_pairs<float, even_odd>(p, a, b, [](float x) { return x; });
    }
    // Quantises the magnitudes a and b, at most the format's largest number times the scale, with the signs of
    // the last two.
    template <DType format, bool even_odd>
    static void store_fp8(void* p, V a, V b, V signed_a, V signed_b, V scale, V) {
        auto quotient = [&](V x, V y) {
            return map([&](int i) { return __builtin_copysignf(x.v[i], y.v[i]) / scale.v[i]; });
        };
        store_pairs<uint8_t, even_odd>(p, quotient(a, signed_a), quotient(b, signed_b), fp8_encode<format>);
    }

    // --- GEMMs: see gemm.h ---
    using Operand = V;
    using Sum = V;
    static constexpr int step = 8, parts = 1, tile_n = 3;
    static constexpr int stream_n(int) { return 4; }
    template <DType format>
    static constexpr float operand_scale = Fp8Format<format>::half_scale;
    struct NanMask {
        bool seen = false;
    };

    static Sum zero() { return set1(0); }
    static void load_sum(const float* p, Sum& s) { std::memcpy(s.v, p, sizeof s.v); }
    static void store_sum(float* p, Sum s) { std::memcpy(p, s.v, sizeof s.v); }
    static Operand load_operand(const void* p) {
        Operand x;
        std::memcpy(x.v, p, sizeof x.v);
        return x;
    }
    static void store_operand(void* p, Operand x) { std::memcpy(p, x.v, sizeof x.v); }
    // The product of two FP8 numbers is exact, so this equals an fma.
    static Sum dot(Sum s, Operand a, Operand b) { return add(s, mul(a, b)); }
    // s + a * b of any floats, rounded once or, without the instruction, twice.
    static Sum multiply_add(Sum s, V a, V b) { return add(s, mul(a, b)); }
    template <DType format>
    static void decode(const uint8_t* p, Operand* out) {
        out[0] = map([&](int i) { return half_to_float(uint16_t((p[i] & 0x80u) << 8 | (p[i] & 0x7Fu) << 7)); });
    }
    // --- MX ---
    // e2m1_blocks blocks of 32 as numbers, of which number i is in w[e2m1_place(i) / width], lane e2m1_place(i) % width.
    static constexpr int e2m1_blocks = 1;
    static constexpr int e2m1_place(int i) { return even_odd_place<width>(i); }
    static void decode_e2m1(const uint8_t* p, V (&w)[4]) {
        static constexpr float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
        for (int v = 0; v < 4; ++v) w[v] = map([&](int i) { return numbers[p[v / 2 * width + i] >> v % 2 * 4 & 15]; });
    }
    // width bytes.
    template <DType format>
    static V decode_fp8(const uint8_t* p) {
        return map([&](int i) { return fp8_decode<format>(p[i]); });
    }

    template <DType format>
    static void note_nan(NanMask& mask, const uint8_t* p) {
        for (int i = 0; i < step; ++i)
            mask.seen |= Fp8Format<format>::has_negative_zero ? (p[i] & 0x7Fu) == 0x7Fu : p[i] == 0x80u;
    }
    static bool any_nan(const NanMask& mask) { return mask.seen; }

  private:
    // fmaf without the hardware, where it is a slow library call. In double the product is exact; the sum is
    // rounded to odd, after which the second rounding, to float, is right (Boldo and Melquiond).
    static float fma1(float a, float b, float c) {
        const double p = double(a) * double(b), s = p + double(c);
        const double from_c = s - p, error = (p - (s - from_c)) + (double(c) - from_c);
        uint64_t u;
        std::memcpy(&u, &s, 8);
        if (!(u & 1) && (error > 0 || error < 0)) u += (error > 0) == (s > 0) ? 1 : -1;
        double odd;
        std::memcpy(&odd, &u, 8);
        return float(odd);
    }
    template <class T, bool even_odd, class Convert>
    static void store_pairs(void* p, V a, V b, Convert convert) {
        T f[2 * width];
        for (int i = 0; i < width; ++i) {
            f[even_odd ? 2 * i : i] = convert(a.v[i]);
            f[even_odd ? 2 * i + 1 : i + width] = convert(b.v[i]);
        }
        std::memcpy(p, f, sizeof f);
    }
};

}  // namespace
}  // namespace rocm_fp8
