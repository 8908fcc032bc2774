// SwiGLU and quantisation in the epilogue of the tiles of tile.h: the product is never in memory.
//
//     weights of a stage   8 gates, the 8 ups of the same hidden values, 8 gates, ...: a thread has both of a value
//     each turn            sums --> rounded product --> gated values, in registers --> shared memory
//     after the last one   rows of 128 hidden values --> groups' scales, FP8
//
// The steps are those of the product's launch and of ../gpu.h's pass, by the same functions, so that the bytes are theirs.
#pragma once

#include "../../swiglu_fp8/gpu.h"
#include "tile.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

// What the epilogue needs beside Args.
struct Gating {
    QuantizedRows to;
    float limit;
    DType type;  // of the product and of gated values: the launcher's choice of the kernel
};

// Of narrow weights: the column of the product of the n-th one, from the hidden value `first` on, of `hidden`.
__device__ inline int64_t column_of_narrow(int64_t first, int64_t n, int64_t hidden) {
    const int64_t in_turn = n % (2 * kEachHalf);
    return first + n / (2 * kEachHalf) * kEachHalf + in_turn % kEachHalf + (in_turn < kEachHalf ? 0 : hidden);
}

// Scales of channels, which are multiplied in after the sum. first: the first hidden value of the sums.
template <class V>
__device__ inline void scale_channels(TileSums<V>& sums, const block_scaled_gemm::Args& one, int64_t first) {
    const int64_t hidden = one.n / 2;
    if constexpr (V::kSwapped) {
        const int64_t own = first + threadIdx.x / kWarp % 4 * kEachHalf + threadIdx.x % kWarp / 4;
        const float gate = scaled::scale_of_channel(one, own), up = scaled::scale_of_channel(one, own + hidden);
#pragma unroll
        for (float (&v)[4] : sums[0]) v[0] *= gate, v[1] *= gate, v[2] *= up, v[3] *= up;
    } else {
        const scaled::OfNarrowColumns<V> scales(0, [&](int64_t n) {
            return scaled::scale_of_channel(one, column_of_narrow(first, n < V::kNarrow ? n : 0, hidden));
        });
        scales.each(sums, [](float v, float scale) { return v * scale; });
    }
}

// The gated values of a thread's sums, to its rows in shared memory; `row`: of its sums there; column: of the first
// hidden value.
template <class V, DType type>
__device__ inline void park(const TileSums<V>& sums, float limit, char* parked, int row, int column) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const swiglu::Gated<type> source{nullptr, 0, 0, limit};
    const auto rounded = [](float first, float second) { return Pairs<type>::round_any_nan({first, second}); };
    const auto place = [&](int r, int c) { return parked + (row + r) * kParkedRow + (column + c) * 2; };
    if constexpr (V::kSwapped) {
        // A group is of eight rows, of which the thread has two, of one hidden value.
#pragma unroll
        for (int first = 0; first < V::kGroups; first += kEight / 2) {
            typename swiglu::Gated<type>::Loaded two{};
#pragma unroll
            for (int i = 0; i < kEight / 2 && first + i < V::kGroups; ++i) {
                const float (&v)[4] = sums[0][first + i];
                word(two.gate, i) = rounded(v[0], v[1]), word(two.up, i) = rounded(v[2], v[3]);
            }
            const Eight<type> y = source.values(two);
#pragma unroll
            for (int i = 0; i < kEight / 2 && first + i < V::kGroups; ++i) {
                const int r = 8 * (first + i) + 2 * t;
                *reinterpret_cast<uint16_t*>(place(r, g)) = uint16_t(y.pair(i));
                *reinterpret_cast<uint16_t*>(place(r + 1, g)) = uint16_t(y.pair(i) >> 16);
            }
        }
    } else {
        // Of two neighbouring groups one has gates and one their ups; the thread has two of two rows each.
#pragma unroll
        for (int first = 0; first < V::kGroups; first += 4) {
            typename swiglu::Gated<type>::Loaded two;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float (&gate)[4] = sums[0][first + 2 * i], (&up)[4] = sums[0][first + 2 * i + 1];
                word(two.gate, 2 * i) = rounded(gate[0], gate[1]),
                                   word(two.gate, 2 * i + 1) = rounded(gate[2], gate[3]);
                word(two.up, 2 * i) = rounded(up[0], up[1]), word(two.up, 2 * i + 1) = rounded(up[2], up[3]);
            }
            const Eight<type> y = source.values(two);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int c = (first / 2 + i) * kEachHalf + 2 * t;
                *reinterpret_cast<uint32_t*>(place(g, c)) = y.pair(2 * i);
                *reinterpret_cast<uint32_t*>(place(g + 8, c)) = y.pair(2 * i + 1);
            }
        }
    }
}

