// 16 float lanes in one AVX-512 register; members as in simd_portable.h. Needs F, BW, DQ and VL.
#pragma once

#include <immintrin.h>

#include "../fp8.h"

namespace rocm_fp8 {
namespace {

struct Avx512 {
    static constexpr int lanes = 16;
    using F = __m512;

    static F set1(float x) { return _mm512_set1_ps(x); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F abs(F a) { return _mm512_abs_ps(a); }
    static F round_to_integer(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static F select_negative(F x, F a, F b) {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), b, a);
    }
    static F pow2(F n) {
        const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
        return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
    }

    static F load_f32(const void* p) { return _mm512_loadu_ps(p); }
    static F load_bf16(const void* p) {
        const __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
        return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
    }
    static F load_f16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }

    static void store_f32(void* p, F a) { _mm512_storeu_ps(p, a); }
    static void store_bf16(void* p, F a) {
        const __m512i u = _mm512_srli_epi32(_mm512_castps_si512(round_bf16(a)), 16);
        _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(u));
    }
    static void store_f16(void* p, F a) {
        _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    }
    template <DType format>
    static void store_fp8(void* p, F a) {
        _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(encode<format>(a)));
    }

    static F round_bf16(F x) {
        const __m512i u = _mm512_castps_si512(x);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
        const __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
        // A NaN is not rounded (the carry could turn it into -0) but made quiet.
        const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        const __m512i r = _mm512_mask_or_epi32(up, nan, u, _mm512_set1_epi32(0x00400000));
        return _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32(int(0xFFFF0000u))));
    }
    static F round_f16(F x) { return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }

    static constexpr int gemm_lanes = 16;
    using G = __m512;
    static G g_zero() { return _mm512_setzero_ps(); }
    static G g_load(const float* p) { return _mm512_loadu_ps(p); }
    static void g_store(float* p, G a) { _mm512_storeu_ps(p, a); }
    static G g_fma(G a, G b, G c) { return _mm512_fmadd_ps(a, b, c); }
    static void g_decode(const uint8_t* p, G* out) {
        // As in simd_avx2.h: the byte's fields moved to where IEEE half has them.
        const __m256i w = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 7);
        out[0] = _mm512_cvtph_ps(_mm256_and_si256(w, _mm256_set1_epi16(int16_t(0xBFFF))));
    }
    struct NanMask {
        __mmask16 seen = 0;
    };
    template <DType format>
    static void note_nan(NanMask& mask, const uint8_t* p) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        if constexpr (Fp8Format<format>::has_negative_zero) {
            mask.seen |= _mm_cmpeq_epi8_mask(_mm_and_si128(x, _mm_set1_epi8(0x7F)), _mm_set1_epi8(0x7F));
        } else {
            mask.seen |= _mm_cmpeq_epi8_mask(x, _mm_set1_epi8(int8_t(0x80)));
        }
    }
    static bool any_nan(const NanMask& mask) { return mask.seen != 0; }

  private:
    // fp8_encode of ../fp8.h on 16 lanes; one code a 32-bit lane.
    template <DType format>
    static __m512i encode(__m512 v) {
        using T = Fp8Format<format>;
        // minps gives its second operand where one is NaN, so NaN passes the clamp.
        const __m512 a = _mm512_min_ps(_mm512_set1_ps(T::max), _mm512_abs_ps(v));
        const __m512i u = _mm512_castps_si512(a);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 20), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7FFFF - ((127 - T::bias) << 23)));
        const __m512 shift = _mm512_set1_ps(T::subnormal_shift);
        const __m512i tiny = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(a, shift)), _mm512_castps_si512(shift));
        const __mmask16 is_tiny = _mm512_cmp_ps_mask(a, _mm512_set1_ps(T::min_normal), _CMP_LT_OQ);
        const __m512i code = _mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 20), is_tiny, tiny);
        const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(v), 24), _mm512_set1_epi32(0x80));
        __mmask16 signed_lanes = 0xFFFF;
        if constexpr (!T::has_negative_zero) signed_lanes = _mm512_test_epi32_mask(code, code);
        const __m512i with_sign = _mm512_mask_or_epi32(code, signed_lanes, code, sign);
        return _mm512_mask_mov_epi32(with_sign, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), _mm512_set1_epi32(T::nan));
    }
};

}  // namespace
}  // namespace rocm_fp8
