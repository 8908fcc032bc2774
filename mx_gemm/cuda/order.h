// Numbers of 16 bits from what lies in memory: codes of weights in a lane's registers, eight k of a row of A. And whole
// rows as the tiles (tiles.h) take them: sorted, in bfloat16, each 128 k in the order in which lanes hold codes. Scales of
// blocks are multiplied in, by 2^-8: so the largest fits, and magnitudes below 2^-125 are rounded to a multiple of it.
// A row of float16 is the sum of two in bfloat16, its neighbours: the tiles' rows and offsets are twice as many.
#pragma once

#include "../../common/cuda/mma.h"
#include "../../common/cuda/pdl.h"
#include "../gpu.h"

namespace rocm_fp8::mx_gemm {
namespace {

constexpr float kLiftOfFp8 = 256;  // FP8 by any exponent, by one over it, is no more than bfloat16 holds

// Of eight MXFP4 codes the pair (i, i + 4) where bfloat16 has exponent and mantissa: their numbers by 2^-126. One
// multiplication is two shifts: it puts magnitudes and signs where they belong, and copies beside them.
__device__ inline uint32_t bf16_bits(uint32_t codes, int i) {
    const uint32_t moved = i < 2 ? codes : codes >> 8;
    const int at = i % 2 * 4;
    return (moved & 0x000F000Fu << at) * ((1u << 6 | 1u << 12) >> at) & 0x81C081C0u;
}
// Of pairs of bfloat16.
__device__ inline uint32_t times(uint32_t pair, uint32_t factor) { return Pairs<DType::bf16>::mul(pair, factor); }

// A lane's words of codes of a column's block, as pairs of bfloat16: (i, i + 4) of a word's eight MXFP4, (0, 2) and (1, 3) of
// a word's four MXFP8. A code's bits are put where bfloat16 has exponent and mantissa: its number by 2^-126 or 2^-120.
// Two factors, as pairs, make that the number by the scale by 1 / kLifted. Mostly the first is enough.
template <bool fp8>
struct Weights {
    static constexpr int kWords = fp8 ? 8 : 4;
    static constexpr float kLifted = fp8 ? kLiftOfFp8 : 8.0f;
    static constexpr uint32_t kFirst = fp8 ? 112 : 123, kFirstAlone = 254 - kFirst;  // of exponents
    static constexpr uint32_t kOne = 127, kNan = 255, kPair = 0x00800080;

    static __device__ uint32_t first_factor(uint32_t exponent) { return min(exponent + kFirst, kNan - 1) * kPair; }
    static __device__ uint32_t second_factor(uint32_t exponent) {
        return exponent == kNan ? 0x7FC07FC0u : max(exponent, kFirstAlone) * kPair - (kFirstAlone - kOne) * kPair;
    }
    static __device__ uint32_t bits(const uint32_t (&words)[kWords], int pair) {
        if constexpr (fp8) {
            const uint32_t word = words[pair / 2];
            return pair % 2 == 0 ? (word << 4 & 0x07F007F0u) | (word << 8 & 0x80008000u)
                                 : (word >> 4 & 0x07F007F0u) | (word & 0x80008000u);
        } else {
            return bf16_bits(words[pair / 4], pair % 4);
        }
    }
    // Bit 7 of a byte where a code is NaN, whose seven bits are ones, or one below it is. Else adding 1 carries nothing.
    static __device__ uint32_t nans(const uint32_t (&words)[kWords]) {
        uint32_t changed = 0;
        if constexpr (fp8) {
            for (const uint32_t word : words) changed |= (word + 0x01010101u) ^ word;
        }
        return changed & 0x80808080u;
    }
    // All ones where a number of the pair is NaN.
    static __device__ uint32_t nans_of(const uint32_t (&words)[kWords], int pair) {
        if constexpr (fp8) {
            const uint32_t codes = words[pair / 2] >> pair % 2 * 8 & 0x007F007Fu;
            return ((codes + 0x00010001u) & 0x00800080u) / 0x80u * 0xFFFFu;
        } else {
            return 0;
        }
    }
};

// Eight numbers of a row as they lie in memory; then in 16 bits; then as pairs.
struct RowPart {
    uint32_t words[4];
};
template <DType format>
constexpr int kPartBytes = format == DType::e2m1 ? 4
                           : is_fp8(format)      ? 8
                                                 : 16;

template <DType format, bool aligned>
__device__ inline RowPart load_row(const uint8_t* from) {
    constexpr int kBytes = kPartBytes<format>;
    RowPart part{};
    if constexpr (aligned && kBytes == 4) {
        part.words[0] = *reinterpret_cast<const uint32_t*>(from);
    } else if constexpr (aligned && kBytes == 8) {
        const auto two = *reinterpret_cast<const uint2*>(from);
        part.words[0] = two.x, part.words[1] = two.y;
    } else if constexpr (aligned) {
        const auto four = *reinterpret_cast<const uint4*>(from);
        part.words[0] = four.x, part.words[1] = four.y, part.words[2] = four.z, part.words[3] = four.w;
    } else {
        for (int i = 0; i < kBytes; ++i) part.words[i / 4] |= uint32_t(from[i]) << i % 4 * 8;
    }
    return part;
}
// In 16 bits: bfloat16 holds all FP8 and e2m1. float16 stays.
template <DType format>
__device__ inline void put_in_16_bits(RowPart& part) {
    if constexpr (is_fp8(format)) {
        const Four low = widen(part.words[0]), high = widen(part.words[1]);
        const uint32_t halves[4] = {low.low, low.high, high.low, high.high};
#pragma unroll
        for (int i = 0; i < 4; ++i) part.words[i] = Pairs<DType::bf16>::round(Pairs<DType::f16>::widen(halves[i]));
    } else if constexpr (format == DType::e2m1) {
        constexpr uint32_t kLift = 0x7E807E80u;  // 2^126
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = times(bf16_bits(part.words[0], i), kLift);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            part.words[i] = __byte_perm(pairs[i % 2 * 2], pairs[i % 2 * 2 + 1], i / 2 ? 0x7632 : 0x5410);
    }
}
// float16 as a bfloat16 and what is left of it. Of infinity nothing is: some number will do.
__device__ inline void put_apart(RowPart& part, RowPart& rest) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const f32x2 v = Pairs<DType::f16>::widen(part.words[i]);
        part.words[i] = __byte_perm(__float_as_uint(v.x), __float_as_uint(v.y), 0x7632);
        const f32x2 high = Pairs<DType::bf16>::widen(part.words[i]);
        rest.words[i] = Pairs<DType::bf16>::round({fmaxf(v.x - high.x, -512.0f), fmaxf(v.y - high.y, -512.0f)});
    }
}
// The order in which Weights<fp8> has pairs.
template <bool fp8>
__device__ inline void put_in_pairs(const RowPart& part, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int first = fp8 ? i / 2 * 2 : i / 2, second = fp8 ? first + 1 : first + 2;
        pairs[i] = __byte_perm(part.words[first], part.words[second], i % 2 ? 0x7632 : 0x5410);
    }
}

// --- the tiles' rows ---

constexpr int kOrdered = 128, kOrderThreads = 256;  // k that are permuted at once

// A row's rows in bfloat16.
ROCM_FP8_HD constexpr int rows_of(DType format_a) { return format_a == DType::f16 ? 2 : 1; }

// Lane t of four gets word t of each of them, whose lanes are 4 t apart.
__device__ inline void transpose(uint32_t (&words)[4], int t) {
    const auto exchange = [&](uint32_t& low, uint32_t& high, int bit) {
        const bool has_high = t & bit;
        const uint32_t taken = __shfl_xor_sync(kWholeWarp, has_high ? low : high, 4 * bit);
        low = has_high ? taken : low, high = has_high ? high : taken;
    };
    exchange(words[0], words[1], 1), exchange(words[2], words[3], 1);
    exchange(words[0], words[2], 2), exchange(words[1], words[3], 2);
}

// Where 128 k of a row lie. Lane t of four has block t of a column. Eight codes w of it are pairs: of MXFP4 (i, i + 4) of a
// word, i = 0 to 3. Of FP8, which has two words, (0, 2), (1, 3), (4, 6), (5, 7).
// Each pair is numbers 2 t and 2 t + 1 of eight k of an instruction's 16: two pairs fill one instruction.
// Here a lane has the same eight of the same block of a row. It gives each of the four lanes of that eight a pair.
// offsets: where those of the ordered rows go, or nullptr where they are a's.
template <DType format, bool aligned>
__global__ __launch_bounds__(kOrderThreads) void mx_gemm_order(Args a, uint8_t* to, int64_t stride, int32_t* offsets) {
    constexpr int kLanesOf = kOrdered / 8, kRowsOfCta = kOrderThreads / kLanesOf, kAtOnce = 4;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int lane = int(threadIdx.x) % kLanesOf, t = lane / 4, w = lane % 4, own = int(threadIdx.x) / kLanesOf;
    const uint32_t across = uint32_t((a.k + kOrdered - 1) / kOrdered), group = blockIdx.x % across;
    const int live = first_row(a, int(a.groups)), step = int(gridDim.x / across) * kRowsOfCta;
    const int64_t k = int64_t(group) * kOrdered + lane * 8;
    const bool inside = k < a.k;
    const bool of_fp8 = is_fp8(a.format_b), scaled = of_blocks(a.scale_a);
    const uint8_t* const from = a.a.data + (inside ? k / 8 * kPartBytes<format> : 0);
    const uint8_t* const exponents =
        static_cast<const uint8_t*>(a.scale_a.data) + (inside ? k / kMxBlock * a.scale_a.block_stride : 0);
    to += int64_t(group) * kOrdered * 2 + w * 64 + t * 16;
    constexpr int kRows = rows_of(format);
    if (offsets && blockIdx.x == 0) {
        for (int i = int(threadIdx.x); i <= int(a.groups); i += kOrderThreads) offsets[i] = kRows * first_row(a, i);
    }
    // All lanes of a warp go on together. Several rows are on their way at once: there is no branch around a load.
    for (int64_t first = int64_t(blockIdx.x / across) * kRowsOfCta; first < live; first += int64_t(step) * kAtOnce) {
        int64_t rows[kAtOnce];
        int sources[kAtOnce];
        RowPart parts[kAtOnce];
        uint32_t bytes[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            rows[i] = first + int64_t(i) * step + own;
            sources[i] = source_of(a, rows[i] < live ? rows[i] : live - 1);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) parts[i] = load_row<format, aligned>(from + sources[i] * a.a.row_stride);
        if (format != DType::bf16 && scaled) {
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) bytes[i] = exponents[sources[i] * a.scale_a.row_stride];
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            RowPart& part = parts[i];
            put_in_16_bits<format>(part);
            if (format != DType::bf16 && scaled) {
                const float by = e8m0_value(bytes[i]) / kLiftOfFp8;
                for (uint32_t& word : part.words) word = Pairs<DType::bf16>::scaled(word, by);
            }
            if (!inside) part = {};
            RowPart rest;
            if constexpr (kRows > 1) put_apart(part, rest);
#pragma unroll
            for (int of_row = 0; of_row < kRows; ++of_row) {
                uint32_t pairs[4];
                const RowPart& put = of_row ? rest : part;
                if (of_fp8) put_in_pairs<true>(put, pairs);
                else put_in_pairs<false>(put, pairs);
                transpose(pairs, t);
                if (rows[i] < live)
                    *reinterpret_cast<uint4*>(to + (rows[i] * kRows + of_row) * stride) = {pairs[0], pairs[1], pairs[2],
                                                                                           pairs[3]};
            }
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