// By kThreads threads, of whole warps: `rows` rows that lie in shared memory; `first`: the first one's place in the
// result, column: of its first hidden value.
template <DType type, int kThreads>
__device__ inline void quantize_parked(const QuantizedRows& to, const char* parked, int rows, int64_t first,
                                       int64_t column, int thread) {
    constexpr int kVectors = kMostHidden / kEight, kAtOnce = kThreads / kVectors;
    const bool computed = !to.scale;
    const float bound = computed ? upper_bound(to.dynamic) : 0.0f;
    QuantizationScale given;
    if (!computed) given = QuantizationScale(load_scalar(to.scale));
    const int vector = thread % kVectors;
    const uint32_t at = uint32_t(column) / kEight + vector;
    // All lanes of a warp take part in a group's maximum, those of rows beyond the last too.
    for (int base = 0; base < rows; base += kAtOnce) {
        const int r = base + thread / kVectors;
        const Eight<type> y{{*reinterpret_cast<const uint4*>(parked + r * kParkedRow + vector * 16)}};
        const EightBytes q =
            computed ? quantized_in_group(y, to.dynamic, bound, first + r, at, r < rows) : y.quantized(given);
        if (r < rows) store_at(offset(to.out, (first + r) * to.stride + int64_t(at) * kEight), q);
    }
}

// A tile of rows, all of its turns. V: S, or Half.
template <class V, class S, DType type>
__device__ inline void make_gated(typename S::All& shared, const Args& a, const Gating& gating, const Launch& launch,
                                  const Tile& tile, int warpgroup, Reading<S>& reading) {
    constexpr bool kHalf = Operands<V, S>::kHalf;
    const Operands<V, S> operands(warpgroup);
    const block_scaled_gemm::Args one = gemm_of(a, tile.expert, tile.end);
    // Known to be the warp's: a loop over rows counts by it, and the main loop's descriptors stay in uniform registers.
    const int thread = threadIdx.x - kWarpgroup, warp = known_uniform(thread / kWarp % 4);
    char* const parked = S::parked(shared);
    const int64_t column = int64_t(tile.piece) * kMostHidden;
    const int live = min(tile.end - tile.row, S::kRows);
    const int row = S::kSwapped ? 0 : (kHalf ? 0 : warpgroup * kWgmmaRows) + warp * 16;
    const int own = S::kSwapped ? warp * kEachHalf : kHalf ? warpgroup * V::kNarrow / 2 : 0;
#pragma unroll 1
    for (int turn = 0; turn < S::kTurns; ++turn) {
        TileSums<V> sums;
        multiply_blocks<V, S>(shared.ring, launch.steps, reading, operands, ExpertFactors<S>{}, sums);
        const int first = turn * S::kOfTurn;
        if (scaled::at_the_end(one.scale_b)) scale_channels<V>(sums, one, column + first + (S::kSwapped ? 0 : own));
        park<V, type>(sums, gating.limit, parked, row, first + own);
    }
    if constexpr (S::kSwapped || kHalf) {
        constexpr int kMeeting = 1, kThreads = S::kConsumers;
        // Barrier: values are read by other warps than wrote them.
        warpgroups_meet<kThreads>(kMeeting);
        quantize_parked<type, kThreads>(gating.to, parked, live, tile.row, column, thread);
        // Barrier: the next tile's values take the place of these.
        warpgroups_meet<kThreads>(kMeeting);
    } else {
        // Barrier: values are read by other lanes than wrote them.
        __syncwarp();
        quantize_parked<type, kWarp>(gating.to, parked + row * kParkedRow, min(live - row, 16), tile.row + row, column,
                                     thread % kWarp);
        // Barrier: the next tile's values take the place of these.
        __syncwarp();
    }
}

// FP8 operands; type: the product's and the gated values'.
template <int index, DType type>
__global__ __launch_bounds__(Shape<index, kScaled, true>::kThreads, Shape<index, kScaled, true>::form.slots) void
grouped_gemm_gated(Args a, const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap rows,
                   Launch launch, Gating gating) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = Shape<index, kScaled, true>;
    static_assert(S::kTiles == 1);
    const auto make = [&](typename S::All& shared, const Launch& own, const Tile& tile, int warpgroup,
                          Reading<S>& reading) {
        if constexpr (!S::kSwapped) {
            if (filled(tile) == 1) {
                make_gated<Half<S>, S, type>(shared, a, gating, own, tile, warpgroup, reading);
                return;
            }
        }
        make_gated<S, S, type>(shared, a, gating, own, tile, warpgroup, reading);
    };
    make_tiles<S>(a, &weights, &rows, launch, make);
#endif
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
