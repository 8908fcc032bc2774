// The kernel for Hopper: TMA, wgmma with sums in int32. Tiles, ring and split-K: common/gemm/cuda. See int8_gemm.cu.
#pragma once

#include "../../common/gemm/cuda/kernel.h"
#include "../../common/gemm/cuda/staging.h"
#include "lines.h"

namespace rocm_fp8::int8_gemm::cuda {
namespace {

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
        // Barrier: the step before has read its operands.
        wait_for_multiplications<1>();
        if (step > 0) arrive_if(lane == 0, last);
        last = &shared.empty[at.stage];
    }
    // Barrier: the sums are complete.
    wait_for_multiplications<0>();
    arrive_if(lane == 0, last);
}

// Rows of the result from sums that lie in shared memory: four columns a lane.
template <class S, bool may_bend>
__device__ inline void store_quads(char* staging, const Args& a, const typename S::OfTile& lines,
                                   const TileSums<S>& sums, const OwnTile& tile) {
    const int64_t first_column = S::kSwapped ? tile.first : tile.first_narrow;
    const auto column = [&](int64_t n) {
        return Column(lines.scales_of_columns[n - first_column], lines.sums[n - first_column]);
    };
    const auto row_of = [&](int row) { return Row(lines.scales_of_rows[row], lines.zeros[row]); };
    if constexpr (S::kSwapped) {
        constexpr int kEach = 4;
        const int thread = threadIdx.x - kWarpgroup;
        const int64_t n = tile.first + thread / kWarpgroup * kWgmmaRows + thread % (kWgmmaRows / kEach) * kEach;
        const bool inside = n < tile.end;
        const Quad quad(a, 0, inside ? n : tile.first, column);
        pass_columns<S>(staging, sums[0], kEach, [&](const int32_t* staged, int row, int group) {
            const int64_t m = tile.first_narrow + row;
            if (group < tile.from || group >= tile.to || m >= a.m || !inside) return;
            quad.template store<may_bend>(a, m, row_of(row), *reinterpret_cast<const int4*>(staged));
        });
    } else {
        const auto put = [](char* place, int32_t first, int32_t second) {
            *reinterpret_cast<int2*>(place) = {first, second};
        };
        pass_rows<S, 4>(staging, sums, put, [&](const char* staged, int row, int group, int own) {
            const int64_t m = tile.first + row, n = tile.first_narrow + own;
            if (group < tile.from || group >= tile.to || n >= a.n) return;
            const Quad quad(a, 0, n, column);
#pragma unroll 1
            for (int r = 0; r < kPassedRows; r += kPassedStep<S>) {
                if (m + r >= tile.end) break;
                const int4 acc = *reinterpret_cast<const int4*>(staged + r * kPassedRow<S, 4>);
                quad.template store<may_bend>(a, m + r, row_of(row + r), acc);
            }
        });
    }
}

template <class S, int kSize>
__device__ inline void store_finished(char* staging, const Args& a, const TileSums<S>& sums, const OwnTile& tile) {
    const Output& out = a.epilogue.out;
    const bool vectors = (reinterpret_cast<uintptr_t>(out.data) | uint64_t(out.row_stride) * kSize) % 16 == 0;
    const auto put = [&](char* place, int32_t first, int32_t second) {
        put_pair<kSize>(place, out.dtype, first, second);
    };
    auto* const to = static_cast<char*>(out.data);
    if constexpr (S::kSwapped) {
        store_columns<S, kSize>(staging, sums[0], put, to, out.row_stride * kSize, vectors, a.m, tile);
    } else {
        store_rows<S, kSize>(staging, sums, put, to, out.row_stride * kSize, vectors, a.n, tile);
    }
}

template <class S>
__device__ inline void store_tile(char* staging, const Args& a, const typename S::OfTile& lines, TileSums<S>& sums,
                                  const OwnTile& tile) {
    const Epilogue& e = a.epilogue;
    if (finishes_in_registers(e)) {
        if (e.zero_a.data) finish_sums<S, true>(a, lines, sums);
        else finish_sums<S, false>(a, lines, sums);
        const int size = size_of_result(e.out.dtype);
        if (size == 2) store_finished<S, 2>(staging, a, sums, tile);
        else if (size == 1) store_finished<S, 1>(staging, a, sums, tile);
        else store_finished<S, 4>(staging, a, sums, tile);
        return;
    }
    if (bends(e.activation)) store_quads<S, true>(staging, a, lines, sums, tile);
    else store_quads<S, false>(staging, a, lines, sums, tile);
}

template <int index>
__global__ __launch_bounds__(Shape<index>::kThreads, Shape<index>::form.slots) void int8_gemm_forms(
    Args a, const __grid_constant__ CUtensorMap wide, const __grid_constant__ CUtensorMap narrow, Tiling tiling) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = Shape<index>;
    using Memory = typename S::Memory;
    const auto multiply = [](Memory& shared, const Part& part, Reading<S>& reading, int, TileSums<S>& sums) {
        multiply_tile<S>(shared, part, reading, sums);
    };
    Position<2> at;
    const auto feed_more = [&](Memory& shared, const Part&) { feed_lines<S>(shared, a, tiling); };
    const auto store = [&](Memory& shared, TileSums<S>& sums, const OwnTile& tile) {
        wait_for(&shared.of_tiles.full[at.stage], at.parity);
        store_tile<S>(shared.staging, a, shared.of_tiles.parts[at.stage], sums, tile);
        __syncwarp();
        arrive_if(threadIdx.x % kWarp == 0, &shared.of_tiles.empty[at.stage]);
        at.advance();
    };
    run<S, int32_t>(a.k, a.constant_b, &wide, &narrow, tiling, feed_more, multiply, store);
#endif
}

}  // namespace
}  // namespace rocm_fp8::int8_gemm::cuda
