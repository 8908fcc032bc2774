// From a wave's float32 sums to the result: the channels' scales, bias, rounding, and stores of whole cache lines.
//
// Result says what that is: m and n, of which rows and columns are beyond the end; scale_b, bias, out.
#pragma once

#include "../../hip/lds.h"
#include "../epilogue.h"
#include "fp8_matrix.h"

namespace rocm_fp8::gemm::hip {
namespace {

template <class S>
using TileSums = Sums<S::matrix>[S::sub_m][S::sub_n];

// Scales of channels and the bias, in this order. column_of(n): of the wave's n-th column, its place in the result's rows.
// `region` is the wave's: its columns' numbers are handed over there.
template <class S, class Result, class ColumnOf>
__device__ inline void scale_and_add(TileSums<S>& sums, const Result& a, bool channels, const ColumnOf& column_of,
                                     float* region) {
    if (!channels && !a.bias.data) return;
    const int lane = fresh_thread() % kWave;
    constexpr int kColumns = S::wave_columns < kWave ? S::wave_columns : kWave;  // handed over together
#pragma unroll
    for (int first = 0; first < S::wave_columns; first += kColumns) {
        const int64_t n = column_of(first + lane), at = n < a.n ? n : a.n - 1;
        const auto each = [&](float of_lane, auto apply) {
            // LDS accesses of one wave are in order.
            region[lane] = of_lane;
            __builtin_amdgcn_wave_barrier();
#pragma unroll
            for (int j = first / S::matrix; j < (first + kColumns) / S::matrix; ++j) {
#pragma unroll
                for (int q = 0; q < S::quads; ++q) {
                    const f32x4 v = *reinterpret_cast<const f32x4*>(region + column_in_wave<S>(lane, j, q) - first);
#pragma unroll
                    for (int i = 0; i < S::sub_m; ++i) {
                        set_four(sums[i][j], q, apply(four_of<f32x4>(sums[i][j], q), v));
                    }
                }
            }
            __builtin_amdgcn_wave_barrier();
        };
        if (channels) {
            const float scale = scale_of_bits(a.scale_b.dtype == DType::e8m0, scale_bits(a.scale_b, at, 0));
            each(scale, [](f32x4 sum, f32x4 of_four) { return sum * of_four; });
        }
        if (a.bias.data) each(bias_at(a.bias, at), [](f32x4 sum, f32x4 bias) { return sum + bias; });
    }
}

// Results go through LDS, `region`, which the wave has for itself: the rows of a subtile by `columns` columns, so that
// a store covers whole lines. Chunks of 16 bytes are permuted as those of a stage are. T: uint16_t or float.
template <class S, class T, int columns, class Result>
__device__ inline void store_rows(const TileSums<S>& sums, const Result& a, char* region, int64_t row, int64_t column) {
    constexpr int kEach = kChunk / sizeof(T), kRowBytes = columns * sizeof(T), kChunks = kRowBytes / kChunk;
    constexpr int kRowsAStore = kWave / kChunks, kStores = (S::matrix + kRowsAStore - 1) / kRowsAStore;
    static_assert(S::matrix * kRowBytes <= S::region_bytes);
    const int lane = fresh_thread() % kWave;
    const auto at = [](int r, int n) {
        constexpr int kTogether = kRowBytes < 128 ? 128 / kRowBytes : 1;
        return r * kRowBytes + (n / kEach ^ (r / kTogether % kChunks)) * kChunk + n % kEach * int(sizeof(T));
    };
    const bool wide =
        a.out.row_stride % kEach == 0 && a.n % kEach == 0 && reinterpret_cast<uintptr_t>(a.out.data) % 16 == 0;
    const auto rounded = [&](f32x2 pair) { return rounded_pair(a.out.dtype, pair); };
#pragma unroll
    for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
        for (int first = 0; first < S::wave_columns; first += columns) {
#pragma unroll
            for (int j = first / S::matrix; j < (first + columns) / S::matrix; ++j) {
#pragma unroll
                for (int q = 0; q < S::quads; ++q) {
                    const f32x4 v = four_of<f32x4>(sums[i][j], q);
                    char* const to = region + at(lane % S::matrix, column_in_wave<S>(lane, j, q) - first);
                    if constexpr (sizeof(T) == 2) {
                        *reinterpret_cast<u32x2*>(to) = u32x2{rounded(f32x2{v.x, v.y}), rounded(f32x2{v.z, v.w})};
                    } else {
                        *reinterpret_cast<f32x4*>(to) = v;
                    }
                }
            }
            // Only this wave has the region, and its accesses to LDS are in order.
            __builtin_amdgcn_wave_barrier();
            const int64_t m = row + i * S::matrix, n = column + first;
            if (wide) {
                const int r = lane / kChunks, own = lane % kChunks * kEach;
                u32x4 rows[kStores];
#pragma unroll
                for (int s = 0; s < kStores; ++s) {
                    if (S::matrix % kRowsAStore == 0 || r < S::matrix) {
                        rows[s] = *reinterpret_cast<const u32x4*>(region + at(r + s * kRowsAStore, own));
                    }
                }
#pragma unroll
                for (int s = 0; s < kStores; ++s) {
                    const int64_t own_m = m + r + s * kRowsAStore;
                    if (own_m < a.m && n + own < a.n && (S::matrix % kRowsAStore == 0 || r < S::matrix)) {
                        store_at(offset(a.out.data, (own_m * a.out.row_stride + n + own) * int(sizeof(T))), rows[s]);
                    }
                }
            } else {
                const auto one_by_one = [&]<class U>(U) {
                    constexpr int kTogether = sizeof(U) / sizeof(T);
#pragma unroll 1
                    for (int e = lane * kTogether; e < S::matrix * columns; e += kWave * kTogether) {
                        const int r = e / columns, own = e % columns;
                        const U v = *reinterpret_cast<const U*>(region + at(r, own));
                        if (m + r < a.m && n + own < a.n) {
                            *global<U>(offset(a.out.data, ((m + r) * a.out.row_stride + n + own) * int(sizeof(T)))) = v;
                        }
                    }
                };
                if (sizeof(T) == 2 && (a.out.row_stride | a.n) % 2 == 0 &&
                    reinterpret_cast<uintptr_t>(a.out.data) % 4 == 0) {
                    one_by_one(uint32_t());
                } else {
                    one_by_one(T());
                }
            }
            __builtin_amdgcn_wave_barrier();
        }
    }
}

// All of it, of the tile that begins at `row` and `column`. columns: of 16-bit results, that go together.
template <class S, int columns = S::wave_columns, class Result>
__device__ inline void finish_tile(TileSums<S>& sums, const Result& a, bool channels, int64_t row, int64_t column,
                                   char (&regions)[S::waves][S::region_bytes]) {
    const int wave = uniform(threadIdx.x / kWave);
    char* const region = regions[wave];
    row += wave / S::waves_n * S::wave_rows, column += wave % S::waves_n * S::wave_columns;
    const auto column_of = [&](int n) { return column + n; };
    scale_and_add<S>(sums, a, channels, column_of, reinterpret_cast<float*>(region));
    if (a.out.dtype == DType::f32) store_rows<S, float, S::matrix>(sums, a, region, row, column);
    else store_rows<S, uint16_t, columns>(sums, a, region, row, column);
    // Others write there after the next barrier.
    lds_done();
}

}  // namespace
}  // namespace rocm_fp8::gemm::hip
