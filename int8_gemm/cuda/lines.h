// What a tile's rows and columns bring to the epilogue, in shared memory before its sums are complete; and the epilogue
// of sums that are in registers.
#pragma once

#include "../../common/cuda/pdl.h"
#include "../../common/gemm/cuda/ring.h"
#include "finish.h"
#include "forms.h"

namespace rocm_fp8::int8_gemm::cuda {
namespace {

using namespace tiles;

template <int index>
using Shape = tiles::Ring<kForms[index], Nothing, 0, 1, Lines<kForms[index]>>;
template <class S>
using TileSums = int32_t[S::kTiles][S::kGroups][4];

// A row that all rows of the result add.
__device__ inline bool adds_a_row(const Epilogue& e) { return e.addend.data && e.addend.row_stride == 0; }

// By the helping warps: of each tile of the CTA, while it is multiplied.
template <class S>
__device__ inline void feed_lines(typename S::Memory& shared, const Args& a, const Tiling& tiling) {
    using L = typename S::OfTile;
    const Epilogue& e = a.epilogue;
    const int thread = threadIdx.x - kWarp, lane = threadIdx.x % kWarp;
    wait_for_previous_kernel();
    const bool adds = adds_a_row(e);
    const float beta = scale_at(e.addend.beta, 0, 0);
    Position<2> at;
    bool refills = false;
    for (Tiles tiles(tiling); tiles.left(); tiles.advance()) {
        const gemm::TileAt tile = tiling.at(tiles.next);
        const int64_t wide = tiling.first_row(tile.down), narrow = int64_t(tile.across) * S::kNarrow;
        const int64_t first_row = S::kSwapped ? narrow : wide, first_column = S::kSwapped ? wide : narrow;
        // Barrier: the lines of the tile before the last have been read.
        if (refills) wait_for(&shared.of_tiles.empty[at.stage], at.parity ^ 1);
        L& lines = shared.of_tiles.parts[at.stage];
        for (int i = thread; i < L::kRows && first_row + i < a.m; i += kHelperThreads) {
            lines.scales_of_rows[i] = scale_at(e.scale_a, 0, first_row + i);
            lines.zeros[i] = integer_at(e.zero_a, 0, first_row + i);
        }
        for (int i = thread; i < L::kColumns && first_column + i < a.n; i += kHelperThreads) {
            const int64_t n = first_column + i;
            lines.scales_of_columns[i] = scale_at(e.scale_b, 0, n);
            lines.sums[i] = integer_at(e.sum_b, 0, n);
            // -0 changes no number that it is added to.
            lines.addends[i] = adds ? beta * addend_at(e.addend, 0, 0, n) : -0.0f;
        }
        __syncwarp();
        arrive_if(lane == 0, &shared.of_tiles.full[at.stage]);
        at.advance();
        refills |= at.stage == 0;
    }
}

// Whether finish_sums computes it: what is left are long texts, and addends for each number.
__device__ inline bool finishes_in_registers(const Epilogue& e) {
    return !bends(e.activation) && !e.divides && (!e.addend.data || adds_a_row(e));
}

// Bits of float32 results in place of the sums.
template <class S, bool zero_points>
__device__ inline void finish_sums(const Args& a, const typename S::OfTile& lines, TileSums<S>& sums) {
    const int thread = threadIdx.x - kWarpgroup, g = thread % kWarp / 4, t = thread % 4;
    const int first = thread / kWarpgroup * S::kTiles * kWgmmaRows + thread / kWarp % 4 * 16 + g;
    // Nothing is below the floor without ReLU; NaN and -0 never are.
    const float floor = a.epilogue.activation == Activation::relu ? 0.0f : -bits_float(0x7F800000u);
    const float* const wide_scales = S::kSwapped ? lines.scales_of_columns : lines.scales_of_rows;
    const float* const narrow_scales = S::kSwapped ? lines.scales_of_rows : lines.scales_of_columns;
    const int32_t* const wide_factors = S::kSwapped ? lines.sums : lines.zeros;
    const int32_t* const narrow_factors = S::kSwapped ? lines.zeros : lines.sums;
    float scales[S::kTiles][2], addends[S::kTiles][2];
    int32_t factors[S::kTiles][2];
#pragma unroll
    for (int i = 0; i < S::kTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int of = first + i * kWgmmaRows + 8 * half;
            scales[i][half] = wide_scales[of];
            factors[i][half] = zero_points ? wide_factors[of] : 0;
            addends[i][half] = S::kSwapped ? lines.addends[of] : 0;
        }
    }
#pragma unroll
    for (int j = 0; j < S::kGroups; ++j) {
        const int of = 8 * j + 2 * t;
        const float2 scale = *reinterpret_cast<const float2*>(narrow_scales + of);
        float2 addend = {0, 0};
        if constexpr (!S::kSwapped) addend = *reinterpret_cast<const float2*>(lines.addends + of);
        int2 factor = {0, 0};
        if constexpr (zero_points) factor = *reinterpret_cast<const int2*>(narrow_factors + of);
#pragma unroll
        for (int i = 0; i < S::kTiles; ++i) {
#pragma unroll
            for (int at = 0; at < 4; ++at) {
                int32_t& v = sums[i][j][at];
                const float wide = scales[i][at / 2], narrow = at % 2 ? scale.y : scale.x;
                const float p = zero_points ? product(v, factors[i][at / 2], at % 2 ? factor.y : factor.x) : product(v);
                float finished = S::kSwapped ? scaled(p, narrow, wide) : scaled(p, wide, narrow);
                finished = finished + (S::kSwapped ? addends[i][at / 2] : at % 2 ? addend.y : addend.x);
                finished = finished < floor ? 0.0f : finished;
                v = int32_t(__float_as_uint(finished));
            }
        }
    }
}

// Two neighbours of a row in the result's type, from the bits of float32 numbers.
template <int kSize>
__device__ inline void put_pair(char* place, DType type, int32_t first, int32_t second) {
    const float a = bits_float(uint32_t(first)), b = bits_float(uint32_t(second));
    if constexpr (kSize == 4) {
        *reinterpret_cast<float2*>(place) = {one_nan(a), one_nan(b)};
    } else if constexpr (kSize == 2) {
        uint32_t pair = gemm::rounded_pair(type, {a, b});
        if (!(a == a && b == b)) pair = rounded(type, a) | rounded(type, b) << 16;
        *reinterpret_cast<uint32_t*>(place) = pair;
    } else {
        *reinterpret_cast<uint16_t*>(place) = uint16_t(uint8_t(to_int8(a)) | uint8_t(to_int8(b)) << 8);
    }
}

}  // namespace
}  // namespace rocm_fp8::int8_gemm::cuda
