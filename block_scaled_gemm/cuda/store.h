// From a warpgroup's sums to the result. Scales of channels and bias are applied in registers; then the numbers, in the
// result's type, go through shared memory, so that neighbouring lanes store 16 bytes each of the same row.
#pragma once

#include "../../common/gemm/cuda/kernel.h"
#include "../../common/gemm/cuda/staging.h"
#include "../../common/gemm/epilogue.h"
#include "scales.h"
#include "shape.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

__device__ inline int64_t inside(const Args& a, int64_t n) { return n < a.n ? n : a.n - 1; }
__device__ inline float scale_of_channel(const Args& a, int64_t n) {
    const BlockScales scales(a.scale_b, 0);
    return scales.at(scales.place(n));
}

// What is applied to a column of the result after the sum over K: the scale of a channel, the bias.
class Column {
    float scale_ = 1, bias_ = 0;
    bool adds_;

  public:
    __device__ Column(const Args& a, int64_t n) : adds_(a.bias.data != nullptr) {
        const int64_t mine = inside(a, n);
        if (at_the_end(a.scale_b)) scale_ = scale_of_channel(a, mine);
        if (adds_) bias_ = gemm::bias_at(a.bias, mine);
    }
    __device__ float finished(float c) const {
        const float v = c * scale_;
        return adds_ ? v + bias_ : v;  // without one, -0 stays -0
    }
};

// A number of each of a tile's narrow columns, each read once by a warp: lane l has those of columns l, l + 32, ...
template <class S>
struct OfNarrowColumns {
    static constexpr int kEach = (S::kNarrow + kWarp - 1) / kWarp;
    float mine[kEach];

    template <class Read>
    __device__ OfNarrowColumns(int64_t first, const Read& read) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) mine[e] = read(first + e * kWarp + threadIdx.x % kWarp);
    }
    // v = apply(v, number) for all sums.
    template <class Apply>
    __device__ void each(TileSums<S>& sums, const Apply& apply) const {
        const int column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < S::kGroups; ++i) {
            const float holder = mine[i * 8 / kWarp];
            const float even = __shfl_sync(kWholeWarp, holder, i * 8 % kWarp + column);
            const float odd = __shfl_sync(kWholeWarp, holder, i * 8 % kWarp + column + 1);
#pragma unroll
            for (int j = 0; j < S::kTiles; ++j) {
                float (&v)[4] = sums[j][i];
                v[0] = apply(v[0], even), v[1] = apply(v[1], odd);
                v[2] = apply(v[2], even), v[3] = apply(v[3], odd);
            }
        }
    }
};

__device__ inline bool finishes(const Args& a) { return at_the_end(a.scale_b) || a.bias.data; }

__device__ inline bool rows_of_vectors(const gemm::Output& out, int size) {
    return (reinterpret_cast<uintptr_t>(out.data) | uint64_t(out.row_stride) * size) % 16 == 0;
}

template <class S, int kSize>
__device__ inline void store_as(char* staging, const Args& a, const TileSums<S>& sums, const OwnTile& tile) {
    const auto put = [&](char* place, float first, float second) {
        if constexpr (kSize == 4) *reinterpret_cast<float2*>(place) = {first, second};
        else *reinterpret_cast<uint32_t*>(place) = gemm::rounded_pair(a.out.dtype, {first, second});
    };
    auto* const to = static_cast<char*>(a.out.data);
    const int64_t row_bytes = a.out.row_stride * kSize;
    const bool vectors = rows_of_vectors(a.out, kSize);
    if constexpr (S::kSwapped) store_columns<S, kSize>(staging, sums[0], put, to, row_bytes, vectors, a.m, tile);
    else store_rows<S, kSize>(staging, sums, put, to, row_bytes, vectors, a.n, tile);
}

template <class S>
__device__ inline void store_tile(char* staging, const Args& a, TileSums<S>& sums, const OwnTile& tile) {
    const int thread = threadIdx.x - kWarpgroup, lane = thread % kWarp;
    if (finishes(a)) {
        if constexpr (S::kSwapped) {
            const int64_t n = tile.first + thread / kWarpgroup * kWgmmaRows + thread / kWarp % 4 * 16 + lane / 4;
            const Column one(a, n), other(a, n + 8);
#pragma unroll
            for (float (&v)[4] : sums[0]) {
                v[0] = one.finished(v[0]), v[1] = one.finished(v[1]);
                v[2] = other.finished(v[2]), v[3] = other.finished(v[3]);
            }
        } else {
            const int64_t first = tile.first_narrow;
            if (at_the_end(a.scale_b)) {
                const OfNarrowColumns<S> scales(first, [&](int64_t n) { return scale_of_channel(a, inside(a, n)); });
                scales.each(sums, [](float v, float scale) { return v * scale; });
            }
            if (a.bias.data) {
                const OfNarrowColumns<S> biases(first, [&](int64_t n) { return gemm::bias_at(a.bias, inside(a, n)); });
                biases.each(sums, [](float v, float bias) { return v + bias; });
            }
        }
    }
    if (a.out.dtype == DType::f32) store_as<S, 4>(staging, a, sums, tile);
    else store_as<S, 2>(staging, a, sums, tile);
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
