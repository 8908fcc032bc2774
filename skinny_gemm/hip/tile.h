// Common parts of both GEMM kernels for gfx942 and gfx950: the matrix instructions, and the epilogue that turns a
// workgroup's partial sums into the result.
//
// A tile is kRows rows of A by 16 columns of the result (rows of B). K is taken in steps of 64. Lane l = 16 g + j holds
// the 16 bytes k = 16 g ... 16 g + 15 of column j (B) and, in the same way, of row j (A).
//
//   9 to 32 rows  v_mfma_f32_16x16x32_fp8_fp8, twice a step and tile of 16 rows.
//                 The instruction expects k = 8 g ... of 32. It gets the first halves of the 16 bytes, then the second
//                 halves. That permutes k in the same way in both operands, which does not change a dot product.
//   up to 8 rows  v_smfmac_f32_16x16x64_fp8_fp8, once a step. Its A is sparse: it holds two of four neighbouring k, and
//                 an index says which. Sparse row 2r holds k = 0, 1 (mod 4) of row r, sparse row 2r + 1 the other two.
//                 So eight dense rows fill sixteen sparse ones. D[2r] + D[2r + 1] is row r's sum.
//
// D (both): lane l = 16 g + j holds rows 4 g ... 4 g + 3 of column j.
#pragma once

#include "../../common/gemm/epilogue.h"
#include "../../common/hip/split_k.h"
#include "../skinny_gemm.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

constexpr int kTileColumns = 16, kStep = 64, kChunk = 16;  // columns; k of a step; k (bytes) of a lane's load

// A lane's part of A for one step. kRows: 8 (sparse), 16 or 32.
template <int kRows>
struct RowFragment {
    static constexpr int kTiles = kRows / 16;
    u32x4 k[kTiles];
};
template <>
struct RowFragment<8> {
    u32x2 k;  // of this lane's sparse row
};

// The pairs k = 0, 1 (mod 4) of 16 bytes of a dense row; high_pairs gives the others.
__device__ inline u32x2 low_pairs(u32x4 k) {
    constexpr uint32_t kLowHalves = 0x05040100u;
    return u32x2{__builtin_amdgcn_perm(k.y, k.x, kLowHalves), __builtin_amdgcn_perm(k.w, k.z, kLowHalves)};
}
__device__ inline u32x2 high_pairs(u32x4 k) {
    constexpr uint32_t kHighHalves = 0x07060302u;
    return u32x2{__builtin_amdgcn_perm(k.y, k.x, kHighHalves), __builtin_amdgcn_perm(k.w, k.z, kHighHalves)};
}

// A wave's sums for one tile.
template <int kRows>
class TileSum {
    static constexpr int kTiles = kRows == 32 ? 2 : 1;
    f32x4 d[kTiles];
    int pairs_;  // the sparse index: which two of each four k this lane's row holds, 2 bits each

  public:
    __device__ TileSum() {
        for (f32x4& v : d) v = f32x4(0);
        // Positions 0 and 1 for even sparse rows, 2 and 3 for odd ones, in every group.
        pairs_ = threadIdx.x & 1 ? 0xEEEEEEEE : 0x44444444;
    }

    __device__ void multiply(const RowFragment<kRows>& a, u32x4 b) {
        if constexpr (kRows == 8) {
            using i32x2 = int __attribute__((ext_vector_type(2)));
            using i32x4 = int __attribute__((ext_vector_type(4)));
            d[0] = __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8(__builtin_bit_cast(i32x2, a.k),
                                                                __builtin_bit_cast(i32x4, b), d[0], pairs_, 0, 0);
        } else {
            const auto half = [](u32x4 v, int which) {
                return __builtin_bit_cast(long, which ? u32x2{v.z, v.w} : u32x2{v.x, v.y});
            };
#pragma unroll
            for (int which = 0; which < 2; ++which) {
#pragma unroll
                for (int t = 0; t < kTiles; ++t) {
                    d[t] =
                        __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(half(a.k[t], which), half(b, which), d[t], 0, 0, 0);
                }
            }
        }
    }

    // sums: float [kRows][16].
    __device__ void store(float* sums) const {
        const int lane = threadIdx.x % kWave, g = lane / kTileColumns, j = lane % kTileColumns;
        if constexpr (kRows == 8) {
            sums[(2 * g) * kTileColumns + j] = d[0].x + d[0].y;
            sums[(2 * g + 1) * kTileColumns + j] = d[0].z + d[0].w;
        } else {
            for (int t = 0; t < kTiles; ++t) {
                for (int i = 0; i < 4; ++i) sums[(16 * t + 4 * g + i) * kTileColumns + j] = d[t][i];
            }
        }
    }
};

// The epilogue. The workgroup's part is in LDS: sums [kGroups][kTiles][kRows][16], added over the groups in their
// order.
//
// With split-K (common/hip/split_k.h) parts are [tiles of columns][parts][m][columns of a workgroup].
template <int kRows, int kTiles, int kGroups>
__device__ inline void reduce_and_finish(const Args& a, const SplitK& split, const float* sums, int tile, int part) {
    constexpr int kColumns = kTiles * kTileColumns;
    const auto each = [&](auto body) {
        for (int e = threadIdx.x; e < int(a.m) * kColumns; e += blockDim.x) {
            const int m = e / kColumns, column = e % kColumns;
            const int64_t n = int64_t(tile) * kColumns + column;
            if (n < a.n) body(e, m, n, column);
        }
    };
    const auto finish = [&](int m, int64_t n, float c) {
        gemm::finish(a.epilogue, m, n, gemm::Column(a.epilogue, n), gemm::scale_at(a.epilogue.scale_a, m), c);
    };
    const auto of_workgroup = [&](int m, int column) {
        const float* p = sums + ((column / kTileColumns) * kRows + m) * kTileColumns + column % kTileColumns;
        float v = p[0];
        for (int group = 1; group < kGroups; ++group) v += p[group * kTiles * kRows * kTileColumns];
        return v;
    };
    if (split.parts == 1) {
        each([&](int, int m, int64_t n, int column) { finish(m, n, of_workgroup(m, column)); });
        return;
    }

    const int64_t part_size = a.m * kColumns;
    float* parts = split.partial + int64_t(tile) * split.parts * part_size;
    each([&](int e, int m, int64_t, int column) {
        store_for_all(parts + part * part_size + e, of_workgroup(m, column));
    });
    if (!arrives_last(split.arrived + tile, split.parts)) return;
    each([&](int e, int m, int64_t n, int) {
        float v = load_of_any(parts + e);
        for (int s = 1; s < split.parts; ++s) v += load_of_any(parts + s * part_size + e);
        finish(m, n, v);
    });
    reset(split.arrived + tile);
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip
