// MXFP4 weights beside rows in 16 bits or FP8 with a scale a row: weights go from memory to registers, and from there to
// mma.sync, without shared memory.
//
//     HBM --> a lane: a word, eight codes of a block of 32 k, of a column --> 16-bit numbers, exactly
//     L2  --> a lane: the same eight k of a row of A                      --> the same type
//         --> m16n8k16 over a block, two of them --> sums += scale * products, in float32
//     eight warps share out K --> their sums through shared memory, added in the warps' order --> scale, bias, rounding
//
// A CTA makes kRows rows of a group by 64 columns. Codes decode as pairs (i, i + 4) of a word's eight, so A's pairs are put
// in that order. A code's bits, put where float16 has exponent and mantissa, are its number by 2^-14, which products make
// good. bfloat16 has no room for products by 2^-126: there codes are multiplied, exactly. FP8 becomes bfloat16.
// Bound: bytes of weights with few rows, instructions otherwise: some 20 for eight codes.
//
// All numbers of rows add a row's products in the same order, aligned operands or not.
// Steps and figures: docs/journal/mx_gemm.md.
#pragma once

#include "../../common/cuda/mma.h"
#include "../gpu.h"

namespace rocm_fp8::mx_gemm {
namespace {

constexpr int kStreamColumns = 64, kWideTiles = kStreamColumns / kMmaWide, kWarps = kThreads / kWarp;
constexpr int kStoredRows = 16;  // at once, through shared memory

struct StreamMemory {
    alignas(16) float sums[kWarps][kStoredRows][kStreamColumns];
    int32_t before[kMostGroups + 1], partial[kThreads];
};

// Of eight codes the pair (i, i + 4) where bfloat16 has exponent and mantissa: their numbers by 2^-126. One multiplication
// is two shifts: it puts magnitudes and signs where they belong, and copies beside them.
__device__ inline uint32_t bf16_bits(uint32_t codes, int i) {
    const uint32_t moved = i < 2 ? codes : codes >> 8;
    const int at = i % 2 * 4;
    return (moved & 0x000F000Fu << at) * ((1u << 6 | 1u << 12) >> at) & 0x81C081C0u;
}
// Of pairs of bfloat16.
__device__ inline uint32_t times(uint32_t pair, uint32_t factor) {
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(factor), "r"(0x80008000u));  // -0
    return pair;
}

// Eight codes as four pairs (i, i + 4) of float16 by 2^-14, or of bfloat16.
template <DType type>
__device__ inline void decode(uint32_t codes, uint32_t (&pairs)[4]) {
    constexpr uint32_t kLift = 0x7E807E80u;  // 2^126
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (type == DType::f16) {
            const uint32_t moved = i < 2 ? codes : codes >> 8;
            const int at = i % 2 * 4;
            pairs[i] = (moved << (9 - at) & 0x0E000E00u) | (moved << (12 - at) & 0x80008000u);
        } else {
            pairs[i] = times(bf16_bits(codes, i), kLift);
        }
    }
}

// Eight numbers of a row as they lie in memory; then as pairs (i, i + 4).
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
// In 16 bits: bfloat16 holds all FP8 and e2m1.
template <DType format>
__device__ inline void put_in_16_bits(RowPart& part) {
    if constexpr (is_fp8(format)) {
        const Four low = widen(part.words[0]), high = widen(part.words[1]);
        const uint32_t halves[4] = {low.low, low.high, high.low, high.high};
#pragma unroll
        for (int i = 0; i < 4; ++i) part.words[i] = Pairs<DType::bf16>::round(Pairs<DType::f16>::widen(halves[i]));
    } else if constexpr (format == DType::e2m1) {
        uint32_t pairs[4];
        decode<DType::bf16>(part.words[0], pairs);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            part.words[i] = __byte_perm(pairs[i % 2 * 2], pairs[i % 2 * 2 + 1], i / 2 ? 0x7632 : 0x5410);
    }
}
__device__ inline void put_in_pairs(const RowPart& part, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
        pairs[i] = __byte_perm(part.words[i / 2], part.words[2 + i / 2], i % 2 ? 0x7632 : 0x5410);
}

template <DType type, bool bytes, int kRows, bool aligned>
class Stream {
    // Blocks ahead: as many as lanes have the columns of. Lane t converts the exponents of the t-th of them for all.
    static constexpr int kAhead = 4;
    static constexpr int kNarrowTiles = kRows / kMmaNarrow, kElement = bytes ? 1 : 2;
    static constexpr DType kFormat = bytes ? DType::e4m3fn : type;  // of rows
    static constexpr float kMissing =
        type == DType::f16 ? 0x1p14f : 1.0f;  // not in the scale, which may be the largest

    const Args& args;
    StreamMemory& memory;
    const RowTile tile;
    const int64_t column;
    const int g = int(threadIdx.x) % kWarp / 4, t = int(threadIdx.x) % 4, warp = int(threadIdx.x) / kWarp;
    const int first, end;          // the warp's blocks
    const uint8_t *b, *exponents;  // of the lane's first column
    const uint8_t* rows[kNarrowTiles];
    float sums[kWideTiles][kNarrowTiles][4] = {};

