// The kernel of int8_gemm on CUDA: tiles of both operands through shared memory, mma.sync, sums through shared memory.
// See int8_gemm.cu.
#pragma once

#include "../../common/cuda/async_copy.h"
#include "../../common/cuda/mma_int8.h"
#include "../../common/cuda/pdl.h"
#include "../../common/cuda/shared_memory.h"
#include "config.h"
#include "finish.h"

namespace rocm_fp8::int8_gemm::cuda {
namespace {

// Copies kRows rows of `step` bytes from k0 on to shared memory, with zeros beyond the matrix. vectors: rows begin at
// multiples of 16 bytes; the last vector of a row may be shorter.
template <int index, bool vectors, int kRows>
__device__ inline void bring(uint8_t* to, const uint8_t* from, int64_t stride, int64_t rows, int64_t k0, int64_t k) {
    constexpr Tile tile = kTiles[index];
    constexpr int kThreads = tile.threads(), kStep = tile.step(), kRowBytes = tile.row_bytes();
    if constexpr (vectors) {
        constexpr int kVectors = kStep / 16;
#pragma unroll
        for (int v = 0; v < kRows * kVectors; v += kThreads) {
            const int i = v + threadIdx.x, r = i / kVectors, c = i % kVectors * 16;
            if (kRows * kVectors % kThreads != 0 && i >= kRows * kVectors) break;
            const int64_t left = r < rows ? k - k0 - c : 0;
            const int bytes = left < 0 ? 0 : left < 16 ? int(left) : 16;
            copy_vector_async(to + r * kRowBytes + c, bytes ? from + r * stride + k0 + c : from, bytes);
        }
    } else {
        for (int i = threadIdx.x; i < kRows * kStep; i += kThreads) {
            const int r = i / kStep, c = i % kStep;
            to[r * kRowBytes + c] = r < rows && k0 + c < k ? from[r * stride + k0 + c] : 0;
        }
    }
}

template <int index, bool vectors>
__global__ __launch_bounds__(kTiles[index].threads()) void int8_gemm_tiles(Args a, int64_t row_tiles,
                                                                           int64_t column_tiles) {
    constexpr Tile tile = kTiles[index];
    constexpr int kRows = tile.rows / tile.warps_m, kColumns = tile.columns / tile.warps_n;  // of a warp
    constexpr int kM = kRows / kInt8Rows, kN = kColumns / kInt8Columns, kRowBytes = tile.row_bytes();
    struct Memory {
        alignas(16) uint8_t bytes[tile.shared_bytes()];
    };
    uint8_t* const shared = dynamic_shared<Memory>().bytes;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const int part = warp % tile.warps_k, wm = warp / tile.warps_k % tile.warps_m;
    const int wn = warp / (tile.warps_k * tile.warps_m);
    // Row tiles of a column tile follow each other, so that L2 has its weights.
    const int64_t which = blockIdx.x, m0 = which % row_tiles * tile.rows;
    const int64_t n0 = which / row_tiles % column_tiles * tile.columns, batch = which / (row_tiles * column_tiles);
    const uint8_t* const rows = a.a.data + batch * a.a.group_stride + m0 * a.a.row_stride;
    const uint8_t* const columns = a.b.data + batch * a.b.group_stride + n0 * a.b.row_stride;
    const int steps = int((a.k + tile.step() - 1) / tile.step());
    const auto stage_of = [&](int step) { return shared + step % tile.stages * tile.stage_bytes(); };
    const auto bring_step = [&](int step) {
        if (step < steps) {
            const int64_t k0 = int64_t(step) * tile.step();
            bring<index, vectors, tile.rows>(stage_of(step), rows, a.a.row_stride, a.m - m0, k0, a.k);
            bring<index, vectors, tile.columns>(stage_of(step) + tile.rows * kRowBytes, columns, a.b.row_stride,
                                                a.n - n0, k0, a.k);
        }
        commit_copies();
    };
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: see constant_b in docs/numerics.md

    Int8Sums sums[kM][kN] = {};
    for (int step = 0; step + 1 < tile.stages; ++step) bring_step(step);
    for (int step = 0; step < steps; ++step) {
        wait_for_copies<tile.stages - 2>();
        // Barrier: all threads' copies of this step are there, and all have read the stage that is filled next.
        __syncthreads();
        bring_step(step + tile.stages - 1);
        const uint8_t* const mine = stage_of(step) + part * kInt8K + 16 * t;
        uint4 wide[kM][2], narrow[kN];
#pragma unroll
        for (int i = 0; i < kM; ++i) {
            const int row = wm * kRows + i * kInt8Rows + g;
            wide[i][0] = *reinterpret_cast<const uint4*>(mine + row * kRowBytes);
            wide[i][1] = *reinterpret_cast<const uint4*>(mine + (row + 8) * kRowBytes);
        }
#pragma unroll
        for (int j = 0; j < kN; ++j) {
            const int column = tile.rows + wn * kColumns + j * kInt8Columns + g;
            narrow[j] = *reinterpret_cast<const uint4*>(mine + column * kRowBytes);
        }
#pragma unroll
        for (int i = 0; i < kM; ++i) {
#pragma unroll
            for (int j = 0; j < kN; ++j) multiply_int8(sums[i][j], wide[i], narrow[j]);
        }
    }
    wait_for_copies<0>();
    // Barrier: the sums take the place of stages that have been read.
    __syncthreads();
    constexpr int kSumsRow = tile.columns + 4;
    int32_t* const staged = reinterpret_cast<int32_t*>(shared);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
            int32_t* const to = staged + (part * tile.rows + wm * kRows + i * kInt8Rows + g) * kSumsRow +
                                wn * kColumns + j * kInt8Columns + 2 * t;
            *reinterpret_cast<int2*>(to) = {sums[i][j][0], sums[i][j][1]};
            *reinterpret_cast<int2*>(to + 8 * kSumsRow) = {sums[i][j][2], sums[i][j][3]};
        }
    }
    // Barrier: other threads read the sums.
    __syncthreads();

    // A thread finishes four neighbouring columns of several rows.
    constexpr int kQuads = tile.columns / 4;
    const int own = threadIdx.x % kQuads * 4;
    if (n0 + own >= a.n) return;
    const Quad quad(a, batch, n0 + own, [&](int64_t n) { return Column(a.epilogue, batch, n); });
    for (int r = threadIdx.x / kQuads; r < tile.rows && m0 + r < a.m; r += tile.threads() / kQuads) {
        int4 acc = {0, 0, 0, 0};
#pragma unroll
        for (int p = 0; p < tile.warps_k; ++p) {
            const int4 v = *reinterpret_cast<const int4*>(staged + (p * tile.rows + r) * kSumsRow + own);
            acc = {acc.x + v.x, acc.y + v.y, acc.z + v.z, acc.w + v.w};
        }
        quad.store(a, m0 + r, Row(a.epilogue, batch, m0 + r), acc);
    }
}

}  // namespace
}  // namespace rocm_fp8::int8_gemm::cuda
