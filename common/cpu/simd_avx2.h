// 16 float lanes in two AVX2 registers; members as in simd_portable.h. Needs -mavx2 -mfma -mf16c.
#pragma once

#include <immintrin.h>

#include "../fp8.h"

namespace rocm_fp8 {
namespace {

struct Avx2 {
    static constexpr int lanes = 16;
    struct F {
        __m256 lo, hi;
    };

    template <class Op>
    static F both(F a, F b, Op op) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
    template <class Op>
    static F both(F a, Op op) { return {op(a.lo), op(a.hi)}; }

    static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    static F add(F a, F b) { return both(a, b, [](__m256 x, __m256 y) { return _mm256_add_ps(x, y); }); }
    static F sub(F a, F b) { return both(a, b, [](__m256 x, __m256 y) { return _mm256_sub_ps(x, y); }); }
    static F mul(F a, F b) { return both(a, b, [](__m256 x, __m256 y) { return _mm256_mul_ps(x, y); }); }
    static F div(F a, F b) { return both(a, b, [](__m256 x, __m256 y) { return _mm256_div_ps(x, y); }); }
    static F min(F a, F b) { return both(a, b, [](__m256 x, __m256 y) { return _mm256_min_ps(x, y); }); }
    static F max(F a, F b) { return both(a, b, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); }); }
    static F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
    static F abs(F a) { return both(a, [](__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }); }
    static F round_to_integer(F a) {
        return both(a, [](__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); });
    }
    static F select_negative(F x, F a, F b) {
        const __m256 zero = _mm256_setzero_ps();
        return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, zero, _CMP_LT_OQ)),
                _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, zero, _CMP_LT_OQ))};
    }
    static F pow2(F n) {
        return both(n, [](__m256 x) {
            const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
            return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
        });
    }

    static F load_f32(const void* p) {
        const float* f = static_cast<const float*>(p);
        return {_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
    }
    static F load_bf16(const void* p) {
        const __m128i* h = static_cast<const __m128i*>(p);
        return {widen_bf16(_mm_loadu_si128(h)), widen_bf16(_mm_loadu_si128(h + 1))};
    }
    static F load_f16(const void* p) {
        const __m128i* h = static_cast<const __m128i*>(p);
        return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
    }

    static void store_f32(void* p, F a) {
        float* f = static_cast<float*>(p);
        _mm256_storeu_ps(f, a.lo);
        _mm256_storeu_ps(f + 8, a.hi);
    }
    static void store_bf16(void* p, F a) {
        const F r = round_bf16(a);
        const __m256i lo = _mm256_srli_epi32(_mm256_castps_si256(r.lo), 16);
        const __m256i hi = _mm256_srli_epi32(_mm256_castps_si256(r.hi), 16);
        // packus works within 128-bit halves: the permutation puts the quarters back in order.
        const __m256i h = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0b11011000);
        _mm256_storeu_si256(static_cast<__m256i*>(p), h);
    }
    static void store_f16(void* p, F a) {
        __m128i* h = static_cast<__m128i*>(p);
        _mm_storeu_si128(h, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
        _mm_storeu_si128(h + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
    }
    template <DType format>
    static void store_fp8(void* p, F a) {
        const __m256i words = _mm256_packus_epi32(encode<format>(a.lo), encode<format>(a.hi));
        const __m128i lo = _mm256_castsi256_si128(words), hi = _mm256_extracti128_si256(words, 1);
        // Dwords after the two packs: lanes 0-3, 8-11, 4-7, 12-15.
        const __m128i bytes = _mm_shuffle_epi32(_mm_packus_epi16(lo, hi), 0b11011000);
        _mm_storeu_si128(static_cast<__m128i*>(p), bytes);
    }

    static F round_bf16(F a) {
        return both(a, [](__m256 x) {
            const __m256i u = _mm256_castps_si256(x);
            const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
            const __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
            const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
            // A NaN is not rounded (the carry could turn it into -0) but made quiet.
            const __m256 quiet = _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x00400000)));
            const __m256 r = _mm256_blendv_ps(_mm256_castsi256_ps(up), quiet, nan);
            return _mm256_and_ps(r, _mm256_castsi256_ps(_mm256_set1_epi32(int(0xFFFF0000u))));
        });
    }
    static F round_f16(F a) {
        return both(a, [](__m256 x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); });
    }

    static constexpr int gemm_lanes = 8;
    using G = __m256;
    static G g_zero() { return _mm256_setzero_ps(); }
    static G g_load(const float* p) { return _mm256_loadu_ps(p); }
    static void g_store(float* p, G a) { _mm256_storeu_ps(p, a); }
    static G g_fma(G a, G b, G c) { return _mm256_fmadd_ps(a, b, c); }
    static void g_decode(const uint8_t* p, G* out) {
        // Sign-extended and shifted by 7 the byte's fields stand where IEEE half has them, the sign twice;
        // the second sign bit is the half's highest exponent bit and is cleared.
        const __m256i w = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 7);
        const __m256i h = _mm256_and_si256(w, _mm256_set1_epi16(int16_t(0xBFFF)));
        out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
        out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
    }
    struct NanMask {
        __m128i seen = _mm_setzero_si128();
    };
    template <DType format>
    static void note_nan(NanMask& mask, const uint8_t* p) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        if constexpr (Fp8Format<format>::has_negative_zero) {
            mask.seen = _mm_max_epu8(mask.seen, _mm_and_si128(x, _mm_set1_epi8(0x7F)));
        } else {
            mask.seen = _mm_or_si128(mask.seen, _mm_cmpeq_epi8(x, _mm_set1_epi8(int8_t(0x80))));
        }
    }
    static bool any_nan(const NanMask& mask) {
        // e4m3fn notes the largest magnitude bits (NaN: 0x7F), fnuz a comparison's result (NaN: 0xFF).
        const __m128i top = _mm_max_epu8(mask.seen, _mm_set1_epi8(0x7F));
        return _mm_movemask_epi8(_mm_cmpeq_epi8(top, mask.seen)) != 0;
    }

  private:
    static __m256 widen_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }

    // fp8_encode of ../fp8.h on 8 lanes; one code a 32-bit lane.
    template <DType format>
    static __m256i encode(__m256 v) {
        using T = Fp8Format<format>;
        const __m256 sign_bit = _mm256_set1_ps(-0.0f);
        // minps gives its second operand where one is NaN, so NaN passes the clamp.
        const __m256 a = _mm256_min_ps(_mm256_set1_ps(T::max), _mm256_andnot_ps(sign_bit, v));
        const __m256i u = _mm256_castps_si256(a);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 20), _mm256_set1_epi32(1));
        // The bias is subtracted before the shift, together with the rounding increment.
        const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7FFFF - ((127 - T::bias) << 23)));
        const __m256i normal = _mm256_srli_epi32(rounded, 20);
        const __m256 shift = _mm256_set1_ps(T::subnormal_shift);
        const __m256i tiny = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(a, shift)), _mm256_castps_si256(shift));
        const __m256 is_tiny = _mm256_cmp_ps(a, _mm256_set1_ps(T::min_normal), _CMP_LT_OQ);
        __m256i code = _mm256_castps_si256(
            _mm256_blendv_ps(_mm256_castsi256_ps(normal), _mm256_castsi256_ps(tiny), is_tiny));
        __m256i sign = _mm256_srli_epi32(_mm256_castps_si256(_mm256_and_ps(v, sign_bit)), 24);
        if constexpr (!T::has_negative_zero) sign = _mm256_andnot_si256(_mm256_cmpeq_epi32(code, _mm256_setzero_si256()), sign);
        code = _mm256_or_si256(code, sign);
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        return _mm256_blendv_epi8(code, _mm256_set1_epi32(T::nan), nan);
    }
};

}  // namespace
}  // namespace rocm_fp8
