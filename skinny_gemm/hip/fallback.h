// The simple GEMM kernel: each wave loads what it multiplies straight into registers.
//
// A workgroup is eight waves on one tile of 16 columns (common/gemm/gpu/fallback.h). The waves' sums meet in LDS.
//
// It takes any K, stride and alignment (`aligned` false: byte by byte, none read beyond a row's K), and is what the
// stream is compared with. A load covers 64 bytes of each of 16 rows: half cache lines, the other half with the next
// step's load.
#pragma once

#include "../../common/gemm/gpu/fallback.h"
#include "tile.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

constexpr int kFallbackWaves = gemm::kFallbackWaves;

// As common/gemm/gpu/fallback.h wants it: lane l = 16 g + j loads 16 bytes of column j, and of row j of each 16 rows.
// With up to 8 rows it is the dense row of its sparse one.
template <int kRows>
struct FallbackTile {
    static constexpr int kColumnLoads = 1, kRowLoads = kRows == 32 ? 2 : 1;
    using Chunk = u32x4;
    TileSum<kRows> sum;

    static __device__ Chunk zero() { return u32x4(0); }
    static __device__ Chunk of_words(const uint32_t (&w)[4]) { return u32x4{w[0], w[1], w[2], w[3]}; }
    static __device__ Chunk load_weights(const void* p) { return load_once<u32x4>(p, 0); }
    static __device__ Chunk load_rows(const void* p) { return load<u32x4>(p, 0); }
    static __device__ int column(int lane, int) { return lane % kTileColumns; }
    static __device__ int row(int lane, int i) {
        const int j = lane % kTileColumns;
        return 16 * i + (kRows == 8 ? j / 2 : j);
    }
    static __device__ int chunk(int lane) { return lane / kTileColumns; }
    __device__ void multiply(const Chunk (&columns)[1], const Chunk (&rows)[kRowLoads]) {
        RowFragment<kRows> fragment;
        if constexpr (kRows == 8) {
            fragment.k = sparse_pairs(rows[0]);
        } else {
            for (int t = 0; t < kRowLoads; ++t) fragment.k[t] = rows[t];
        }
        sum.multiply(fragment, columns[0]);
    }
};

struct FallbackLaunch {
    Args args;
    SplitK split;
};

template <int kRows, bool aligned>
__global__ __launch_bounds__(kFallbackWaves* kWave) void skinny_gemm_fallback(FallbackLaunch first) {
    static_assert(kStep == gemm::kFallbackStep && kChunk == gemm::kFallbackChunk);
    const int lane = threadIdx.x % kWave, wave = uniform(threadIdx.x / kWave);
    const auto column = [](int tile) { return int64_t(tile) * kTileColumns; };
    FallbackTile<kRows> mine;
    {
        const Args& a = first.args;
        const int parts = first.split.parts, tile = blockIdx.x / parts, part = blockIdx.x % parts;
        const int64_t steps = (a.k + kStep - 1) / kStep;
        gemm::multiply_fallback<FallbackTile<kRows>, aligned>(a, column(tile), steps * part / parts,
                                                              steps * (part + 1) / parts, wave, lane, mine);
    }
    using End = Ending<kRows, 1, kFallbackWaves>;
    __shared__ typename End::Shared lds;
    mine.sum.store(lds.sums[uniform(threadIdx.x / kWave)], mine.sum.first_place());
    const FallbackLaunch& launch = arguments<FallbackLaunch>();
    const Args& a = launch.args;
    const int tile = blockIdx.x / launch.split.parts, part = blockIdx.x % launch.split.parts;
    const End ending(a.epilogue, launch.split, a.m, a.n, column(tile));
    // Closes: the sums are added below by other waves.
    __syncthreads();
    ending.finish(lds, tile, part);
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip
