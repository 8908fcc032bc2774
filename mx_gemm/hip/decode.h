// Eight codes of B, and eight numbers of A, as 16-bit operands of matrix instructions, times the scale of B's block.
//
// gfx950 converts two codes of e2m1 an instruction, with their scale. On gfx942 v_perm_b32 looks up four codes at once, in
// a table of eight bytes a lane: the numbers of its block's scale. Even codes stand apart from odd ones there, so the
// numbers come in the order 0 2, 4 6, 1 3, 5 7; A's are dealt alike. e4m3 goes through float32.
//
// A scale is folded where no number leaves the 16-bit type's normal ones (folds): then all of it is exact.
#pragma once

#include "../../common/hip/dequantize.h"
#include "../../common/hip/half_matrix.h"
#include "../../common/mx.h"

namespace rocm_fp8::mx_gemm {
namespace {

#if defined(__gfx950__)
constexpr bool kDealt = false;
#else
constexpr bool kDealt = true;
#endif
// Whether codes are multiplied as they are.
#if defined(__gfx942__)
constexpr bool kScaledProducts = false;
#else
constexpr bool kScaledProducts = true;
#endif
constexpr uint32_t kLowerHalves = 0x05040100, kUpperHalves = 0x07060302;

// Exponent bytes of the smallest and the largest block that holds normal numbers of `type` alone. e2m1: 2^-1 to 6; e4m3 of
// either kind: 2^-10 to 448.
template <DType type, bool fp8>
__device__ inline bool folds(uint32_t scale) {
    static_assert(type == DType::bf16 || !fp8, "e4m3 and a scale leave float16");
    constexpr uint32_t kLow = type == DType::f16 ? 114
                              : fp8              ? 11
                                                 : 2,
                       kHigh = type == DType::f16 ? 140
                               : fp8              ? 246
                                                  : 252;
    return scale - kLow <= kHigh - kLow;
}

// Of a lane's block of B: what its codes are looked up in. scale: one that folds.
template <DType type, bool fp8>
struct Decoder {
    float scale;
    Decoder() = default;
    __device__ explicit Decoder(uint32_t byte) : scale(bits_float(byte << 23)) {}
    __device__ u32x4 operator()(u32x2 codes) const {
        return eight_of(codes, [&](f32x2 v) { return exact_pair<type>(v * both(scale)); });
    }
};

#if defined(__gfx950__)

template <DType type>
struct Decoder<type, false> {
    float scale;
    Decoder() = default;
    __device__ explicit Decoder(uint32_t byte) : scale(bits_float(byte << 23)) {}
    __device__ u32x4 operator()(uint32_t codes) const {
        const auto pair = [&](auto byte) {
            if constexpr (type == DType::f16)
                return __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_f16_fp4(codes, scale, byte.value));
            else
                return __builtin_bit_cast(uint32_t,
                                          __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(codes, scale, byte.value));
        };
        return {pair(std::integral_constant<int, 0>()), pair(std::integral_constant<int, 1>()),
                pair(std::integral_constant<int, 2>()), pair(std::integral_constant<int, 3>())};
    }
};

#else

// Magnitudes 0, .5, 1, 1.5 | 2, 3, 4, 6; the sign, a code's highest bit, joins their upper bytes.
template <DType type>
struct Decoder<type, false> {
    static constexpr uint32_t kMagnitudes = 0x07070707, kSigns = 0x80808080;
    uint32_t upper[2], lower[2];  // bytes of the numbers. float16 has all of e2m1 in the upper one

