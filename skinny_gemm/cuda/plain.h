// The simple GEMM kernel on CUDA: each warp loads what it multiplies straight into registers.
//
// A block is kPlainWarps warps on one tile of 16 columns; warp w takes the steps w, w + kPlainWarps, ... of 64 k,
// kPlainUnroll of them at a time. The warps' sums meet in shared memory.
//
// It takes any K, stride and alignment (`aligned` false: byte by byte, none read beyond a row's K), and serves chips
// without the bulk copy engine.
#pragma once

#include "../../common/cuda/pdl.h"
#include "../../common/gemm/epilogue.h"
#include "../skinny_gemm.h"
#include "mma.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

constexpr int kPlainWarps = 8, kPlainUnroll = 4, kPlainStep = 64;

// 16 bytes of a row from k on, zeros beyond K.
template <bool aligned>
__device__ inline uint4 load_chunk(const uint8_t* row, int64_t k, int64_t end) {
    if constexpr (aligned) {
        // A chunk is inside or outside as a whole. Outside, the row's first one is loaded in its place: no branch.
        const void* p = row + (k < end ? k : 0);
        const uint4 v = load(p);
        return k < end ? v : uint4{0, 0, 0, 0};
    } else {
        uint4 v{0, 0, 0, 0};
        for (int i = 0; i < kChunk; ++i) {
            if (k + i < end) word(v, i / 4) |= uint32_t(row[k + i]) << (i % 4 * 8);
        }
        return v;
    }
}

template <int kRowTiles, bool aligned>
__global__ __launch_bounds__(kPlainWarps* kWarp) void skinny_gemm_plain(Args a) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const int64_t first_column = int64_t(blockIdx.x) * kMmaWide;
    let_next_kernel_start();
    wait_for_previous_kernel();

    // Rows and columns beyond the last are computed as copies of it, and not written.
    const uint8_t *column[2], *row[kRowTiles];
    for (int i = 0; i < 2; ++i) {
        const int64_t n = first_column + g + 8 * i;
        column[i] = a.b + (n < a.n ? n : a.n - 1) * a.b_stride;
    }
    for (int r = 0; r < kRowTiles; ++r) {
        const int64_t m = r * kMmaNarrow + g;
        row[r] = a.a + (m < a.m ? m : a.m - 1) * a.a_stride;
    }

    Sums sums[1][kRowTiles] = {};
    const int64_t steps = (a.k + kPlainStep - 1) / kPlainStep;
    for (int64_t first = warp; first < steps; first += kPlainWarps * kPlainUnroll) {
        uint4 columns[kPlainUnroll][1][2], rows[kPlainUnroll][kRowTiles];
#pragma unroll
        for (int u = 0; u < kPlainUnroll; ++u) {
            const int64_t step = first + u * kPlainWarps, k = step * kPlainStep + t * kChunk,
                          end = step < steps ? a.k : 0;
#pragma unroll
            for (int i = 0; i < 2; ++i) columns[u][0][i] = load_chunk<aligned>(column[i], k, end);
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) rows[u][r] = load_chunk<aligned>(row[r], k, end);
        }
#pragma unroll
        for (int u = 0; u < kPlainUnroll; ++u) multiply_chunks(sums, columns[u], rows[u]);
    }

    __shared__ float parts[kPlainWarps][kRowTiles * kMmaNarrow][kMmaWide];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) parts[warp][r * kMmaNarrow + 2 * t + i % 2][g + i / 2 * 8] = sums[0][r][i];
    }
    // Closes: the sums are added below by other warps.
    __syncthreads();
    for (int e = threadIdx.x; e < int(a.m) * kMmaWide; e += kPlainWarps * kWarp) {
        const int m = e / kMmaWide, j = e % kMmaWide;
        float c = parts[0][m][j];
        for (int w = 1; w < kPlainWarps; ++w) c += parts[w][m][j];
        if (const int64_t n = first_column + j; n < a.n) {
            gemm::finish(a.epilogue, m, n, gemm::Column(a.epilogue, n), gemm::scale_at(a.epilogue.scale_a, m), c);
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda
