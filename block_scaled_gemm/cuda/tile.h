// The kernel for Hopper: the multiplying warpgroups, and the whole. See block_scaled_gemm.cu.
#pragma once

#include "../../common/gemm/cuda/kernel.h"
#include "feed.h"
#include "store.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

// Scales of a thread's two wide rows: of rows that multiply narrow rows with own scales, or times the scale of either
// block of narrow rows in which the tile lies. Groups from kBeyond on lie in the next one.
template <class S, int kBeyond>
struct BlockFactors {
    static constexpr int kRanges = S::kTwoBlocks ? 2 : 1;
    static constexpr __device__ int range_of(int group) { return S::kTwoBlocks && group >= kBeyond; }

    __device__ void read(float (&of)[kRanges][2], const typename S::Factors& f, int row, int) const {
        of[0][0] = f.wide[row], of[0][1] = f.wide[row + 8];
        if constexpr (!S::kSwapped) {
            const float2 blocks = *reinterpret_cast<const float2*>(f.narrow);
            if constexpr (S::kTwoBlocks) of[1][0] = of[0][0] * blocks.y, of[1][1] = of[0][1] * blocks.y;
            of[0][0] *= blocks.x, of[0][1] *= blocks.x;
        }
    }
    __device__ const float* narrow(const typename S::Factors& f) const { return f.narrow; }
};

// A tile's sums over this CTA's part of K. The boundary between blocks of narrow rows is known at run time: a copy of the
// loop for each.
template <class S, int kBeyond = S::kGroups>
__device__ inline void multiply_tile_at(int beyond, typename S::Memory& shared, const Part& part, Reading<S>& reading,
                                        TileSums<S>& sums) {
    constexpr int kApart = S::kTwoBlocks ? (S::kNarrow & -S::kNarrow) / 8 : S::kGroups;
    if constexpr (kBeyond > kApart) {
        if (beyond < kBeyond) return multiply_tile_at<S, kBeyond - kApart>(beyond, shared, part, reading, sums);
    }
    multiply_blocks<S, S>(shared, part.count, reading, Operands<S, S>(0), BlockFactors<S, kBeyond>{}, sums);
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
