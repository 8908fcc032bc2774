// AVX-512 registers of 16 floats; members as in simd_portable.h. Needs F, BW, DQ, VL, VBMI and BF16: Zen 4 or Sapphire
// Rapids. VBMI and BF16 make the GEMM's decoding cheap.
#pragma once

#include <immintrin.h>

#include "lanes.h"

namespace rocm_fp8 {
namespace {

struct Avx512 {
    static constexpr int width = 16;
    static constexpr bool flushes = true;  // vcvtne2ps2bf16 reads subnormal numbers as 0
    using V = __m512;

    static V set1(float x) { return _mm512_set1_ps(x); }
    static V add(V a, V b) { return _mm512_add_ps(a, b); }
    static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
    static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
    static V at_most(V x, float bound) { return _mm512_min_ps(x, _mm512_set1_ps(bound)); }
    // Of NaN the instructions give their second operand.
    static V clamp(V x, float low, float high) { return _mm512_max_ps(set1(low), _mm512_min_ps(set1(high), x)); }
    static V magnitude(V x) { return _mm512_abs_ps(x); }
    static bool any_not_below(V a, V b, float bound) {
        const V limit = _mm512_set1_ps(bound);
        return !_kortestz_mask16_u8(_mm512_cmp_ps_mask(a, limit, _CMP_NLT_UQ),
                                    _mm512_cmp_ps_mask(b, limit, _CMP_NLT_UQ));
    }
    static bool any_nan(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }

    static V round_bf16(V x) {
        const __m512i u = as_int(x), half = _mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF));
        const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
        const __m512i up = _mm512_mask_add_epi32(half, odd, half, _mm512_set1_epi32(1));
        return as_float(_mm512_and_si512(up, _mm512_set1_epi32(int(0xFFFF0000u))));
    }
    static void round_bf16_pair(V& a, V& b) { split_bf16(rounded_words(a, b), a, b); }
    static void store_rounded_bf16(void* p, V a, V b) { _mm512_storeu_si512(p, rounded_words(a, b)); }
    static V round_f16(V x) { return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
    static V tame_nan(V x) {
        return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), as_float(_mm512_set1_epi32(0x7FC00000)));
    }

    static void load_bf16(const void* p, V& a, V& b) { split_bf16(_mm512_loadu_si512(p), a, b); }
    static void load_f16(const void* p, V& a, V& b) {
        const __m256i* h = static_cast<const __m256i*>(p);
        a = _mm512_cvtph_ps(_mm256_loadu_si256(h));
        b = _mm512_cvtph_ps(_mm256_loadu_si256(h + 1));
    }
    template <bool even_odd>
    static void load_f32(const void* p, V& a, V& b) {
        const float* f = static_cast<const float*>(p);
        a = _mm512_loadu_ps(f);
        b = _mm512_loadu_ps(f + 16);
        if constexpr (even_odd) {
            const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
            const V first = a;
            a = _mm512_permutex2var_ps(first, even, b);
            b = _mm512_permutex2var_ps(first, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
        }
    }

    static void store_bf16(void* p, V a, V b) {
        // The upper halves: of odd elements in place, of even elements shifted below them.
        _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(as_int(a), 16), as_int(b)));
    }
    static void store_f16(void* p, V a, V b) {
        __m256i* h = static_cast<__m256i*>(p);
        _mm256_storeu_si256(h, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
        _mm256_storeu_si256(h + 1, _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
    }
    template <bool even_odd>
    static void store_f32(void* p, V a, V b) {
        float* f = static_cast<float*>(p);
        if constexpr (even_odd) {
            const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
            const V even = a;
            a = _mm512_permutex2var_ps(even, first, b);
            b = _mm512_permutex2var_ps(even, _mm512_add_epi32(first, _mm512_set1_epi32(8)), b);
        }
        _mm512_storeu_ps(f, a);
        _mm512_storeu_ps(f + 16, b);
    }
    template <DType format, bool even_odd>
    static void store_fp8(void* p, V a, V b, V signed_a, V signed_b, V scale, V reciprocal) {
        const __m512i x = encode<format>(a, scale, reciprocal), y = encode<format>(b, scale, reciprocal);
        // A lane has its code in the lowest byte, its sign in the highest.
        const __m512i low = byte_order<even_odd>(), high = _mm512_add_epi8(low, _mm512_set1_epi8(3));
        const __m256i code = _mm512_castsi512_si256(_mm512_permutex2var_epi8(x, low, y));
        const __m256i top = _mm512_castsi512_si256(_mm512_permutex2var_epi8(as_int(signed_a), high, as_int(signed_b)));
        __m256i sign_bit = _mm256_set1_epi8(int8_t(0x80));
        if constexpr (!Fp8Format<format>::has_negative_zero)
            sign_bit = _mm256_maskz_mov_epi8(_mm256_test_epi8_mask(code, code), sign_bit);
        // code | (top & sign_bit)
        _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_ternarylogic_epi32(code, top, sign_bit, 0xF8));
    }

    // --- GEMMs: see gemm.h ---
    //
    // An operand is 32 bfloat16, which hold every FP8 number exactly. Two look-ups in tables of 128 entries give the
    // upper and the lower byte, also of NaN. Interleaving them leaves the elements in the order
    // 0-7, 16-23, 32-39, 48-55 | 8-15, ..., the same for A and B.
    using Operand = __m512i;
    using Sum = __m512;
    static constexpr int step = 64, parts = 2, tile_n = 6;
    static constexpr int stream_n(int) { return 4; }
    template <DType format>
    static constexpr float operand_scale = 1.0f;
    struct NanMask {};

    static Sum zero() { return _mm512_setzero_ps(); }
    static void load_sum(const float* p, Sum& s) { s = _mm512_loadu_ps(p); }
    static void store_sum(float* p, Sum s) { _mm512_storeu_ps(p, s); }
    static Operand load_operand(const void* p) { return _mm512_loadu_si512(p); }
    static void store_operand(void* p, Operand x) { _mm512_storeu_si512(p, x); }
    static Sum dot(Sum s, Operand a, Operand b) { return _mm512_dpbf16_ps(s, (__m512bh)a, (__m512bh)b); }
    static Sum multiply_add(Sum s, V a, V b) { return _mm512_fmadd_ps(a, b, s); }
    template <DType format>
    static void decode(const uint8_t* p, Operand* out) {
        static constexpr Table table = make_table<format>();
        const __m512i x = _mm512_loadu_si512(p);
        __m512i lo = _mm512_permutex2var_epi8(_mm512_load_si512(table.low), x, _mm512_load_si512(table.low + 64));
        __m512i hi = _mm512_permutex2var_epi8(_mm512_load_si512(table.high), x, _mm512_load_si512(table.high + 64));
        hi = _mm512_ternarylogic_epi32(hi, x, _mm512_set1_epi8(int8_t(0x80)), 0xF8);  // hi | (x & 0x80)
        if constexpr (!Fp8Format<format>::has_negative_zero) {
            // The look-up reads 7 bits: 0x80 has got the entry of 0, and must become NaN.
            const __mmask64 nan = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(int8_t(0x80)));
            lo = _mm512_mask_mov_epi8(lo, nan, _mm512_set1_epi8(int8_t(0xFF)));
            hi = _mm512_mask_mov_epi8(hi, nan, _mm512_set1_epi8(0x7F));
        }
        out[0] = _mm512_unpacklo_epi8(lo, hi);
        out[1] = _mm512_unpackhi_epi8(lo, hi);
    }
    // --- MX ---
    static constexpr int e2m1_blocks = 1;
    static constexpr int e2m1_place(int i) { return even_odd_place<width>(i); }
    static void decode_e2m1(const uint8_t* p, V (&w)[2]) {
        const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        // The look-up reads the lowest four bits of a lane.
        const V numbers = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
        w[0] = _mm512_permutexvar_ps(x, numbers);
        w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(x, 4), numbers);
    }
    template <DType format>
    static V decode_fp8(const uint8_t* p) {
        const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        const __m256i code = _mm256_and_si256(x, _mm256_set1_epi16(0x7F));
        const __m256i half = _mm256_or_si256(_mm256_slli_epi16(code, 7),
                                             _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x80)), 8));
        const __mmask16 nan = Fp8Format<format>::has_negative_zero
                                  ? _mm256_cmpeq_epi16_mask(code, _mm256_set1_epi16(0x7F))
                                  : _mm256_cmpeq_epi16_mask(x, _mm256_set1_epi16(0x80));
        return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7E00))),
                             set1(Fp8Format<format>::half_scale));
    }

    template <DType>
    static void note_nan(NanMask&, const uint8_t*) {}
    static bool any_nan(const NanMask&) { return false; }

  private:
    // Rounds both registers to 32 bfloat16, in the order of the elements.
    static __m512i rounded_words(V a, V b) {
        // The conversion puts a's 16 below b's. Word i of the result is word i / 2 of a (even i) or of b.
        const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                               6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
    static void split_bf16(__m512i words, V& a, V& b) {
        a = as_float(_mm512_slli_epi32(words, 16));
        b = as_float(_mm512_and_si512(words, _mm512_set1_epi32(int(0xFFFF0000u))));
    }
    static __m512i as_int(__m512 x) { return _mm512_castps_si512(x); }
    static __m512 as_float(__m512i x) { return _mm512_castsi512_ps(x); }

    // As in simd_avx2.h, on 16 lanes.
    template <DType format>
    static __m512i encode(V magnitude, V scale, V reciprocal) {
        using T = Fp8Format<format>;
        const V about = _mm512_mul_ps(magnitude, reciprocal);
        const V a = _mm512_fmadd_ps(_mm512_fnmadd_ps(about, scale, magnitude), reciprocal, about);
        const __m512i power = _mm512_subs_epu16(_mm512_and_si512(as_int(a), _mm512_set1_epi32(0x7F800000)),
                                                _mm512_set1_epi32(int(float_bits(T::min_normal))));
        const __m512i big = _mm512_add_epi32(power, _mm512_set1_epi32(int(float_bits(T::min_normal * 0x1p20f))));
        const __m512i eighths = _mm512_sub_epi32(as_int(_mm512_add_ps(a, as_float(big))), big);
        return _mm512_add_epi32(eighths, _mm512_srli_epi32(power, 20));
    }

    // Indices for a permutation of two registers' bytes: the lowest byte of each lane, in the order of the elements.
    template <bool even_odd>
    static __m512i byte_order() {
        struct Order {
            alignas(64) uint8_t index[64];
        };
        static constexpr Order order = [] {
            Order o{};
            for (int i = 0; i < 32; ++i) o.index[i] = uint8_t(even_odd ? (i % 2) * 64 + i / 2 * 4 : i * 4);
            return o;
        }();
        return _mm512_load_si512(order.index);
    }

    // bfloat16 of the codes 0 to 127.
    struct Table {
        alignas(64) uint8_t low[128];
        alignas(64) uint8_t high[128];
    };
    template <DType format>
    static constexpr Table make_table() {
        using T = Fp8Format<format>;
        Table t{};
        for (int code = 0; code < 128; ++code) {
            int exponent = code >> 3, mantissa = code & 7;
            uint32_t bits = 0;
            if (T::has_negative_zero && code == T::nan) {
                bits = 0x7FC0;
            } else if (exponent > 0) {
                bits = uint32_t(exponent + 127 - T::bias) << 7 | uint32_t(mantissa) << 4;
            } else if (mantissa > 0) {  // subnormal: mantissa / 8 * 2^(1 - bias), made normal
                exponent = 1;
                for (; mantissa < 8; mantissa *= 2) --exponent;
                bits = uint32_t(exponent + 127 - T::bias) << 7 | uint32_t(mantissa & 7) << 4;
            }
            t.low[code] = uint8_t(bits);
            t.high[code] = uint8_t(bits >> 8);
        }
        return t;
    }
};

}  // namespace
}  // namespace rocm_fp8
