// Rows as the tiles (tiles.h) take them: sorted, in bfloat16, each 128 k in the order in which lanes hold codes. Scales of
// blocks are multiplied in, by 2^-8: so the largest fits, and magnitudes below 2^-125 are rounded to a multiple of it.
#pragma once

#include "../../common/cuda/pdl.h"
#include "decode.h"

namespace rocm_fp8::mx_gemm {
namespace {

constexpr int kOrdered = 128, kOrderThreads = 256;  // k that are permuted at once

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

// Where 128 k of a row lie. Lane t of four has block t of a column. Eight codes w of it are the pairs (i, i + 4) of a word,
// i = 0 to 3, or (0, 2), (1, 3), (4, 6), (5, 7) of two words of FP8.
// Each pair is numbers 2 t and 2 t + 1 of eight k of an instruction's 16: two pairs fill one instruction.
// Here a lane has the same eight of the same block of a row. It gives each of the four lanes of that eight a pair.
template <DType format, bool aligned>
__global__ __launch_bounds__(kOrderThreads) void mx_gemm_order(Args a, uint8_t* to, int64_t stride) {
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
            uint32_t pairs[4];
            RowPart& part = parts[i];
            put_in_16_bits<format>(part);
            if (format != DType::bf16 && scaled) {
                const float by = e8m0_value(bytes[i]) / kLiftOfFp8;
                for (uint32_t& word : part.words) word = Pairs<DType::bf16>::scaled(word, by);
            }
            if (!inside) part = {};
            if (of_fp8) put_in_pairs<true>(part, pairs);
            else put_in_pairs<false>(part, pairs);
            transpose(pairs, t);
            if (rows[i] < live)
                *reinterpret_cast<uint4*>(to + rows[i] * stride) = {pairs[0], pairs[1], pairs[2], pairs[3]};
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
