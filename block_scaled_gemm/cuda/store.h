// From a warpgroup's sums to the result. Scales of channels and bias are applied in registers; then the numbers, in the
// result's type, go through shared memory, so that neighbouring lanes store 16 bytes each of the same row.
#pragma once

#include <type_traits>

#include "../../common/cuda/wgmma.h"
#include "../../common/gemm/scales.h"
#include "scales.h"

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

// Wide rows are rows of the result. A warp stores its 16 rows, 256 bytes of each at a time.
template <class S, int kSize>
__device__ inline void store_rows(char* staging, const Args& a, const float (&sums)[S::kTiles][S::kGroups][4],
                                  int64_t first_row, int64_t end_row, int64_t first_column, int from, int to) {
    constexpr int kRowsOfWarp = 16, kLineBytes = 256, kGroupsAtOnce = kLineBytes / (8 * kSize);
    constexpr int kRow = kLineBytes + (kSize == 4 ? 32 : 16);  // without bank conflicts
    static_assert(kRow <= Form::kStagedRow);
    const int thread = threadIdx.x - kWarpgroup, lane = thread % kWarp, g = lane / 4, t = lane % 4;
    char* const rows = staging + thread / kWarp * kRowsOfWarp * Form::kStagedRow;
    const bool vectors = rows_of_vectors(a.out, kSize);
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
                char* const place = rows + g * kRow + (8 * j + 2 * t) * kSize;
                if constexpr (kSize == 4) {
                    *reinterpret_cast<float2*>(place) = {v[0], v[1]};
                    *reinterpret_cast<float2*>(place + 8 * kRow) = {v[2], v[3]};
                } else {
                    *reinterpret_cast<uint32_t*>(place) = rounded_pair(a.out.dtype, v[0], v[1]);
                    *reinterpret_cast<uint32_t*>(place + 8 * kRow) = rounded_pair(a.out.dtype, v[2], v[3]);
                }
            }
            // Closes: the rows are read by other lanes.
            __syncwarp();
            const int byte = lane % (kLineBytes / 16) * 16, column = byte / kSize;
            const int group = i * S::kGroups + at + column / 8;
            const int64_t n = first_column + 8 * at + column;
            if (column >= (S::kGroups - at) * 8 || group < from || group >= to || n >= a.n) continue;
            constexpr int kAtOnce = kWarp / (kLineBytes / 16), kCount = 16 / kSize;
            const char* const from_rows = rows + lane / (kLineBytes / 16) * kRow + byte;
            const int64_t m = row + lane / (kLineBytes / 16);
            char* to_row = static_cast<char*>(a.out.data) + (m * a.out.stride + n) * kSize;
            const int64_t step = a.out.stride * (kAtOnce * kSize);
            if (vectors && n + kCount <= a.n) {
#pragma unroll
                for (int r = 0; r < kRowsOfWarp; r += kAtOnce, to_row += step) {
                    const uint4 v = *reinterpret_cast<const uint4*>(from_rows + r * kRow);
                    if (m + r < end_row) store(to_row, v);
                }
            } else {
                using Element = std::conditional_t<kSize == 4, uint32_t, uint16_t>;
#pragma unroll 1
                for (int r = 0; r < kRowsOfWarp && m + r < end_row; r += kAtOnce, to_row += step) {
#pragma unroll 1
                    for (int e = 0; e < kCount && n + e < a.n; ++e) {
                        reinterpret_cast<Element*>(to_row)[e] =
                            reinterpret_cast<const Element*>(from_rows + r * kRow)[e];
                    }
                }
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
    const int size = a.out.dtype == DType::f32 ? 4 : 2, each = 16 / size, lanes = kWgmmaRows / each;
    const int own = thread % lanes * each;
    const int64_t n = first_column + warpgroup * kWgmmaRows + own;
    const bool vectors = rows_of_vectors(a.out, size) && first_column % each == 0;
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
        for (int r = thread % kWarpgroup / lanes; r < kRowsAtOnce; r += kWarpgroup / lanes) {
            const int group = at + r / 8;
            const int64_t m = first_row + 8 * at + r;
            if (group < from || group >= to || m >= a.m || n >= end_column) continue;
            store_staged(a.out, vectors, size, m, n, end_column, staged(r, own));
        }
    }
}

// Stores a tile of wide rows first ... end - 1; of its groups of 8 narrow rows those of from ... to - 1.
template <class S>
__device__ inline void store_tile(char* staging, const Args& a, float (&sums)[S::kTiles][S::kGroups][4], int64_t first,
                                  int64_t end, int64_t first_narrow, int from, int to) {
    const int thread = threadIdx.x - kWarpgroup, lane = thread % kWarp;
    if (finishes(a)) {
        if constexpr (S::kSwapped) {
            const int64_t n = first + thread / kWarpgroup * kWgmmaRows + thread / kWarp % 4 * 16 + lane / 4;
            const Column one(a, n), other(a, n + 8);
#pragma unroll
            for (float (&v)[4] : sums[0]) {
                v[0] = one.finished(v[0]), v[1] = one.finished(v[1]);
                v[2] = other.finished(v[2]), v[3] = other.finished(v[3]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < S::kGroups; ++i) {
                const int64_t n = first_narrow + 8 * i + lane % 4 * 2;
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
    if constexpr (S::kSwapped) store_columns<S>(staging, a, sums[0], first, end, first_narrow, from, to);
    else if (a.out.dtype == DType::f32) store_rows<S, 4>(staging, a, sums, first, end, first_narrow, from, to);
    else store_rows<S, 2>(staging, a, sums, first, end, first_narrow, from, to);
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
