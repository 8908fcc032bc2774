// From a warpgroup's sums to the result. Scales of channels and bias are applied in registers; then the numbers, in the
// result's type, go through shared memory, so that neighbouring lanes store 16 bytes each of the same row.
#pragma once

#include "../../common/cuda/half_pairs.h"
#include "../../common/cuda/tiles/kernel.h"
#include "../../common/cuda/tiles/staging.h"
#include "../../common/gemm/scales.h"
#include "scales.h"
#include "shape.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

// What is applied to a column of the result after the sum over K.
class Column {
    float scale_ = 1, bias_ = 0;
    bool adds_;

  public:
    __device__ Column(const Args& a, int64_t n) : adds_(a.bias.data != nullptr) {
        const int64_t inside = n < a.n ? n : a.n - 1;
        if (at_the_end(a.scale_b)) {
            const BlockScales scales(a.scale_b, 0);
            scale_ = scales.at(scales.place(inside));
        }
        if (adds_) bias_ = gemm::bias_at(a.bias, inside);
    }
    __device__ float finished(float c) const {
        const float v = c * scale_;
        return adds_ ? v + bias_ : v;  // without one, -0 stays -0
    }
};

__device__ inline bool finishes(const Args& a) { return at_the_end(a.scale_b) || a.bias.data; }

__device__ inline uint32_t rounded_pair(DType type, float a, float b) {
    return type == DType::f16 ? Pairs<DType::f16>::round_any_nan({a, b}) : Pairs<DType::bf16>::round_any_nan({a, b});
}

__device__ inline bool rows_of_vectors(const gemm::Output& out, int size) {
    return (reinterpret_cast<uintptr_t>(out.data) | uint64_t(out.stride) * size) % 16 == 0;
}

// Columns n ... end - 1 of row m, of 16 bytes, from float32 numbers in shared memory.
__device__ inline void store_staged(const gemm::Output& out, bool vectors, int size, int64_t m, int64_t n, int64_t end,
                                    const float* staged) {
    char* const to = static_cast<char*>(out.data) + (m * out.stride + n) * size;
    const int count = 16 / size;
    if (!vectors || n + count > end) {
#pragma unroll 1
        for (int i = 0; i < count && n + i < end; ++i) {
            if (size == 4) reinterpret_cast<float*>(to)[i] = staged[i];
            else reinterpret_cast<uint16_t*>(to)[i] = uint16_t(rounded_pair(out.dtype, staged[i], 0));
        }
    } else if (size == 4) {
        store(to, *reinterpret_cast<const uint4*>(staged));
    } else {
        const float4 low = *reinterpret_cast<const float4*>(staged),
                     high = *reinterpret_cast<const float4*>(staged + 4);
        store(to, uint4{rounded_pair(out.dtype, low.x, low.y), rounded_pair(out.dtype, low.z, low.w),
                        rounded_pair(out.dtype, high.x, high.y), rounded_pair(out.dtype, high.z, high.w)});
    }
}

// Wide rows are rows of the result.
template <class S, int kSize>
__device__ inline void store_rows(char* staging, const Args& a, const TileSums<S>& sums, const OwnTile& tile) {
    const auto put = [&](char* place, float first, float second) {
        if constexpr (kSize == 4) *reinterpret_cast<float2*>(place) = {first, second};
        else *reinterpret_cast<uint32_t*>(place) = rounded_pair(a.out.dtype, first, second);
    };
    tiles::store_rows<S, kSize>(staging, sums, put, static_cast<char*>(a.out.data), a.out.stride * kSize,
                                rows_of_vectors(a.out, kSize), a.n, tile);
}

// Wide rows are columns of the result.
template <class S>
__device__ inline void store_columns(char* staging, const Args& a, const float (&sums)[S::kGroups][4],
                                     const OwnTile& tile) {
    const int thread = threadIdx.x - kWarpgroup, size = a.out.dtype == DType::f32 ? 4 : 2, each = 16 / size;
    const int64_t n = tile.first + thread / kWarpgroup * kWgmmaRows + thread % (kWgmmaRows / each) * each;
    const bool vectors = rows_of_vectors(a.out, size) && tile.first % each == 0;
    pass_columns<S>(staging, sums, each, [&](const float* staged, int row, int group) {
        const int64_t m = tile.first_narrow + row;
        if (group < tile.from || group >= tile.to || m >= a.m || n >= tile.end) return;
        store_staged(a.out, vectors, size, m, n, tile.end, staged);
    });
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
#pragma unroll
            for (int i = 0; i < S::kGroups; ++i) {
                const int64_t n = tile.first_narrow + 8 * i + lane % 4 * 2;
                const Column even(a, n), odd(a, n + 1);
#pragma unroll
                for (int j = 0; j < S::kTiles; ++j) {
                    float (&v)[4] = sums[j][i];
                    v[0] = even.finished(v[0]), v[1] = odd.finished(v[1]);
                    v[2] = even.finished(v[2]), v[3] = odd.finished(v[3]);
                }
            }
        }
    }
    if constexpr (S::kSwapped) store_columns<S>(staging, a, sums[0], tile);
    else if (a.out.dtype == DType::f32) store_rows<S, 4>(staging, a, sums, tile);
    else store_rows<S, 2>(staging, a, sums, tile);
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
