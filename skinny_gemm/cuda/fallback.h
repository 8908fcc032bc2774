// The simple GEMM kernel on CUDA: each warp loads its operands straight into registers.
//
// A CTA is eight warps on one tile of 16 columns (common/gemm/gpu/fallback.h). The warps' sums are added in shared
// memory.
//
// It takes any K, stride and alignment. With `aligned` false it loads single bytes and reads none beyond a row's K.
// Chips without TMA use it for everything.
#pragma once

#include "../../common/cuda/pdl.h"
#include "../../common/gemm/epilogue.h"
#include "../../common/gemm/gpu/fallback.h"
#include "../skinny_gemm.h"
#include "../../common/cuda/mma.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

constexpr int kFallbackWarps = gemm::kFallbackWaves;

// The tile that common/gemm/gpu/fallback.h needs. Lane 4 g + t loads 16 bytes of columns g and g + 8, and of row g of
// each 8 rows.
template <int kRowTiles>
struct FallbackTile {
    static constexpr int kColumnLoads = 2, kRowLoads = kRowTiles;
    using Chunk = uint4;
    Sums sums[1][kRowTiles] = {};

    static __device__ Chunk zero() { return {0, 0, 0, 0}; }
    static __device__ Chunk of_words(const uint32_t (&w)[4]) { return {w[0], w[1], w[2], w[3]}; }
    static __device__ Chunk load_weights(const void* p) { return load(p); }
    static __device__ Chunk load_rows(const void* p) { return load(p); }
    static __device__ int column(int lane, int i) { return lane / 4 + 8 * i; }
    static __device__ int row(int lane, int i) { return i * kMmaNarrow + lane / 4; }
    static __device__ int chunk(int lane) { return lane % 4; }
    __device__ void multiply(const Chunk (&columns)[2], const Chunk (&rows)[kRowTiles]) {
        const Chunk wide[1][2] = {{columns[0], columns[1]}};
        multiply_chunks(sums, wide, rows);
    }
};

template <int kRowTiles, bool aligned>
__global__ __launch_bounds__(kFallbackWarps* kWarp) void skinny_gemm_fallback(Args a) {
    static_assert(kChunk == gemm::kFallbackChunk);
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const int64_t first_column = int64_t(blockIdx.x) * kMmaWide;
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: see constant_b in docs/numerics.md

    FallbackTile<kRowTiles> tile;
    const int64_t steps = (a.k + gemm::kFallbackStep - 1) / gemm::kFallbackStep;
    gemm::multiply_fallback<FallbackTile<kRowTiles>, aligned>(a, first_column, 0, steps, warp, lane, tile);

    __shared__ float parts[kFallbackWarps][kRowTiles * kMmaNarrow][kMmaWide];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) parts[warp][r * kMmaNarrow + 2 * t + i % 2][g + i / 2 * 8] = tile.sums[0][r][i];
    }
    // Closes: other warps read the sums below.
    __syncthreads();
    for (int e = threadIdx.x; e < int(a.m) * kMmaWide; e += kFallbackWarps * kWarp) {
        const int m = e / kMmaWide, j = e % kMmaWide;
        float c = parts[0][m][j];
        for (int w = 1; w < kFallbackWarps; ++w) c += parts[w][m][j];
        if (const int64_t n = first_column + j; n < a.n) {
            gemm::finish(a.epilogue, m, n, gemm::Column(a.epilogue, n), gemm::scale_at(a.epilogue.scale_a, m), c);
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda
