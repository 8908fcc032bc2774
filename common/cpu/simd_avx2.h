// AVX2 registers of 8 floats; members as in simd_portable.h. Needs -mavx2 -mfma -mf16c.
#pragma once

#include <immintrin.h>

#include "lanes.h"

namespace rocm_fp8 {
namespace {

struct Avx2 {
    static constexpr int width = 8;
    static constexpr bool flushes = false;
    using V = __m256;

    static V set1(float x) { return _mm256_set1_ps(x); }
    static V add(V a, V b) { return _mm256_add_ps(a, b); }
    static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
    static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
    static V at_most(V x, float bound) { return _mm256_min_ps(x, _mm256_set1_ps(bound)); }
    // Of NaN the instructions give their second operand.
    static V clamp(V x, float low, float high) { return _mm256_max_ps(set1(low), _mm256_min_ps(set1(high), x)); }
    static V magnitude(V x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
    // For magnitudes: their bits have the same order as the numbers, with NaN at the top.
    static bool any_not_below(V a, V b, float bound) {
        const __m256i most = _mm256_max_epi32(as_int(a), as_int(b)),
                      limit = _mm256_set1_epi32(int(float_bits(bound)) - 1);
        return _mm256_movemask_ps(as_float(_mm256_cmpgt_epi32(most, limit))) != 0;
    }
    static bool any_nan(V a, V b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0; }

    static V round_bf16(V x) {
        const __m256i u = as_int(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
        const __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd);
        return as_float(_mm256_and_si256(up, _mm256_set1_epi32(int(0xFFFF0000u))));
    }
    static V round_f16(V x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
    static V tame_nan(V x) {
        return _mm256_blendv_ps(x, as_float(_mm256_set1_epi32(0x7FC00000)), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    }

    static void load_bf16(const void* p, V& a, V& b) {
        const __m256i u = _mm256_loadu_si256(static_cast<const __m256i*>(p));
        a = as_float(_mm256_slli_epi32(u, 16));
        b = as_float(_mm256_and_si256(u, _mm256_set1_epi32(int(0xFFFF0000u))));
    }
    static void load_f16(const void* p, V& a, V& b) {
        const __m128i* h = static_cast<const __m128i*>(p);
        a = _mm256_cvtph_ps(_mm_loadu_si128(h));
        b = _mm256_cvtph_ps(_mm_loadu_si128(h + 1));
    }
    template <bool even_odd>
    static void load_f32(const void* p, V& a, V& b) {
        const float* f = static_cast<const float*>(p);
        a = _mm256_loadu_ps(f);
        b = _mm256_loadu_ps(f + 8);
        if constexpr (even_odd) {
            // The shuffle gives 0 2 8 10 | 4 6 12 14; the permutation puts the 64-bit quarters in order.
            const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0b10001000));
            const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0b11011101));
            a = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0b11011000));
            b = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0b11011000));
        }
    }

    static void store_bf16(void* p, V a, V b) {
        const __m256i u = _mm256_blend_epi16(_mm256_srli_epi32(as_int(a), 16), as_int(b), 0b10101010);
        _mm256_storeu_si256(static_cast<__m256i*>(p), u);
    }
    static void store_f16(void* p, V a, V b) {
        __m128i* h = static_cast<__m128i*>(p);
        _mm_storeu_si128(h, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
        _mm_storeu_si128(h + 1, _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
    }
    template <bool even_odd>
    static void store_f32(void* p, V a, V b) {
        float* f = static_cast<float*>(p);
        if constexpr (even_odd) {
            const V lo = _mm256_unpacklo_ps(a, b), hi = _mm256_unpackhi_ps(a, b);
            a = _mm256_permute2f128_ps(lo, hi, 0x20);
            b = _mm256_permute2f128_ps(lo, hi, 0x31);
        }
        _mm256_storeu_ps(f, a);
        _mm256_storeu_ps(f + 8, b);
    }
    template <DType format, bool even_odd>
    static void store_fp8(void* p, V a, V b, V signed_a, V signed_b, V scale, V reciprocal) {
        const __m256i x = with_sign<format>(encode<format>(a, scale, reciprocal), signed_a);
        const __m256i y = with_sign<format>(encode<format>(b, scale, reciprocal), signed_b);
        if constexpr (even_odd) {
            // Each 32-bit word has a code in its low byte: even | odd << 8 is two neighbours.
            const __m256i words = _mm256_or_si256(x, _mm256_slli_epi32(y, 8));
            const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0b11011000);
            _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
        } else {
            const __m256i words = _mm256_packus_epi32(x, y);  // 0-3, 8-11 | 4-7, 12-15
            const __m128i lo = _mm256_castsi256_si128(words), hi = _mm256_extracti128_si256(words, 1);
            _mm_storeu_si128(static_cast<__m128i*>(p), _mm_shuffle_epi32(_mm_packus_epi16(lo, hi), 0b11011000));
        }
    }

    // --- GEMMs: see gemm.h ---
    using Operand = __m256;
    using Sum = __m256;
    // Of 16 registers: 4 x 3 sums, 3 columns and one row.
    static constexpr int step = 32, parts = 4, tile_n = 3;
    // At m = 1, 6 sums hide the latency of fma and leave registers for the operands.
    static constexpr int stream_n(int m) { return m == 1 ? 6 : m == 2 ? 4 : 3; }
    template <DType format>
    static constexpr float operand_scale = Fp8Format<format>::half_scale;
    struct NanMask {
        __m256i seen = _mm256_setzero_si256();
    };

    static Sum zero() { return _mm256_setzero_ps(); }
    static void load_sum(const float* p, Sum& s) { s = _mm256_loadu_ps(p); }
    static void store_sum(float* p, Sum s) { _mm256_storeu_ps(p, s); }
    static Operand load_operand(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
    static void store_operand(void* p, Operand x) { _mm256_storeu_ps(static_cast<float*>(p), x); }
    static Sum dot(Sum s, Operand a, Operand b) { return _mm256_fmadd_ps(a, b, s); }
    static Sum multiply_add(Sum s, V a, V b) { return _mm256_fmadd_ps(a, b, s); }
    template <DType format>
    static void decode(const uint8_t* p, Operand* out) {
        // 128 times a code, in a signed 16-bit word, has IEEE half's fields and a copy of the sign below the sign; the
        // mask clears that copy. maddubs picks the even or the odd bytes. Shifts would take the conversions' ports.
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        const __m256i fields = _mm256_set1_epi16(int16_t(0xBF80));
        const __m256i even = _mm256_and_si256(_mm256_maddubs_epi16(_mm256_set1_epi16(0x0080), x), fields);
        const __m256i odd = _mm256_and_si256(_mm256_maddubs_epi16(_mm256_set1_epi16(int16_t(0x8000)), x), fields);
        // The order of the elements (0 2 4 .. 14, 16 .. 30, 1 3 ..) is the same for A and B.
        out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(even));
        out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(even, 1));
        out[2] = _mm256_cvtph_ps(_mm256_castsi256_si128(odd));
        out[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(odd, 1));
    }
    // --- MX ---
    // Two blocks at a time, a half of the registers each: only shuffles within halves have two ports on Intel. They look up
    // the two bytes of a bfloat16, join them, and put zeros below.
    static constexpr int e2m1_blocks = 2;
    // Where the register w[place / width] has number i.
    static constexpr int e2m1_place(int i) {
        const int byte = i % 32 / 2, vector = i % 2 * 4 + byte / 4;
        return vector * width + i / 32 * 4 + byte % 4;
    }
    [[gnu::always_inline]] static void decode_e2m1(const uint8_t* p, V (&w)[8]) {
        const auto table = [](auto... bytes) { return _mm256_broadcastsi128_si256(_mm_setr_epi8(char(bytes)...)); };
        const __m256i high = table(0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, 0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0,
                                   0xC0, 0xC0),
                      low = table(0, 0, 0x80, 0xC0, 0, 0x40, 0x80, 0xC0, 0, 0, 0x80, 0xC0, 0, 0x40, 0x80, 0xC0);
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), nibble = _mm256_set1_epi8(15);
        const auto widen = [](__m256i pairs, V& first, V& second) {
            first = as_float(_mm256_unpacklo_epi16(_mm256_setzero_si256(), pairs));
            second = as_float(_mm256_unpackhi_epi16(_mm256_setzero_si256(), pairs));
        };
        const auto numbers = [&](__m256i codes, V* to) {
            const __m256i l = _mm256_shuffle_epi8(low, codes), h = _mm256_shuffle_epi8(high, codes);
            widen(_mm256_unpacklo_epi8(l, h), to[0], to[1]);
            widen(_mm256_unpackhi_epi8(l, h), to[2], to[3]);
        };
        numbers(_mm256_and_si256(x, nibble), w);
        numbers(_mm256_and_si256(_mm256_srli_epi16(x, 4), nibble), w + 4);
    }
    // Each lane's block's.
    static V of_blocks(const float* two) {
        const __m256 both = _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(two)));
        return _mm256_permutevar_ps(both, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
    }
    template <DType format>
    static V decode_fp8(const uint8_t* p) {
        const __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        const __m128i code = _mm_and_si128(x, _mm_set1_epi16(0x7F));
        const __m128i half =
            _mm_or_si128(_mm_slli_epi16(code, 7), _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x80)), 8));
        const __m128i nan = Fp8Format<format>::has_negative_zero ? _mm_cmpeq_epi16(code, _mm_set1_epi16(0x7F))
                                                                 : _mm_cmpeq_epi16(x, _mm_set1_epi16(0x80));
        return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7E00)))),
                             set1(Fp8Format<format>::half_scale));
    }

    template <DType format>
    static void note_nan(NanMask& mask, const uint8_t* p) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        if constexpr (Fp8Format<format>::has_negative_zero) {
            mask.seen = _mm256_max_epu8(mask.seen, _mm256_and_si256(x, _mm256_set1_epi8(0x7F)));
        } else {
            mask.seen = _mm256_or_si256(mask.seen, _mm256_cmpeq_epi8(x, _mm256_set1_epi8(int8_t(0x80))));
        }
    }
    static bool any_nan(const NanMask& mask) {
        // `seen` is, for e4m3fn, the largest magnitude bits (NaN: 0x7F); for fnuz, 0xFF where a code was NaN.
        const __m256i top = _mm256_max_epu8(mask.seen, _mm256_set1_epi8(0x7F));
        return _mm256_movemask_epi8(_mm256_cmpeq_epi8(top, mask.seen)) != 0;
    }

  private:
    static __m256i as_int(__m256 x) { return _mm256_castps_si256(x); }
    static __m256 as_float(__m256i x) { return _mm256_castsi256_ps(x); }

    // fp8_encode(magnitude / scale) on 8 lanes, one code a 32-bit lane. Lanes::Scale explains the division.
    template <DType format>
    static __m256i encode(V magnitude, V scale, V reciprocal) {
        using T = Fp8Format<format>;
        const V about = _mm256_mul_ps(magnitude, reciprocal);
        const V a = _mm256_fmadd_ps(_mm256_fnmadd_ps(about, scale, magnitude), reciprocal, about);
        // The exponent of a less that of the smallest normal number, times 2^23; 0 for subnormal numbers.
        const __m256i power = _mm256_subs_epu16(_mm256_and_si256(as_int(a), _mm256_set1_epi32(0x7F800000)),
                                                _mm256_set1_epi32(int(float_bits(T::min_normal))));
        // Adding 2^20 times that power of two rounds a to 3 bits below it, to nearest even.
        const __m256i big = _mm256_add_epi32(power, _mm256_set1_epi32(int(float_bits(T::min_normal * 0x1p20f))));
        const __m256i eighths = _mm256_sub_epi32(as_int(_mm256_add_ps(a, as_float(big))), big);
        return _mm256_add_epi32(eighths, _mm256_srli_epi32(power, 20));
    }
    template <DType format>
    static __m256i with_sign(__m256i code, V v) {
        __m256i sign = _mm256_and_si256(_mm256_srli_epi32(as_int(v), 24), _mm256_set1_epi32(0x80));
        if constexpr (!Fp8Format<format>::has_negative_zero)
            sign = _mm256_andnot_si256(_mm256_cmpeq_epi32(code, _mm256_setzero_si256()), sign);
        return _mm256_or_si256(code, sign);
    }
};

}  // namespace
}  // namespace rocm_fp8