    Decoder() = default;
    __device__ explicit Decoder(uint32_t scale) {
        if constexpr (type == DType::bf16) {
            // The exponent in both halves. Sums of a half do not reach the other one.
            constexpr uint32_t kExponents = 0x00800080;
            const uint32_t one = __umul24(scale, kExponents);
            const uint32_t pairs[] = {(one - kExponents) & 0xFFFF0000u, one + 0x00400000, one + 0x00C00080,
                                      one + 0x01400100};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                upper[i] = __builtin_amdgcn_perm(pairs[2 * i + 1], pairs[2 * i], 0x07050301);
                lower[i] = __builtin_amdgcn_perm(pairs[2 * i + 1], pairs[2 * i], 0x06040200);
            }
        } else {
            constexpr uint32_t kBias = 112, kAllBytes0 = 0;  // of e8m0 over float16
            const uint32_t one = __builtin_amdgcn_perm(0, (scale - kBias) << 2, kAllBytes0);
            upper[0] = (one + 0x01FFFC00) & 0xFFFFFF00u, upper[1] = one + 0x0A080604;
        }
    }
    __device__ u32x4 operator()(uint32_t codes) const {
        const u32x2 even = four(codes & kMagnitudes, codes << 4), odd = four(codes >> 4 & kMagnitudes, codes);
        return {even.x, even.y, odd.x, odd.y};
    }

  private:
    __device__ u32x2 four(uint32_t codes, uint32_t signs) const {
        const uint32_t high = __builtin_amdgcn_perm(upper[1], upper[0], codes) | (signs & kSigns);
        if constexpr (type == DType::f16)  // 0x0C: a byte of zeros
            return {__builtin_amdgcn_perm(0, high, 0x010C000C), __builtin_amdgcn_perm(0, high, 0x030C020C)};
        const uint32_t low = __builtin_amdgcn_perm(lower[1], lower[0], codes);
        return {__builtin_amdgcn_perm(high, low, 0x05010400), __builtin_amdgcn_perm(high, low, 0x07030602)};
    }
};

#endif

// In the order of B's numbers.
template <bool dealt>
__device__ inline u32x4 numbers_of_a(u32x4 v) {
    if constexpr (!dealt) return v;
    const auto pair = [](uint32_t second, uint32_t first, uint32_t halves) {
        return __builtin_amdgcn_perm(second, first, halves);
    };
    return {pair(v.y, v.x, kLowerHalves), pair(v.w, v.z, kLowerHalves), pair(v.y, v.x, kUpperHalves),
            pair(v.w, v.z, kUpperHalves)};
}
template <bool dealt>
__device__ inline u32x4 numbers_of_a(u32x2 codes, float scale = 1) {
    const auto pair = [](float first, float second) { return exact_pair<DType::bf16>(f32x2{first, second}); };
    const auto two = [&](f32x2 v) { return v * both(scale); };
    const f32x2 a = two(two_values<false>(codes.x)), b = two(two_values<true>(codes.x)),
                c = two(two_values<false>(codes.y)), d = two(two_values<true>(codes.y));
    if constexpr (dealt) return {pair(a.x, b.x), pair(c.x, d.x), pair(a.y, b.y), pair(c.y, d.y)};
    return {pair(a.x, a.y), pair(b.x, b.y), pair(c.x, c.y), pair(d.x, d.y)};
}

// A lane's codes as an operand of gfx950's matrix instructions: four registers of e2m1, eight of FP8.
using Operand = int __attribute__((ext_vector_type(8)));
__device__ inline Operand operand_of(const u32x4 (&pieces)[1]) {
    const auto v = __builtin_bit_cast(i32x4, pieces[0]);
    return __builtin_shufflevector(v, v, 0, 1, 2, 3, -1, -1, -1, -1);
}
__device__ inline Operand operand_of(const u32x4 (&pieces)[2]) {
    return __builtin_bit_cast(Operand, __builtin_shufflevector(pieces[0], pieces[1], 0, 1, 2, 3, 4, 5, 6, 7));
}

constexpr uint32_t kUnscaled = 127;  // as e8m0
// Exponents: the lowest byte.
template <bool fp8_b, bool fp8_a>
__device__ inline f32x4 multiply_scaled([[maybe_unused]] const Operand& b, [[maybe_unused]] const Operand& a, f32x4 c,
                                        [[maybe_unused]] uint32_t scale_b, [[maybe_unused]] uint32_t scale_a) {
#if defined(__gfx950__)
    constexpr int kFp8 = 0, kE2m1 = 4;
    return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(b, a, c, fp8_b ? kFp8 : kE2m1, fp8_a ? kFp8 : kE2m1, 0,
                                                            int(scale_b), 0, int(scale_a));
#else
    return c;
#endif
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