  public:
    __device__ Stream(const Args& a, StreamMemory& memory, const RowTile& tile, int64_t column)
        : args(a),
          memory(memory),
          tile(tile),
          column(column),
          first(int(a.k / kMxBlock) * warp / kWarps),
          end(int(a.k / kMxBlock) * (warp + 1) / kWarps),
          b(a.b.data + tile.group * a.b.group_stride + (column + g) * a.b.row_stride + 4 * t +
            int64_t(first) * (kMxBlock / 2)),
          exponents(static_cast<const uint8_t*>(a.scale_b.data) + tile.group * a.scale_b.group_stride +
                    (column + g) * a.scale_b.row_stride) {
#pragma unroll
        for (int n = 0; n < kNarrowTiles; ++n) {
            const int row = tile.first + n * kMmaNarrow + g, last = tile.end - 1;
            rows[n] = a.a.data + source_of(a, row < last ? row : last) * a.a.row_stride +
                      (8 * t + int64_t(first) * kMxBlock) * kElement;
        }
    }

    __device__ void make() {
        uint32_t words[kAhead][kWideTiles][2];
        RowPart parts[kNarrowTiles];
        uint8_t bytes_of[kWideTiles][2];
        const int count = end - first;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (i < count) load(i, words[i]);
        }
        load_exponents(0, bytes_of);
        if (count > 0) load_rows(0, parts);
        for (int block = 0; block < count; block += kAhead) {
            float scales[kWideTiles][2];
#pragma unroll
            for (int w = 0; w < kWideTiles; ++w)
                for (int i = 0; i < 2; ++i) scales[w][i] = e8m0_value(bytes_of[w][i]);
            load_exponents(block + kAhead, bytes_of);
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                if (block + i >= count) break;
                uint32_t narrow[kNarrowTiles][4];
#pragma unroll
                for (int n = 0; n < kNarrowTiles; ++n) {
                    put_in_16_bits<kFormat>(parts[n]);
                    put_in_pairs(parts[n], narrow[n]);
                }
                if (block + i + 1 < count) load_rows(i + 1, parts);
#pragma unroll
                for (int w = 0; w < kWideTiles; ++w) {
                    uint32_t wide[2][4];
                    decode<type>(words[i][w][0], wide[0]);
                    decode<type>(words[i][w][1], wide[1]);
                    const float scale[2] = {__shfl_sync(kWholeWarp, scales[w][0], i, 4),
                                            __shfl_sync(kWholeWarp, scales[w][1], i, 4)};
                    multiply(wide, narrow, scale, sums[w]);
                }
                if (block + i + kAhead < count) load(i + kAhead, words[i]);
            }
            b += kAhead * kMxBlock / 2;
#pragma unroll
            for (int n = 0; n < kNarrowTiles; ++n) rows[n] += kAhead * kMxBlock * kElement;
        }
        store();
    }

  private:
    // Columns from the lane's first to another of its own.
    static __device__ constexpr uint32_t away(int w, int i) { return uint32_t(w * kMmaWide + 8 * i); }

    // The lane's words of a block, which is counted from those that the pointers are at.
    __device__ void load(int block, uint32_t (&to)[kWideTiles][2]) const {
#pragma unroll
        for (int w = 0; w < kWideTiles; ++w) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint8_t* const from = b + away(w, i) * uint32_t(args.b.row_stride) + block * (kMxBlock / 2);
                if constexpr (aligned) {
                    to[w][i] = *reinterpret_cast<const uint32_t*>(from);
                } else {
                    to[w][i] = 0;
                    for (int byte = 0; byte < 4; ++byte) to[w][i] |= uint32_t(from[byte]) << byte * 8;
                }
            }
        }
    }
    // Of the t-th block from there on; beyond the last the last one's, which nobody uses.
    __device__ void load_exponents(int block, uint8_t (&to)[kWideTiles][2]) const {
        const int mine = first + block + t < end ? first + block + t : end > first ? end - 1 : 0;
        const uint8_t* const from = exponents + mine * args.scale_b.block_stride;
#pragma unroll
        for (int w = 0; w < kWideTiles; ++w)
            for (int i = 0; i < 2; ++i) to[w][i] = from[away(w, i) * uint32_t(args.scale_b.row_stride)];
    }
    __device__ void load_rows(int block, RowPart (&to)[kNarrowTiles]) const {
#pragma unroll
        for (int n = 0; n < kNarrowTiles; ++n)
            to[n] = load_row<kFormat, aligned>(rows[n] + block * kMxBlock * kElement);
    }

    static __device__ void multiply(const uint32_t (&wide)[2][4], const uint32_t (&narrow)[kNarrowTiles][4],
                                    const float (&scale)[2], float (&sums)[kNarrowTiles][4]) {
#pragma unroll
        for (int n = 0; n < kNarrowTiles; ++n) {
            Sums products = {};
#pragma unroll
            for (int half = 0; half < 4; half += 2) {
                const Four first{wide[0][half], wide[0][half + 1]}, second{wide[1][half], wide[1][half + 1]},
                    row{narrow[n][half], narrow[n][half + 1]};
                if constexpr (type == DType::bf16) multiply_bf16(products, first, second, row);
                else rocm_fp8::multiply(products, first, second, row);
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[n][e] = __fmaf_rn(scale[e / 2], products[e] * kMissing, sums[n][e]);
        }
    }

    __device__ void store() {
        gemm::Bias bias = args.bias;
        if (bias.data)
            bias.data = offset(bias.data, tile.group * args.bias_group_stride * (bias.dtype == DType::f32 ? 4 : 2));
        const int live = tile.end - tile.first;
#pragma unroll
        for (int part = 0; part < (kRows + kStoredRows - 1) / kStoredRows; ++part) {
            if (part * kStoredRows >= live) break;
            // Barrier: sums of the part, or of the tile, before have been read.
            __syncthreads();
#pragma unroll
            for (int n = 0; n < kNarrowTiles; ++n) {
                if (n * kMmaNarrow / kStoredRows != part) continue;
#pragma unroll
                for (int w = 0; w < kWideTiles; ++w) {
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        memory.sums[warp][n * kMmaNarrow % kStoredRows + 2 * t + e % 2][w * kMmaWide + g + e / 2 * 8] =
                            sums[w][n][e];
                }
            }
            // Barrier: other threads read them.
            __syncthreads();
            for (int i = int(threadIdx.x); i < kStoredRows * kStreamColumns; i += kThreads) {
                const int in_part = i / kStreamColumns, row = part * kStoredRows + in_part;
                const int64_t n = column + i % kStreamColumns, m = tile.first + row;
                if (row >= live || row >= kRows) continue;
                float v = 0;
                for (int w = 0; w < kWarps; ++w) v += memory.sums[w][in_part][i % kStreamColumns];
                if (bytes) v *= gemm::scale_at(args.scale_a, source_of(args, int(m)));
                if (bias.data) v += gemm::bias_at(bias, n);  // without one, -0 stays -0
                gemm::put(args.out, m * args.out.row_stride + n, v);
            }
        }
    }
};

