// The simple kernel: for chips without wgmma, and for what TMA does not take. Any strides, alignment and sizes.
//
// A CTA of eight warps computes 64 columns by 64 rows. Of each 128 bytes of k it brings both operands to shared memory,
// 16 bytes a load where K is contiguous and aligned, byte by byte otherwise. A warp multiplies 16 columns by 32 rows
// with the matrix instructions of common/cuda/mma.h, whose float32 sums are exact but for their own rounding.
#pragma once

#include "../../common/cuda/mma.h"
#include "../../common/cuda/pdl.h"
#include "store.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

constexpr int kFallbackTile = 64, kFallbackThreads = 256;
// Rows of shared memory are 16 bytes longer than a block, so that the lanes' loads meet no bank conflicts.
constexpr int kFallbackRow = kBlock + 16;

// Rows first ... of an operand, k of block j, with zeros beyond both ends.
template <bool vectors>
__device__ inline void bring(uint8_t (&to)[kFallbackTile][kFallbackRow], const Operand from, int64_t first,
                             int64_t rows, int64_t k0, int64_t k_end) {
    if constexpr (vectors) {
        for (int v = threadIdx.x; v < kFallbackTile * kBlock / 16; v += kFallbackThreads) {
            const int r = v / (kBlock / 16), c = v % (kBlock / 16) * 16;
            uint4 bytes = {0, 0, 0, 0};
            if (first + r < rows && k0 + c < k_end) bytes = load(from.data + (first + r) * from.row_stride + k0 + c);
            *reinterpret_cast<uint4*>(&to[r][c]) = bytes;
        }
    } else {
        // Neighbouring threads take neighbouring bytes in either layout.
        const bool by_k = from.k_contiguous();
        for (int v = threadIdx.x; v < kFallbackTile * kBlock; v += kFallbackThreads) {
            const int r = by_k ? v / kBlock : v % kFallbackTile, c = by_k ? v % kBlock : v / kFallbackTile;
            const bool inside = first + r < rows && k0 + c < k_end;
            to[r][c] = inside ? from.data[(first + r) * from.row_stride + (k0 + c) * from.k_stride] : 0;
        }
    }
}

// Columns n ... end - 1 of row m, of 16 bytes, from float32 numbers in shared memory.
__device__ inline void store_staged(const gemm::Output& out, bool vectors, int size, int64_t m, int64_t n, int64_t end,
                                    const float* staged) {
    char* const to = static_cast<char*>(out.data) + (m * out.row_stride + n) * size;
    const int count = 16 / size;
    if (!vectors || n + count > end) {
#pragma unroll 1
        for (int i = 0; i < count && n + i < end; ++i) {
            if (size == 4) reinterpret_cast<float*>(to)[i] = staged[i];
            else reinterpret_cast<uint16_t*>(to)[i] = uint16_t(gemm::rounded_pair(out.dtype, {staged[i], 0}));
        }
    } else if (size == 4) {
        store(to, *reinterpret_cast<const uint4*>(staged));
    } else {
        const float4 low = *reinterpret_cast<const float4*>(staged),
                     high = *reinterpret_cast<const float4*>(staged + 4);
        store(to,
              uint4{gemm::rounded_pair(out.dtype, {low.x, low.y}), gemm::rounded_pair(out.dtype, {low.z, low.w}),
                    gemm::rounded_pair(out.dtype, {high.x, high.y}), gemm::rounded_pair(out.dtype, {high.z, high.w})});
    }
}

struct FallbackMemory {
    alignas(16) uint8_t columns[kFallbackTile][kFallbackRow];
    uint8_t rows[kFallbackTile][kFallbackRow];

    // In place of the operands.
    using Staged = float[kFallbackTile][kFallbackTile + 4];
    __device__ Staged& staged() { return *reinterpret_cast<Staged*>(this); }
};
static_assert(sizeof(FallbackMemory) >= sizeof(FallbackMemory::Staged));

// The tile from row m0 and column n0 on, rows before a.m; bytes: of k. By all threads.
//
//     bring_rows(to, k0)             128 bytes of A's rows from k0 on, with zeros beyond both ends
//     row_of(i)                      whose scale the i-th row has
//     multiply(sums, wide, narrow)   half of them. scaled: sums are a block's
template <bool vectors, bool scaled, class BringRows, class RowOf, class Multiply>
__device__ inline void fallback_tile(FallbackMemory& memory, const Args& a, int64_t m0, int64_t n0, int64_t bytes,
                                     const BringRows& bring_rows, const RowOf& row_of, const Multiply& multiply) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const int column = warp % 4 * kMmaWide, row = warp / 4 * 32;
    // Of the lane's columns g and g + 8, and of its rows 2 t and 2 t + 1 of each 8.
    BlockScales of_columns(a.scale_b, 0), of_rows(a.scale_a, 0);
    int64_t column_place[2], row_place[4][2];
    for (int i = 0; i < 2; ++i) column_place[i] = of_columns.place(inside(a, n0 + column + g + 8 * i));
    for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 2; ++j) row_place[i][j] = of_rows.place(row_of(row + 8 * i + 2 * t + j));
    }
    float sums[1][4][4] = {};
    for (int64_t k0 = 0; k0 < bytes; k0 += kBlock) {
        bring<vectors>(memory.columns, a.b, n0, a.n, k0, bytes);
        bring_rows(memory.rows, k0);
        // Barrier: other threads read the block.
        __syncthreads();
        Sums block[1][4] = {};
        auto& target = scaled ? block : sums;
#pragma unroll
        for (int half = 0; half < kBlock; half += 64) {
            uint4 wide[1][2], narrow[4];
            for (int i = 0; i < 2; ++i)
                wide[0][i] = *reinterpret_cast<const uint4*>(&memory.columns[column + g + 8 * i][half + 16 * t]);
            for (int i = 0; i < 4; ++i)
                narrow[i] = *reinterpret_cast<const uint4*>(&memory.rows[row + 8 * i + g][half + 16 * t]);
            multiply(target, wide, narrow);
        }
        if constexpr (scaled) {
            float s[2];
            for (int i = 0; i < 2; ++i) s[i] = at_the_end(a.scale_b) ? 1 : of_columns.at(column_place[i]);
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
    // Through shared memory: a lane stores 16 bytes of a row.
    FallbackMemory::Staged& staged = memory.staged();
    const Column own[2] = {Column(a, n0 + column + g), Column(a, n0 + column + g + 8)};
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
    if (n0 + first >= a.n) return;
    for (int r = threadIdx.x / lanes; r < kFallbackTile && m0 + r < a.m; r += kFallbackThreads / lanes) {
        store_staged(a.out, rows_of_vectors(a.out, size), size, m0 + r, n0 + first, a.n, &staged[r][first]);
    }
}

template <bool vectors>
__global__ __launch_bounds__(kFallbackThreads) void block_scaled_gemm_fallback(Args a) {
    __shared__ FallbackMemory memory;
    const int64_t column_tiles = (a.n + kFallbackTile - 1) / kFallbackTile;
    const int64_t n0 = blockIdx.x % column_tiles * kFallbackTile, m0 = blockIdx.x / column_tiles * kFallbackTile;
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: see constant_b in docs/numerics.md
    fallback_tile<vectors, true>(
        memory, a, m0, n0, a.k, [&](auto& to, int64_t k0) { bring<vectors>(to, a.a, m0, a.m, k0, a.k); },
        [&](int i) { return m0 + i < a.m ? m0 + i : a.m - 1; },
        [](auto& sums, const auto& wide, const auto& narrow) { multiply_chunks(sums, wide, narrow); });
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
