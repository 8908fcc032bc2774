// From a warpgroup's sums to the result: through shared memory, so that lanes finish four neighbouring columns each and
// store whole sectors. Scales of channels, bias and rounding come last.
#pragma once

#include "../../common/cuda/wgmma.h"
#include "../../common/gemm/scales.h"
#include "scales.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

// Finishes four columns of the result from n on; what lies beyond the last is not stored.
class FourColumns {
    static constexpr int kCount = 4;
    const gemm::Output& out_;
    int64_t n_, count_;
    float scale_[kCount], bias_[kCount];
    bool adds_, vectors_;

  public:
    __device__ FourColumns(const Args& a, int64_t n, int64_t end)
        : out_(a.out), n_(n), count_(end - n), adds_(a.bias.data != nullptr) {
        const bool of_channels = at_the_end(a.scale_b);
        const BlockScales scales(a.scale_b, 0);
        for (int i = 0; i < kCount; ++i) {
            const bool inside = i < count_;
            scale_[i] = inside && of_channels ? scales.at(scales.place(n + i)) : 1;
            bias_[i] = inside ? gemm::bias_at(a.bias, n + i) : 0;
        }
        const int size = out_.dtype == DType::f32 ? 4 : 2;
        const uint64_t begin = reinterpret_cast<uintptr_t>(out_.data) + uint64_t(n) * size;
        vectors_ = count_ >= kCount && (begin | uint64_t(out_.stride) * size) % (kCount * size) == 0;
    }
    __device__ float finished(float c, int i) const {
        const float v = c * scale_[i];
        return adds_ ? v + bias_[i] : v;  // without one, -0 stays -0
    }
    __device__ void store_row(int64_t m, const float4& c) const {
        const float v[kCount] = {finished(c.x, 0), finished(c.y, 1), finished(c.z, 2), finished(c.w, 3)};
        const int64_t at = m * out_.stride + n_;
        if (out_.dtype == DType::f32) {
            float* const to = global<float>(out_.data) + at;
            if (vectors_) {
                *reinterpret_cast<float4*>(to) = {v[0], v[1], v[2], v[3]};
            } else {
                for (int i = 0; i < kCount && i < count_; ++i) to[i] = v[i];
            }
        } else {
            uint16_t* const to = global<uint16_t>(out_.data) + at;
            const bool half = out_.dtype == DType::f16;
            const auto round = [=](float a, float b) {
                return half ? Pairs<DType::f16>::round_any_nan({a, b}) : Pairs<DType::bf16>::round_any_nan({a, b});
            };
            const uint2 pairs = {round(v[0], v[1]), round(v[2], v[3])};
            if (vectors_) {
                store(to, pairs);
            } else {
                for (int i = 0; i < kCount && i < count_; ++i) to[i] = uint16_t(word(pairs, i / 2) >> (i % 2 * 16));
            }
        }
    }
};

constexpr int kColumnsAtOnce = 64, kQuads = kColumnsAtOnce / 4;  // columns that are staged; lanes that finish a row

// Wide rows are rows of the result. A warp stores its 16 rows, 64 columns at a time.
template <class S>
__device__ inline void store_rows(char* staging, const Args& a, const float (&sums)[S::kTiles][S::kGroups][4],
                                  int64_t first_row, int64_t end_row, int64_t first_column, int from, int to) {
    constexpr int kGroupsAtOnce = kColumnsAtOnce / 8, kRowsOfWarp = 16;
    const int thread = threadIdx.x - kWarpgroup, lane = thread % kWarp, g = lane / 4, t = lane % 4;
    char* const rows = staging + thread / kWarp * kRowsOfWarp * Form::kStagedRow;
    const auto staged = [&](int row, int column) { return rows + row * Form::kStagedRow + column * 4; };
#pragma unroll
    for (int i = 0; i < S::kTiles; ++i) {
        const int64_t row =
            first_row + (thread / kWarpgroup * S::kTiles + i) * kWgmmaRows + thread / kWarp % 4 * kRowsOfWarp;
#pragma unroll
        for (int at = 0; at < S::kGroups; at += kGroupsAtOnce) {
            // Closes: the columns of the turn before have been read.
            __syncwarp();
#pragma unroll
            for (int j = 0; j < kGroupsAtOnce && at + j < S::kGroups; ++j) {
                const float (&v)[4] = sums[i][at + j];
                *reinterpret_cast<float2*>(staged(g, 8 * j + 2 * t)) = {v[0], v[1]};
                *reinterpret_cast<float2*>(staged(g + 8, 8 * j + 2 * t)) = {v[2], v[3]};
            }
            // Closes: the rows are read by other lanes.
            __syncwarp();
            const int column = lane % kQuads * 4, group = i * S::kGroups + at + column / 8;
            const int64_t n = first_column + 8 * at + column;
            if (column >= (S::kGroups - at) * 8 || group < from || group >= to || n >= a.n) continue;
            const FourColumns four(a, n, a.n);
#pragma unroll 1
            for (int r = lane / kQuads; r < kRowsOfWarp && row + r < end_row; r += kWarp / kQuads) {
                four.store_row(row + r, *reinterpret_cast<const float4*>(staged(r, column)));
            }
        }
    }
}

// Wide rows are columns of the result. A warpgroup stores its 64 columns of up to 32 rows at a time.
template <class S>
__device__ inline void store_columns(char* staging, const Args& a, const float (&sums)[S::kGroups][4],
                                     int64_t first_column, int64_t end_column, int64_t first_row, int from, int to) {
    constexpr int kRowsAtOnce = S::kNarrow < 32 ? S::kNarrow : 32;
    const int thread = threadIdx.x - kWarpgroup, warpgroup = thread / kWarpgroup, lane = thread % kWarp;
    const int g = lane / 4, t = lane % 4, column = thread / kWarp % 4 * 16 + g;
    char* const rows = staging + warpgroup * kRowsAtOnce * Form::kSwappedRow;
    const auto staged = [&](int row, int c) { return reinterpret_cast<float*>(rows + row * Form::kSwappedRow) + c; };
    const int own = thread % kQuads * 4;
    const int64_t n = first_column + warpgroup * kWgmmaRows + own;
    const FourColumns four(a, n < end_column ? n : end_column, end_column);
#pragma unroll
    for (int at = 0; at < S::kGroups; at += kRowsAtOnce / 8) {
        // Closes: the rows of the turn before have been read.
        warpgroup_meets(1 + warpgroup);
#pragma unroll
        for (int j = 0; j < kRowsAtOnce / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) *staged(8 * j + 2 * t + e % 2, column + e / 2 * 8) = sums[at + j][e];
        }
        // Closes: the rows are read by other warps.
        warpgroup_meets(1 + warpgroup);
#pragma unroll 1
        for (int r = thread % kWarpgroup / kQuads; r < kRowsAtOnce; r += kWarpgroup / kQuads) {
            const int group = at + r / 8;
            const int64_t m = first_row + 8 * at + r;
            if (group >= from && group < to && m < a.m && n < end_column) {
                four.store_row(m, *reinterpret_cast<const float4*>(staged(r, own)));
            }
        }
    }
}

// Stores a tile of wide rows first ... end - 1; of its groups of 8 narrow rows those of from ... to - 1.
template <class S>
__device__ inline void store_tile(char* staging, const Args& a, const float (&sums)[S::kTiles][S::kGroups][4],
                                  int64_t first, int64_t end, int64_t first_narrow, int from, int to) {
    if constexpr (S::kSwapped) store_columns<S>(staging, a, sums[0], first, end, first_narrow, from, to);
    else store_rows<S>(staging, a, sums, first, end, first_narrow, from, to);
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
