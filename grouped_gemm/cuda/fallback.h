// The simple kernel: for chips without wgmma, and for weights that TMA does not take. Any strides, alignment and sizes.
//
// As block_scaled_gemm's: a CTA of eight warps computes 64 columns by 64 rows of an expert. Of each 128 bytes of k it
// brings both operands to shared memory; a warp multiplies 16 columns by 32 rows with the instructions of
// common/cuda/mma.h. CTAs iterate over the tiles.
#pragma once

#include "../../block_scaled_gemm/cuda/fallback.h"
#include "expert.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

using gemm::kBlock;
using scaled::kFallbackRow, scaled::kFallbackThreads, scaled::kFallbackTile;

// 128 bytes from k0 on of the rows of A that are a tile's, with zeros beyond the end.
template <bool vectors>
__device__ inline void bring_rows(uint8_t (&to)[kFallbackTile][kFallbackRow], const Args& a, const int* sources,
                                  int live, int64_t k0, int64_t k_end) {
    constexpr int kBytes = vectors ? 16 : 1, kParts = kBlock / kBytes;
    for (int v = threadIdx.x; v < kFallbackTile * kParts; v += kFallbackThreads) {
        const int r = v / kParts, c = v % kParts * kBytes;
        const bool inside = r < live && k0 + c < k_end;
        const uint8_t* const from = a.a.data + (inside ? sources[r] * a.a.row_stride + k0 + c : 0);
        if constexpr (vectors) *reinterpret_cast<uint4*>(&to[r][c]) = inside ? load(from) : uint4{0, 0, 0, 0};
        else to[r][c] = inside ? *from : 0;
    }
}

template <Kind kind>
__device__ inline void multiply_block(Sums (&sums)[1][4], const uint4 (&wide)[1][2], const uint4 (&narrow)[4]) {
    if constexpr (kind == kScaled) {
        multiply_chunks(sums, wide, narrow);
    } else {
#pragma unroll
        for (int w = 0; w < 4; w += 2) {
            const auto two = [&](const uint4& v) { return Four{word(v, w), word(v, w + 1)}; };
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                if constexpr (kind == kBf16)
                    multiply_bf16(sums[0][n], two(wide[0][0]), two(wide[0][1]), two(narrow[n]));
                else multiply(sums[0][n], two(wide[0][0]), two(wide[0][1]), two(narrow[n]));
            }
        }
    }
}

template <Kind kind, bool vectors>
__global__ __launch_bounds__(kFallbackThreads) void grouped_gemm_fallback(Args a, int pieces) {
    using Rows = uint8_t[kFallbackTile][kFallbackRow];
    alignas(16) __shared__ uint8_t memory[2 * sizeof(Rows)];
    __shared__ RowTiles row_tiles;
    __shared__ int sources[kFallbackTile];
    static_assert(sizeof(memory) >= kFallbackTile * (kFallbackTile + 4) * sizeof(float));
    Rows &columns = *reinterpret_cast<Rows*>(memory), &rows = *reinterpret_cast<Rows*>(memory + sizeof(Rows));
    float (*const staged)[kFallbackTile + 4] = reinterpret_cast<float (*)[kFallbackTile + 4]>(memory);
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const int column = warp % 4 * kMmaWide, row = warp / 4 * 32;
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may read what the previous kernel writes
    make_row_tiles<kFallbackTile>(row_tiles, a);
    const int tiles = tiles_of(row_tiles, int(a.groups), pieces);
    const int64_t bytes = a.k * bytes_of(kind);
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        const Tile tile = tile_at<kFallbackTile>(row_tiles, int(a.groups), pieces, number);
        const block_scaled_gemm::Args one = gemm_of(a, tile.expert, tile.end);
        const int64_t n0 = int64_t(tile.piece) * kFallbackTile;
        const int live = min(tile.end - tile.row, kFallbackTile);
        // Barrier: the tile before has been stored, and its sources read.
        __syncthreads();
        if (threadIdx.x < kFallbackTile)
            sources[threadIdx.x] = source_of(a, min(int64_t(tile.row) + threadIdx.x, int64_t(tile.end) - 1));
        // Barrier: other threads read the sources.
        __syncthreads();
        // Of the lane's columns g and g + 8, and of its rows 2 t and 2 t + 1 of each 8.
        scaled::BlockScales of_columns(one.scale_b, 0), of_rows(one.scale_a, 0);
        int64_t column_place[2], row_place[4][2];
        for (int i = 0; i < 2; ++i) {
            const int64_t n = n0 + column + g + 8 * i;
            column_place[i] = of_columns.place(n < a.n ? n : a.n - 1);
        }
        for (int i = 0; i < 4; ++i) {
            for (int j = 0; j < 2; ++j) row_place[i][j] = of_rows.place(sources[row + 8 * i + 2 * t + j]);
        }
        float sums[1][4][4] = {};
        for (int64_t k0 = 0; k0 < bytes; k0 += kBlock) {
            scaled::bring<vectors>(columns, {0, one.b.data, one.b.row_stride, 1}, n0, a.n, k0, bytes);
            bring_rows<vectors>(rows, a, sources, live, k0, bytes);
            // Barrier: other threads read the block.
            __syncthreads();
            Sums block[1][4] = {};
            auto& target = kind == kScaled ? block : sums;
#pragma unroll
            for (int half = 0; half < kBlock; half += 64) {
                uint4 wide[1][2], narrow[4];
                for (int i = 0; i < 2; ++i)
                    wide[0][i] = *reinterpret_cast<const uint4*>(&columns[column + g + 8 * i][half + 16 * t]);
                for (int i = 0; i < 4; ++i)
                    narrow[i] = *reinterpret_cast<const uint4*>(&rows[row + 8 * i + g][half + 16 * t]);
                multiply_block<kind>(target, wide, narrow);
            }
            if constexpr (kind == kScaled) {
                float s[2];
                for (int i = 0; i < 2; ++i) s[i] = scaled::at_the_end(one.scale_b) ? 1 : of_columns.at(column_place[i]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float r[2] = {of_rows.at(row_place[i][0]), of_rows.at(row_place[i][1])};
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        sums[0][i][e] = __fmaf_rn(r[e % 2] * s[e / 2], block[0][i][e], sums[0][i][e]);
                }
                of_columns.advance();
                of_rows.advance();
            }
            // Barrier: the block has been read.
            __syncthreads();
        }
        // Through shared memory, in place of the operands: a lane stores 16 bytes of a row.
        const scaled::Column own[2] = {scaled::Column(one, n0 + column + g), scaled::Column(one, n0 + column + g + 8)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                staged[row + 8 * i + 2 * t + e % 2][column + g + e / 2 * 8] = own[e / 2].finished(sums[0][i][e]);
        }
        // Barrier: other threads read the sums.
        __syncthreads();
        const int size = a.out.dtype == DType::f32 ? 4 : 2, each = 16 / size, lanes = kFallbackTile / each;
        const int first = threadIdx.x % lanes * each;
        if (n0 + first >= a.n) continue;
        for (int r = threadIdx.x / lanes; r < live; r += kFallbackThreads / lanes) {
            scaled::store_staged(a.out, scaled::rows_of_vectors(a.out, size), size, int64_t(tile.row) + r, n0 + first,
                                 a.n, &staged[r][first]);
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
