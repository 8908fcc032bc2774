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
    __shared__ scaled::FallbackMemory memory;
    __shared__ RowTiles row_tiles;
    __shared__ int sources[kFallbackTile];
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may read what the previous kernel writes
    make_row_tiles<kFallbackTile>(row_tiles, a);
    const int tiles = tiles_of(row_tiles, int(a.groups), pieces);
    const int64_t bytes = a.k * bytes_of(kind);
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        const Tile tile = tile_at<kFallbackTile>(row_tiles, int(a.groups), pieces, number);
        const int live = min(tile.end - tile.row, kFallbackTile);
        // Barrier: the tile before has been stored, and its sources read.
        __syncthreads();
        if (threadIdx.x < kFallbackTile)
            sources[threadIdx.x] = source_of(a, min(int64_t(tile.row) + threadIdx.x, int64_t(tile.end) - 1));
        // Barrier: other threads read the sources.
        __syncthreads();
        scaled::fallback_tile<vectors, kind == kScaled>(
            memory, gemm_of(a, tile.expert, tile.end), tile.row, int64_t(tile.piece) * kFallbackTile, bytes,
            [&](auto& to, int64_t k0) { bring_rows<vectors>(to, a, sources, live, k0, bytes); },
            [&](int i) { return int64_t(sources[i]); },
            [](auto& sums, const auto& wide, const auto& narrow) { multiply_block<kind>(sums, wide, narrow); });
    }
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
