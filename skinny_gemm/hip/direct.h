// The simple GEMM kernel: each wave loads what it multiplies straight into registers.
//
// A workgroup is kDirectWaves waves on one tile of 16 columns; wave w takes the steps w, w + kDirectWaves, ... of 64 k,
// kDirectUnroll of them at a time. The waves' sums meet in LDS.
//
// It takes any K, stride and alignment (`aligned` false: byte by byte, none read beyond a row's K), and is what the ring
// kernel is compared with. A load covers 64 bytes of each of 16 rows: half cache lines, the other half with the next
// step's load.
#pragma once

#include "tile.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

constexpr int kDirectWaves = 8, kDirectUnroll = 4;

// 16 bytes of a row from k on, zeros beyond K.
template <bool aligned, bool once>
__device__ inline u32x4 load_chunk(const uint8_t* row, int64_t k, int64_t end) {
    if constexpr (aligned) {
        // A chunk is inside or outside as a whole. Outside, the row's first one is loaded in its place: no branch.
        const void* p = offset(row, k < end ? k : 0);
        u32x4 v;
        if constexpr (once) v = load_once<u32x4>(p, 0);
        else v = load<u32x4>(p, 0);
        return k < end ? v : u32x4(0);
    } else {
        u32x4 v = 0;
        for (int i = 0; i < kChunk; ++i) {
            if (k + i < end) v[i / 4] |= uint32_t(global<uint8_t>(row)[k + i]) << (i % 4 * 8);
        }
        return v;
    }
}

template <int kRows, bool aligned>
__global__ __launch_bounds__(kDirectWaves* kWave) void skinny_gemm_direct(Args a, SplitK split) {
    const int lane = threadIdx.x % kWave, wave = uniform(threadIdx.x / kWave);
    const int j = lane % kTileColumns, g = lane / kTileColumns;
    const int tile = blockIdx.x / split.splits, part = blockIdx.x % split.splits;
    const int64_t steps = (a.k + kStep - 1) / kStep;
    const int64_t begin = steps * part / split.splits, end = steps * (part + 1) / split.splits;

    // Rows and columns beyond the last are computed as copies of it, and not written.
    const int64_t n = int64_t(tile) * kTileColumns + j;
    const uint8_t* column = a.b + (n < a.n ? n : a.n - 1) * a.b_stride;
    constexpr int kTiles = kRows == 32 ? 2 : 1;
    const uint8_t* row[kTiles];
    for (int t = 0; t < kTiles; ++t) {
        const int64_t m = 16 * t + (kRows == 8 ? j / 2 : j);
        row[t] = a.a + (m < a.m ? m : a.m - 1) * a.a_stride;
    }

    TileSum<kRows> sum;
    for (int64_t first = begin + wave; first < end; first += kDirectWaves * kDirectUnroll) {
        u32x4 b[kDirectUnroll], rows[kDirectUnroll][kTiles];
#pragma unroll
        for (int u = 0; u < kDirectUnroll; ++u) {
            const int64_t step = first + u * kDirectWaves, k = step * kStep + g * kChunk, limit = step < end ? a.k : 0;
            b[u] = load_chunk<aligned, true>(column, k, limit);
#pragma unroll
            for (int t = 0; t < kTiles; ++t) rows[u][t] = load_chunk<aligned, false>(row[t], k, limit);
        }
#pragma unroll
        for (int u = 0; u < kDirectUnroll; ++u) {
            RowFragment<kRows> fragment;
            if constexpr (kRows == 8) {
                fragment.k = lane & 1 ? high_pairs(rows[u][0]) : low_pairs(rows[u][0]);
            } else {
                for (int t = 0; t < kTiles; ++t) fragment.k[t] = rows[u][t];
            }
            sum.multiply(fragment, b[u]);
        }
    }

    __shared__ float sums[kDirectWaves][kRows][kTileColumns];
    sum.store(&sums[wave][0][0]);
    // Closes: the sums are added below by other waves.
    __syncthreads();
    reduce_and_finish<kRows, 1, kDirectWaves>(a, split, &sums[0][0][0], tile, part);
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip
