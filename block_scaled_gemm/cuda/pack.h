// Operands that TMA does not take (rows contiguous, odd strides or addresses) are copied to K-contiguous rows first.
//
// A CTA copies a square of 128 rows by 128 k through shared memory: it reads along the contiguous dimension and writes
// 16 bytes along K. In shared memory byte (k, r) is at 128 k + (r ^ 4 (k / 16)), so that lanes that read one row at k
// 16 apart meet no bank conflict.
#pragma once

#include "../../common/cuda/pdl.h"
#include "../../common/cuda/vector.h"
#include "../block_scaled_gemm.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

constexpr int kPackTile = 128, kPackThreads = 256;

struct Packing {
    Operand from;
    uint8_t* to;  // rows to_stride bytes apart, a multiple of 16
    int64_t rows, k, to_stride;
    int row_tiles;
};

__device__ inline int packed_place(int k, int r) { return k * kPackTile + (r ^ (k / 16 % 8 * 4)); }

// vectors: rows are contiguous, and 16 of them can be loaded at once.
template <bool vectors>
__global__ __launch_bounds__(kPackThreads) void block_scaled_gemm_pack(Packing p) {
    alignas(16) __shared__ uint8_t tile[kPackTile * kPackTile];
    const int64_t r0 = int64_t(blockIdx.x % p.row_tiles) * kPackTile,
                  k0 = int64_t(blockIdx.x / p.row_tiles) * kPackTile;
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: see constant_b in docs/numerics.md
    if constexpr (vectors) {
#pragma unroll
        for (int i = 0; i < kPackTile * kPackTile / 16 / kPackThreads; ++i) {
            const int v = i * kPackThreads + threadIdx.x, k = v / (kPackTile / 16), r = v % (kPackTile / 16) * 16;
            uint4 bytes = {0, 0, 0, 0};
            if (k0 + k < p.k && r0 + r < p.rows) bytes = load(p.from.data + r0 + r + (k0 + k) * p.from.k_stride);
#pragma unroll
            for (int w = 0; w < 4; ++w)
                *reinterpret_cast<uint32_t*>(&tile[packed_place(k, r + 4 * w)]) = word(bytes, w);
        }
    } else {
        const bool by_k = p.from.k_contiguous();
        for (int v = threadIdx.x; v < kPackTile * kPackTile; v += kPackThreads) {
            const int inner = v % kPackTile, outer = v / kPackTile, k = by_k ? inner : outer, r = by_k ? outer : inner;
            const bool inside = k0 + k < p.k && r0 + r < p.rows;
            tile[packed_place(k, r)] =
                inside ? p.from.data[(r0 + r) * p.from.row_stride + (k0 + k) * p.from.k_stride] : 0;
        }
    }
    // Barrier: other threads read the tile.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPackTile * kPackTile / 16 / kPackThreads; ++i) {
        const int v = i * kPackThreads + threadIdx.x, r = v / (kPackTile / 16), k = v % (kPackTile / 16) * 16;
        uint4 bytes = {0, 0, 0, 0};
#pragma unroll
        for (int b = 0; b < 16; ++b) word(bytes, b / 4) |= uint32_t(tile[packed_place(k + b, r)]) << (b % 4 * 8);
        if (r0 + r < p.rows && k0 + k < p.to_stride) store(p.to + (r0 + r) * p.to_stride + k0 + k, bytes);
    }
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
