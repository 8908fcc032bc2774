// The simple GEMM kernel on CUDA: each warp loads its operands straight into registers.
//
//     CTA       one tile of 16 columns; the warps' sums are added in shared memory
//     warp w    the steps w, w + kFallbackWarps, ... of 64 k each; kFallbackUnroll of them at a time
//     lane      4 g + t: 16 bytes of columns g and g + 8, and of row g of each 8 rows
//
// It takes any K, stride and alignment. With `aligned` false it loads single bytes and reads none beyond a row's K.
// Chips without TMA use it for everything.
#pragma once

#include "../../common/cuda/mma.h"
#include "../../common/cuda/pdl.h"
#include "end.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

constexpr int kFallbackWarps = 8, kFallbackUnroll = 4, kFallbackStep = 64;

// Loads 16 bytes of a row from k on, with zeros from `end` on. Without alignment it loads single bytes, none beyond
// the row's end.
template <bool aligned>
__device__ inline uint4 load_chunk(const uint8_t* row, int64_t k, int64_t end) {
    if constexpr (aligned) {
        // A chunk is wholly inside or outside. Outside, the row's first chunk is loaded instead of a branch.
        const uint4 v = load(offset(row, k < end ? k : 0));
        return k < end ? v : uint4{0, 0, 0, 0};
    } else {
        uint32_t words[kChunk / 4] = {};
        for (int i = 0; i < kChunk; ++i) {
            if (k + i < end) words[i / 4] |= uint32_t(global<uint8_t>(row)[k + i]) << (i % 4 * 8);
        }
        return {words[0], words[1], words[2], words[3]};
    }
}

// Adds a warp's share of the steps. Rows and columns beyond the last are copies of it, which nothing stores.
template <int kRowTiles, bool aligned>
__device__ inline void multiply_fallback(const Args& a, int64_t first_column, int warp, int lane,
                                         Sums (&sums)[1][kRowTiles]) {
    const int64_t steps = (a.k + kFallbackStep - 1) / kFallbackStep;
    const uint8_t *column[2], *row[kRowTiles];
    for (int i = 0; i < 2; ++i) {
        const int64_t n = first_column + lane / 4 + 8 * i;
        column[i] = a.b.data + (n < a.n ? n : a.n - 1) * a.b.row_stride;
    }
    for (int i = 0; i < kRowTiles; ++i) {
        const int64_t m = i * kMmaNarrow + lane / 4;
        row[i] = a.a.data + (m < a.m ? m : a.m - 1) * a.a.row_stride;
    }
    for (int64_t first = warp; first < steps; first += kFallbackWarps * kFallbackUnroll) {
        uint4 columns[kFallbackUnroll][1][2], rows[kFallbackUnroll][kRowTiles];
#pragma unroll
        for (int u = 0; u < kFallbackUnroll; ++u) {
            const int64_t step = first + u * kFallbackWarps;
            const int64_t k = step * kFallbackStep + lane % 4 * kChunk, limit = step < steps ? a.k : 0;
#pragma unroll
            for (int i = 0; i < 2; ++i) columns[u][0][i] = load_chunk<aligned>(column[i], k, limit);
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i) rows[u][i] = load_chunk<aligned>(row[i], k, limit);
        }
#pragma unroll
        for (int u = 0; u < kFallbackUnroll; ++u) multiply_chunks(sums, columns[u], rows[u]);
    }
}

template <int kRowTiles, bool aligned, class To>
__device__ inline void multiply_and_finish(const Args& a, To to) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const int64_t first_column = int64_t(blockIdx.x) * kMmaWide;
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: see constant_b in docs/numerics.md

    const uint32_t epoch = to.load_epoch();
    Sums sums[1][kRowTiles] = {};
    multiply_fallback<kRowTiles, aligned>(a, first_column, warp, lane, sums);

    __shared__ float parts[kFallbackWarps][kRowTiles * kMmaNarrow][kMmaWide];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) parts[warp][r * kMmaNarrow + 2 * t + i % 2][g + i / 2 * 8] = sums[0][r][i];
    }
    // Barrier: other warps read the sums below.
    __syncthreads();
    to.begin(epoch);
    constexpr int kApiece = kApieceOf<To>, kAcross = kMmaWide / kApiece;
    for (int e = threadIdx.x; e < int(a.m) * kAcross; e += kFallbackWarps * kWarp) {
        const int m = e / kAcross, j = e % kAcross * kApiece;
        float c[kApiece];
#pragma unroll
        for (int i = 0; i < kApiece; ++i) {
            c[i] = parts[0][m][j + i];
            for (int w = 1; w < kFallbackWarps; ++w) c[i] += parts[w][m][j + i];
        }
        if (const int64_t n = first_column + j; n < a.n) {
            const gemm::Column column(a.epilogue, n), next(a.epilogue, n + kApiece - 1);
            finish<kApiece>(a, to, m, n, column, next, gemm::scale_at(a.epilogue.scale_a, m),
                            [&](int i) { return c[i]; });
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda
