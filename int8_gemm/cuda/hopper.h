// The kernel for Hopper: TMA, wgmma with sums in int32. Tiles, ring and split-K: common/cuda/tiles. See int8_gemm.cu.
#pragma once

#include "../../common/cuda/tiles/kernel.h"
#include "../../common/cuda/tiles/staging.h"
#include "finish.h"
#include "forms.h"

namespace rocm_fp8::int8_gemm::cuda {
namespace {

using namespace tiles;

struct Nothing {};  // beside the operands in a stage

template <int index>
using Shape = tiles::Ring<kForms[index], Nothing, 0, 1>;
template <class S>
using TileSums = int32_t[S::kTiles][S::kGroups][4];

// A tile's sums over this CTA's part of K. A step's multiplications are issued before those of the last have ended.
template <class S>
__device__ inline void multiply_tile(typename S::Memory& shared, const Part& part, Reading<S>& reading,
                                     TileSums<S>& sums) {
    const int lane = threadIdx.x % kWarp;
    Barrier* last = nullptr;
    for (int step = 0; step < part.count; ++step) {
        const Position<S::kStages> at = reading.at;
        const uint32_t narrow = reading.narrow, wide = reading.wide;
        wait_for(&shared.full[at.stage], at.parity);
        begin_multiplications();
#pragma unroll
        for (int k = 0; k < kStep; k += kWgmmaK) {
#pragma unroll
            for (int i = 0; i < S::kTiles; ++i) {
                multiply_async(sums[i], further(wide, i * kWgmmaRows * kStep + k), further(narrow, k),
                               step > 0 || k > 0);
            }
        }
        commit_multiplications();
        reading.advance();
        // Closes: the step before has read its operands.
        wait_for_multiplications<1>();
        if (step > 0) arrive_if(lane == 0, last);
        last = &shared.empty[at.stage];
    }
    // Closes: the sums are complete.
    wait_for_multiplications<0>();
    arrive_if(lane == 0, last);
}

// Rows of the result, wide or narrow ones, from sums that lie in shared memory: four columns a lane.
template <class S, bool may_bend>
__device__ inline void store_tile(char* staging, const Args& a, const TileSums<S>& sums, const OwnTile& tile) {
    if constexpr (S::kSwapped) {
        constexpr int kEach = 4;
        const int thread = threadIdx.x - kWarpgroup;
        const int64_t n = tile.first + thread / kWarpgroup * kWgmmaRows + thread % (kWgmmaRows / kEach) * kEach;
        const bool inside = n < tile.end;
        const Quad quad(a, 0, inside ? n : 0);
        pass_columns<S>(staging, sums[0], kEach, [&](const int32_t* staged, int row, int group) {
            const int64_t m = tile.first_narrow + row;
            if (group < tile.from || group >= tile.to || m >= a.m || !inside) return;
            quad.template store<may_bend>(a, m, *reinterpret_cast<const int4*>(staged));
        });
    } else {
        const auto put = [](char* place, int32_t first, int32_t second) {
            *reinterpret_cast<int2*>(place) = {first, second};
        };
        pass_rows<S, 4>(staging, sums, put, [&](const char* staged, int row, int group, int column) {
            const int64_t m = tile.first + row, n = tile.first_narrow + column;
            if (group < tile.from || group >= tile.to || n >= a.n) return;
            const Quad quad(a, 0, n);
            [[maybe_unused]] constexpr int kAtOnce = may_bend ? 1 : 4;
#pragma unroll kAtOnce
            for (int r = 0; r < kPassedRows; r += kPassedStep) {
                if (m + r < tile.end) {
                    quad.template store<may_bend>(a, m + r, *reinterpret_cast<const int4*>(staged + r * kPassedRow<4>));
                }
            }
        });
    }
}

template <int index>
__global__ __launch_bounds__(Shape<index>::kThreads, Shape<index>::form.slots) void int8_gemm_forms(
    Args a, const __grid_constant__ CUtensorMap wide, const __grid_constant__ CUtensorMap narrow, Cut cut) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = Shape<index>;
    using Memory = typename S::Memory;
    const auto multiply = [](Memory& shared, const Part& part, Reading<S>& reading, int, TileSums<S>& sums) {
        multiply_tile<S>(shared, part, reading, sums);
    };
    const auto store = [&](Memory& shared, TileSums<S>& sums, const OwnTile& tile) {
        if (bends(a.epilogue.activation)) store_tile<S, true>(shared.staging, a, sums, tile);
        else store_tile<S, false>(shared.staging, a, sums, tile);
    };
    run<S, int32_t>(a.k, a.constant_b, &wide, &narrow, cut, [](Memory&, const Part&) {}, multiply, store);
#endif
}

}  // namespace
}  // namespace rocm_fp8::int8_gemm::cuda