template <DType type, bool bytes, int kRows, bool aligned>
__global__ __launch_bounds__(kThreads, kRows > 16 ? 1 : 2) void mx_gemm_stream(Args a) {
    __shared__ StreamMemory memory;
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may write what this one reads
    number_tiles<kRows>(memory, a);
    const int64_t pieces = (a.n + kStreamColumns - 1) / kStreamColumns, tiles = memory.before[a.groups] * pieces;
    for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        int64_t piece;
        const RowTile tile = find_tile<kRows>(memory, a, pieces, number, &piece);
        // The last ones begin earlier, and store some columns anew: the same bits.
        const int64_t column = piece * kStreamColumns, last = a.n - kStreamColumns;
        Stream<type, bytes, kRows, aligned>(a, memory, tile, column < last ? column : last).make();
    }
}

// Whether it is for these operands.
inline bool streams(const Args& a) {
    constexpr int64_t kMostStride = int64_t(1) << 26;  // 64 columns are reached by 32 bits
    return a.n >= kStreamColumns && a.format_b == DType::e2m1 && !of_blocks(a.scale_a) && a.format_a != DType::e2m1 &&
           a.b.row_stride < kMostStride && a.scale_b.row_stride < kMostStride;
}

template <DType type, bool bytes, class Vendor>
Status launch_stream_as(const Args& a, const Vendor& vendor) {
    constexpr int kPerUnit = 2;
    const bool aligned = rows_aligned(a.b.data, a.b.row_stride, 4) && a.b.group_stride % 4 == 0 &&
                         rows_aligned(a.a.data, a.a.row_stride, bytes ? 8 : 16);
    const int rows = a.expected <= 8 ? 8 : a.expected <= 16 ? 16 : 32;
    const int64_t tiles = most_row_tiles(a, rows) * ceil_div(a.n, kStreamColumns);
    const int64_t most = int64_t(vendor.units) * kPerUnit, ctas = tiles < most ? tiles : most;
    const auto start = [&](auto kernel) { return vendor.launch(kernel, ctas, kThreads, 1, a); };
    if (!aligned) return start(mx_gemm_stream<type, bytes, 32, false>);
    if (rows == 8) return start(mx_gemm_stream<type, bytes, 8, true>);
    return start(rows == 16 ? mx_gemm_stream<type, bytes, 16, true> : mx_gemm_stream<type, bytes, 32, true>);
}

template <class Vendor>
Status launch_stream(const Args& a, const Vendor& vendor) {
    if (a.format_a == DType::bf16) return launch_stream_as<DType::bf16, false>(a, vendor);
    if (a.format_a == DType::f16) return launch_stream_as<DType::f16, false>(a, vendor);
    return launch_stream_as<DType::bf16, true>(a, vendor);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
