// 32 numbers of a block as bfloat16 in a register, in the order of k; and between which powers of two they lie.
#pragma once

#include <algorithm>

#include "../../common/cpu/amx.h"
#include "../../common/mx.h"
#include "amx.h"

namespace rocm_fp8::mx_gemm {
namespace {

template <DType format>
constexpr int64_t kBlockBytes = format == DType::e2m1 ? kMxBlock / 2
                                : is_fp8(format)      ? kMxBlock
                                                      : 2 * kMxBlock;

// All numbers of a format are multiples of 2^kLastBit, and less than 2^kTop.
template <DType format>
constexpr int kLastBit = format == DType::e2m1     ? -1
                         : format == DType::e4m3fn ? -9
                                                   : -10;
template <DType format>
constexpr int kTop = format == DType::e2m1     ? 3
                     : format == DType::e4m3fn ? 9
                                               : 8;

constexpr int kExponentBias = 127, kLeastNormal = -126, kMostExponent = 127;  // of float32, bfloat16 and of scales
constexpr int kBitsOfBlock = 5;                                               // a sum of 32 numbers has more
constexpr int kOfNone = 1 << 16;
// kBeyond fits nothing, not even what is empty: zeros beside NaN are NaN.
constexpr Range kEmpty{kOfNone, -kOfNone}, kBeyond{-2 * kOfNone, 2 * kOfNone};

inline Range united(Range a, Range b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

// Whether every sum of a row's and a column's products is a multiple of the least normal number, and a block's finite.
inline bool fits(Range row, Range column) {
    return row.low + column.low >= kLeastNormal && row.high + column.high + kBitsOfBlock <= kMostExponent;
}

template <DType format>
bool are_zeros(const uint8_t* codes) {
    for (int64_t i = 0; i < kBlockBytes<format>; ++i)
        if (codes[i] & (format == DType::e2m1 ? 0x77 : 0x7F)) return false;
    return true;
}

// A block of codes with a scale. One of zeros may have any small scale: quantisers choose some.
template <DType format>
Range range_of_block(int scale, const uint8_t* codes) {
    constexpr int kNan = 255, kUsual = 64;
    if (scale == kNan) return kBeyond;
    const Range range{kLastBit<format> + scale - kExponentBias, kTop<format> + scale - kExponentBias};
    if (scale < kUsual && are_zeros<format>(codes)) return {kOfNone, range.high};
    return range.low < kLeastNormal || range.high > kMostExponent ? kBeyond : range;
}

// What adds an exponent to words.
inline __m512i fold_of(int exponent) { return _mm512_set1_epi16(int16_t(exponent * 128)); }

template <DType format>
class Words {
  public:
    Words() {
        alignas(64) uint16_t numbers[32] = {};
        for (int i = 0; i < 32; ++i) {
            if constexpr (format == DType::e2m1) numbers[i] = uint16_t(e2m1_bits(i & 15) >> 16);
            else if constexpr (is_fp8(format)) numbers[i] = uint16_t(float_bits(fp8_decode<format>(i % 8)) >> 16);
        }
        table_ = _mm512_load_si512(numbers);
    }

    // Times a power of two, by which all stay normal. `nan` gets those that are NaN, in whose place there is something.
    [[gnu::always_inline]] __m512i operator()(const uint8_t* codes, __m512i fold, __mmask32& nan) const {
        if constexpr (format == DType::bf16) {
            return _mm512_loadu_si512(codes);
        } else if constexpr (format == DType::e2m1) {
            constexpr __mmask32 kNot0 = 0xFEFEFEFE;
            return _mm512_permutexvar_epi16(indices(codes), _mm512_mask_add_epi16(table_, kNot0, table_, fold));
        } else {
            const __m512i words = numbers(codes, nan);
            return _mm512_mask_add_epi16(words, _mm512_test_epi16_mask(words, _mm512_set1_epi16(0x7FFF)), words, fold);
        }
    }
    // As they are, NaN too.
    [[gnu::always_inline]] __m512i operator()(const uint8_t* codes) const {
        if constexpr (format == DType::bf16) {
            return _mm512_loadu_si512(codes);
        } else if constexpr (format == DType::e2m1) {
            return _mm512_permutexvar_epi16(indices(codes), table_);
        } else {
            __mmask32 nan = 0;
            const __m512i words = numbers(codes, nan);
            return _mm512_mask_mov_epi16(words, nan, _mm512_set1_epi16(0x7FC0));
        }
    }

  private:
    // Words whose lowest five bits are indices: the look-up reads no others.
    static __m512i indices(const uint8_t* codes) {
        const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
        return _mm512_or_si512(x, _mm512_slli_epi32(x, 12));
    }
    // FP8: bits moved to their places, but for subnormal numbers.
    __m512i numbers(const uint8_t* codes, __mmask32& nan) const {
        using T = Fp8Format<format>;
        const __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
        const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7F));
        const __mmask32 subnormal = _mm512_testn_epi16_mask(x, _mm512_set1_epi16(0x78));
        const __m512i normal =
            _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16((kExponentBias - T::bias) << 7));
        const __m512i words = _mm512_mask_permutexvar_epi16(normal, subnormal, magnitude, table_);
        nan |= T::has_negative_zero ? _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7F))
                                    : _mm512_cmpeq_epi16_mask(x, _mm512_set1_epi16(0x80));
        constexpr int kOrAnd = 0xF8;  // a | (b & c)
        return _mm512_ternarylogic_epi32(words, _mm512_slli_epi16(x, 8), _mm512_set1_epi16(int16_t(0x8000)), kOrAnd);
    }

    __m512i table_;  // e2m1: of all codes, twice. FP8: of subnormal numbers
};

}  // namespace
}  // namespace rocm_fp8::mx_gemm
