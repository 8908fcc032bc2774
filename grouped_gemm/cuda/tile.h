// The kernel for Hopper: the multiplying warpgroups, and the whole. See grouped_gemm.cu.
#pragma once

#include "../../common/cuda/pdl.h"
#include "../../common/cuda/shared_memory.h"
#include "feed.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

using scaled::TileSums;

// sums += (scale of a row of A * scale of the weights) * block
template <class V>
__device__ inline void add_scaled(float (&sums)[V::kGroups][4], const float (&block)[V::kGroups][4],
                                  const float* narrow, float wide) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < V::kGroups; ++i) {
        const float2 own = *reinterpret_cast<const float2*>(narrow + 8 * i + 2 * t);
        const float even = own.x * wide, odd = own.y * wide;
        sums[i][0] = __fmaf_rn(even, block[i][0], sums[i][0]);
        sums[i][1] = __fmaf_rn(odd, block[i][1], sums[i][1]);
        sums[i][2] = __fmaf_rn(even, block[i][2], sums[i][2]);
        sums[i][3] = __fmaf_rn(odd, block[i][3], sums[i][3]);
    }
}

template <class T>
__device__ inline void clear(T& sums) {
#pragma unroll
    for (auto& tile : sums)
        for (auto& group : tile)
            for (float& v : group) v = 0;
}

// FP8: of each block of 128 k the products' sum, then its scales. V: the shape S, or fewer rows of it.
template <class V, class S>
__device__ inline void multiply_scaled(typename S::Memory& ring, int steps, Reading<S>& reading, TileSums<V>& sums) {
    const int lane = threadIdx.x % kWarp, part = (threadIdx.x - kWarpgroup) / kWarpgroup * S::kTiles;
    clear(sums);
    const Position<S::kStages>& at = reading.at;
    bool filled = completed(&ring.full[at.stage], at.parity);
    for (int step = 0; step < steps; ++step) {
        if (!filled) wait_for(&ring.full[at.stage], at.parity);
        const typename S::Factors& factors = ring.factors[at.stage];
        const uint32_t narrow = reading.narrow, wide = reading.wide;
        Barrier* const empty = &ring.empty[at.stage];
        reading.advance();
        float scale[S::kTiles];
#pragma unroll
        for (int i = 0; i < S::kTiles; ++i) scale[i] = factors.wide[part + i];
#pragma unroll
        for (int i = 0; i < S::kTiles; ++i) {
            float block[V::kGroups][4];
            begin_multiplications();
#pragma unroll
            for (int k = 0; k < kStep; k += kWgmmaK)
                multiply_async(block, further(wide, i * kWgmmaRows * kStep + k), further(narrow, k), k > 0);
            commit_multiplications();
            wait_for_multiplications<0>();
            // Asked for while the sums are added. After the last block it is about the next tile's first.
            if (i + 1 == S::kTiles) filled = completed(&ring.full[at.stage], at.parity);
            add_scaled<V>(sums[i], block, factors.narrow, scale[i]);
        }
        // Closes: all lanes have read the scales, and the warp's multiplications have read the operands.
        __syncwarp();
        arrive_if(lane == 0, empty);
    }
}

// 16-bit: one sum over k, by the instructions themselves. Those of a step run while the next one's begin.
template <class V, class S>
__device__ inline void multiply_half(typename S::Memory& ring, int steps, Reading<S>& reading, TileSums<V>& sums) {
    const int lane = threadIdx.x % kWarp;
    clear(sums);
    const Position<S::kStages>& at = reading.at;
    Barrier* before = nullptr;
    for (int step = 0; step < steps; ++step) {
        wait_for(&ring.full[at.stage], at.parity);
        const uint32_t narrow = reading.narrow, wide = reading.wide;
        Barrier* const empty = &ring.empty[at.stage];
        reading.advance();
        begin_multiplications();
#pragma unroll
        for (int k = 0; k < kStep; k += kWgmmaK) {
#pragma unroll
            for (int i = 0; i < S::kTiles; ++i) {
                const uint32_t a = further(wide, i * kWgmmaRows * kStep + k), b = further(narrow, k);
                if constexpr (S::kind == kBf16) multiply_bf16_async(sums[i], a, b, true);
                else multiply_f16_async(sums[i], a, b, true);
            }
        }
        commit_multiplications();
        // Closes: the multiplications of the step before have read its stage.
        wait_for_multiplications<1>();
        if (before) arrive_if(lane == 0, before);
        before = empty;
    }
    wait_for_multiplications<0>();
    arrive_if(lane == 0, before);
}

template <class V, class S>
__device__ inline void make_tile(typename S::All& shared, const Args& a, const Launch& launch, const Tile& tile,
                                 Reading<S>& reading) {
    TileSums<V> sums;
    if constexpr (S::kind == kScaled) multiply_scaled<V, S>(shared.ring, launch.steps, reading, sums);
    else multiply_half<V, S>(shared.ring, launch.steps, reading, sums);
    const int64_t first = int64_t(tile.piece) * S::kWide, end = first + S::kWide;
    scaled::store_tile<V>(shared.ring.staging, gemm_of(a, tile.expert, tile.end), sums,
                          OwnTile{first, end < a.n ? end : a.n, tile.row, 0, V::kGroups});
}

template <int index, Kind kind>
__global__ __launch_bounds__(Shape<index, kind>::kThreads, Shape<index, kind>::form.slots) void grouped_gemm_tiles(
    Args a, const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap rows, Launch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = Shape<index, kind>;
    auto& shared = dynamic_shared<typename S::All>();
    if (threadIdx.x == 0) start_ring<S>(shared.ring, &weights, &rows, 0, 1);
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may read what the previous kernel writes
    // Its barriers close: mbarriers are used below by threads that did not initialise them.
    make_walk<S::kNarrow>(shared.beside.walk, a);
    launch.tiles = tiles_of(shared.beside.walk, int(a.groups), launch.pieces);
    const int warp = threadIdx.x / kWarp;
    if (warp < kWarpgroup / kWarp) {
        if constexpr (S::kManyRegisters > 0) leave_registers<S::kFewRegisters>();
        if (warp == 0) feed_operands<S>(shared, a, &weights, &rows, launch);
        else if constexpr (kind == kScaled) feed_scales<S>(shared, a, launch);
    } else {
        if constexpr (S::kManyRegisters > 0) take_registers<S::kManyRegisters>();
        Reading<S> reading(shared.ring);
        for (int t = blockIdx.x; t < launch.tiles; t += gridDim.x) {
            const Tile tile = tile_at<S::kNarrow>(shared.beside.walk, int(a.groups), launch.pieces, t);
            const int live = tile.end - tile.row;
            if constexpr (S::kNarrow == 128) {
                if (live <= 32) make_tile<Fewer<S, 4>, S>(shared, a, launch, tile, reading);
                else if (live <= 64) make_tile<Fewer<S, 8>, S>(shared, a, launch, tile, reading);
                else make_tile<S, S>(shared, a, launch, tile, reading);
            } else {
                make_tile<S, S>(shared, a, launch, tile, reading);
            }
        }
    }
#endif
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
