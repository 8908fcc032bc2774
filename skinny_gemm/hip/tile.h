// Common parts of both GEMM kernels for gfx942 and gfx950: the matrix instructions, and the end of a workgroup, which
// turns its waves' sums into the result.
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
#include "../../common/gemm/hip/split_k.h"
#include "../skinny_gemm.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

constexpr int kTileColumns = 16, kStep = 64, kChunk = 16;  // columns; k of a step; k (bytes) of a lane's load

// A wave's sums of a tile in LDS: [kRows][16], with the two rows of every other pair swapped. Lanes that store together
// (rows of two neighbouring groups of 16 lanes) then have different banks, and so have lanes that load together.
template <int kRows>
constexpr int kTileSize = kRows * kTileColumns;
template <int kRows>
__device__ inline int place_of(int row, int column) {
    constexpr int kRowsOfLanes = kRows == 8 ? 2 : 4;  // that a lane holds
    return (row ^ (row / kRowsOfLanes & 1)) * kTileColumns + column;
}

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

// Of 16 bytes of a dense row, the pairs that this lane's sparse row holds: k = 0, 1 (mod 4) or the others.
__device__ inline u32x2 sparse_pairs(u32x4 k) {
    const uint32_t halves = threadIdx.x & 1 ? 0x07060302u : 0x05040100u;
    return u32x2{__builtin_amdgcn_perm(k.y, k.x, halves), __builtin_amdgcn_perm(k.w, k.z, halves)};
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

    // Where this lane's first sum lies: as place_of has it.
    static __device__ int first_place() {
        const int lane = threadIdx.x % kWave, g = lane / kTileColumns;
        return place_of<kRows>(g * (kRows == 8 ? 2 : 4), lane % kTileColumns);
    }
    // sums: float [kTileSize<kRows>]. The second row's place differs in which of a pair of rows it is.
    __device__ void store(float* sums, int first) const {
        const int second = first ^ kTileColumns;
        if constexpr (kRows == 8) {
            sums[first] = d[0].x + d[0].y;
            sums[second] = d[0].z + d[0].w;
        } else {
            for (int t = 0; t < kTiles; ++t) {
                for (int i = 0; i < 4; ++i)
                    sums[(i % 2 ? second : first) + (16 * t + i / 2 * 2) * kTileColumns] = d[t][i];
            }
        }
    }
};

// The end of a workgroup of kWaves waves on kTiles tiles of columns: sums are added, scaled and stored. A thread has
// every kThreads-th number of [kTiles][kRows][16]. What it needs of scales and bias is asked for by the constructor,
// so that it is there when the sums are; whatever waits for it then waits for nothing asked for later.
//
// With split-K (common/gemm/hip/split_k.h) parts are [tiles of columns][parts][kTiles][kRows][16].
template <int kRows, int kTiles, int kWaves>
class Ending {
    static constexpr int kThreads = kWaves * kWave, kSize = kTileSize<kRows>, kAll = kTiles * kSize,
                         kPasses = (kAll + kThreads - 1) / kThreads;
    // Passes that differ in the row alone have the same column.
    static constexpr int kRowsOfThread = kSize > kThreads ? kSize / kThreads : 1,
                         kColumnsOfThread = (kPasses + kRowsOfThread - 1) / kRowsOfThread;

    SplitK split;
    gemm::Epilogue epilogue;
    const int m, columns;  // columns: from the workgroup's first one on
    int place;             // of the first pass's number in a wave's sums; those of other passes lie kThreads further
    int64_t out_at;        // of the first pass's number in the result
    float scale_a[kRowsOfThread], scale_b[kColumnsOfThread];
    uint32_t bias[kColumnsOfThread];  // as it lies in memory: to convert it is to wait for it

    static __device__ int number(int pass) { return threadIdx.x + pass * kThreads; }
    static __device__ int row_of(int pass) { return number(pass) / kTileColumns % kRows; }
    static __device__ int column_of(int pass) {
        return number(pass) / kSize * kTileColumns + threadIdx.x % kTileColumns;
    }
    static __device__ int before(int i, int end) { return i < end ? i : end - 1; }

    template <class Body>
    __device__ void each(Body body) const {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            if (number(pass) < kAll && row_of(pass) < m && column_of(pass) < columns) body(pass);
        }
    }
    __device__ void store(int pass, float c) const {
        const int i = pass / kRowsOfThread;
        // What passes differ in is the same for all threads.
        const int rows = pass % kRowsOfThread * (kThreads / kTileColumns),
                  further = i * kThreads * kRowsOfThread / kSize;
        const int64_t at = out_at + rows * epilogue.out.row_stride + further * kTileColumns;
        const float added = epilogue.bias.data ? gemm::bias_of_bits(epilogue.bias.dtype, bias[i]) : 0;
        gemm::put(epilogue.out, at, gemm::finished(epilogue, c, scale_a[pass % kRowsOfThread], scale_b[i], added));
    }

  public:
    union Shared {
        float sums[kWaves][kAll];  // [kTiles][kSize]
        uint32_t before;           // arrives_last's: by then all sums have been read
    };

    __device__ Ending(const gemm::Epilogue& e, const SplitK& split, int64_t m, int64_t n, int64_t first_column)
        : split(split),
          epilogue(e),
          m(int(m)),
          columns(int(n - first_column < 16 * kTiles ? n - first_column : 16 * kTiles)) {
        have_now(epilogue.out.data), have_now(epilogue.out.row_stride), have_now(epilogue.out.dtype);
        have_now(epilogue.bias.data), have_now(epilogue.bias.dtype), have_now(this->split.parts);
#pragma unroll
        for (int i = 0; i < kRowsOfThread; ++i) scale_a[i] = gemm::scale_at(e.scale_a, before(row_of(i), int(m)));
#pragma unroll
        for (int i = 0; i < kColumnsOfThread; ++i) {
            const int64_t column = first_column + before(column_of(i * kRowsOfThread), columns);
            scale_b[i] = gemm::scale_at(e.scale_b, column);
            bias[i] = gemm::bias_bits(e.bias, column);
        }
        const int tile = number(0) / kSize;
        place = tile * kSize + place_of<kRows>(row_of(0), threadIdx.x % kTileColumns);
        out_at = row_of(0) * e.out.row_stride + first_column + column_of(0);
        if constexpr (kPasses == 1) have_computed(place), have_computed(out_at);  // where there are registers for it
    }

    // Of all waves' sums, in their order. tile, part: the workgroup's.
    __device__ void finish(Shared& lds, int tile, int part) const {
        const auto of_workgroup = [&](int pass) {
            float v = lds.sums[0][place + pass * kThreads];
#pragma unroll
            for (int wave = 1; wave < kWaves; ++wave) v += lds.sums[wave][place + pass * kThreads];
            return v;
        };
        if (split.parts == 1) {
            each([&](int pass) { store(pass, of_workgroup(pass)); });
            return;
        }
        float* const parts = split.partial + int64_t(tile) * split.parts * kAll;
        each([&](int pass) { store_for_all(parts + part * kAll + number(pass), of_workgroup(pass)); });
        if (!arrives_last(split.arrived + tile, split.parts, lds.before)) return;
        // A batch of parts is asked for at once; beyond the last part it is asked for again, and not added.
        constexpr int kBatch = 4;
        float sum[kPasses];
        for (float& v : sum) v = -0.0f;
        for (int first = 0; first < split.parts; first += kBatch) {
            float batch[kPasses][kBatch];
            each([&](int pass) {
#pragma unroll
                for (int s = 0; s < kBatch; ++s) {
                    batch[pass][s] = load_of_any(parts + before(first + s, split.parts) * kAll + number(pass));
                }
            });
            each([&](int pass) {
#pragma unroll
                for (int s = 0; s < kBatch; ++s) {
                    if (first + s < split.parts) sum[pass] += batch[pass][s];
                }
            });
        }
        each([&](int pass) { store(pass, sum[pass]); });
        reset(split.arrived + tile);
    }
};

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip
