// The kernel for Hopper: the multiplying warpgroups, and the whole. See block_scaled_gemm.cu.
#pragma once

#include "../../common/gemm/cuda/kernel.h"
#include "feed.h"
#include "store.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

// Scales of a thread's two wide rows: of rows that multiply narrow rows with own scales, or times the scale of either
// block of narrow rows in which the tile lies.
template <class S>
struct ThreadScales {
    float of[S::kTwoBlocks ? 2 : 1][2];

    __device__ void read(const typename S::Factors& f, int row) {
        of[0][0] = f.wide[row], of[0][1] = f.wide[row + 8];
        if constexpr (!S::kSwapped) {
            const float2 blocks = *reinterpret_cast<const float2*>(f.narrow);
            if constexpr (S::kTwoBlocks) of[1][0] = of[0][0] * blocks.y, of[1][1] = of[0][1] * blocks.y;
            of[0][0] *= blocks.x, of[0][1] *= blocks.x;
        }
    }
};

// sums += scales * block, of one tile of 64 wide rows. Groups from kBeyond on lie in the next block of narrow rows.
template <class S, int kBeyond>
__device__ inline void add_scaled(float (&sums)[S::kGroups][4], const float (&block)[S::kGroups][4],
                                  const ThreadScales<S>& s, const float* narrow, int t) {
#pragma unroll
    for (int i = 0; i < S::kGroups; ++i) {
        const float (&v)[2] = s.of[S::kTwoBlocks && i >= kBeyond];
        float scale[4] = {v[0], v[0], v[1], v[1]};
        if constexpr (S::kSwapped) {
            const float2 own = *reinterpret_cast<const float2*>(narrow + 8 * i + 2 * t);
            scale[0] *= own.x, scale[1] *= own.y, scale[2] *= own.x, scale[3] *= own.y;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][e] = __fmaf_rn(scale[e], block[i][e], sums[i][e]);
    }
}

// A tile's sums over this CTA's part of K.
template <class S, int kBeyond>
__device__ inline void multiply_tile(typename S::Memory& shared, const Part& part, Reading<S>& reading,
                                     TileSums<S>& sums) {
    const int lane = threadIdx.x % kWarp, t = lane % 4;
#pragma unroll
    for (auto& tile : sums)
        for (auto& group : tile)
            for (float& v : group) v = 0;
    const Position<S::kStages>& at = reading.at;
    bool filled = completed(&shared.full[at.stage], at.parity);
    for (int step = 0; step < part.count; ++step) {
        if (!filled) wait_for(&shared.full[at.stage], at.parity);
        const typename S::Factors& factors = shared.factors[at.stage];
        const uint32_t narrow = reading.narrow, wide = reading.wide;
        Barrier* const empty = &shared.empty[at.stage];
        reading.advance();
        // Read before the multiplications begin: the compiler would read them between two of these.
        ThreadScales<S> scales[S::kTiles];
#pragma unroll
        for (int i = 0; i < S::kTiles; ++i) scales[i].read(factors, reading.row + i * kWgmmaRows);
#pragma unroll
        for (int i = 0; i < S::kTiles; ++i) {
            float block[S::kGroups][4];
            begin_multiplications();
#pragma unroll
            for (int k = 0; k < kBlock; k += kWgmmaK) {
                multiply_async(block, further(wide, i * kWgmmaRows * kBlock + k), further(narrow, k), k > 0);
            }
            commit_multiplications();
            wait_for_multiplications<0>();
            if (i + 1 == S::kTiles) {
                if (!S::kSwapped) {
                    // Barrier: all lanes have read their scales, and the warp's multiplications have read the operands.
                    __syncwarp();
                    arrive_if(lane == 0, empty);
                }
                // Asked for while the sums are added. After the last block it is about the next tile's first.
                filled = completed(&shared.full[at.stage], at.parity);
            }
            add_scaled<S, kBeyond>(sums[i], block, scales[i], factors.narrow, t);
        }
        if (S::kSwapped) {
            // Barrier: the same, of the narrow rows' scales.
            __syncwarp();
            arrive_if(lane == 0, empty);
        }
    }
}

// The same where the boundary between blocks of narrow rows is known at run time: a copy of the loop for each.
template <class S, int kBeyond = S::kGroups>
__device__ inline void multiply_tile_at(int beyond, typename S::Memory& shared, const Part& part, Reading<S>& reading,
                                        TileSums<S>& sums) {
    constexpr int kApart = S::kTwoBlocks ? (S::kNarrow & -S::kNarrow) / 8 : S::kGroups;
    if constexpr (kBeyond > kApart) {
        if (beyond < kBeyond) return multiply_tile_at<S, kBeyond - kApart>(beyond, shared, part, reading, sums);
    }
    multiply_tile<S, kBeyond>(shared, part, reading, sums);
}

template <int index>
__global__ __launch_bounds__(Shape<index>::kThreads, Shape<index>::form.slots) void block_scaled_gemm_tiles(
    Args a, const __grid_constant__ CUtensorMap wide, const __grid_constant__ CUtensorMap narrow, Tiling tiling) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = Shape<index>;
    using Memory = typename S::Memory;
    const auto feed_more = [&](Memory& shared, const Part& part) {
        wait_for_previous_kernel();
        feed_scales<S>(shared, a, tiling, part);
    };
    const auto multiply = [&](Memory& shared, const Part& part, Reading<S>& reading, int first_narrow,
                              TileSums<S>& sums) {
        // Narrow groups from there on lie in the next block of 128 columns.
        multiply_tile_at<S>((kBlock - first_narrow % kBlock) / 8, shared, part, reading, sums);
    };
    const auto store = [&](Memory& shared, TileSums<S>& sums, const OwnTile& tile) {
        store_tile<S>(shared.staging, a, sums, tile);
    };
    run<S, float>(a.k, a.constant_b, &wide, &narrow, tiling, feed_more, multiply, store);
#endif
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
