// From a warpgroup's sums to rows of the result: through shared memory, so that neighbouring lanes have neighbours of a
// row. What is stored, and how, is the operator's.
#pragma once

#include "ring.h"

namespace rocm_fp8::tiles {
namespace {

// A lane passes 16 bytes of every kPassedStep-th of a warp's 16 rows, which lie kPassedRow bytes apart, without bank
// conflicts.
constexpr int kPassedRows = 16;
template <class S>
constexpr int kPassedStep = kWarp / (S::form.passed / 16);
template <class S, int kSize>
constexpr int kPassedRow = S::form.passed + (kSize == 4 ? 32 : 16);

// Wide rows are rows of the result. A warp passes its 16 rows, 128 or 256 bytes of each at a time.
//
//     put(place, first, second)          stores two neighbours of a row, kSize bytes each
//     take(from, row, group, column)     from: the lane's bytes of `row`, its first; both counted from the tile's first.
//                                        group: of 8 columns, of all that the thread has sums of
template <class S, int kSize, class T, class Put, class Take>
__device__ inline void pass_rows(char* staging, const T (&sums)[S::kTiles][S::kGroups][4], const Put& put,
                                 const Take& take) {
    constexpr int kGroupsAtOnce = S::form.passed / (8 * kSize), kRow = kPassedRow<S, kSize>;
    static_assert(kRow <= S::form.staged_row());
    const int thread = threadIdx.x - kWarpgroup, lane = thread % kWarp, g = lane / 4, t = lane % 4;
    char* const rows = staging + thread / kWarp * kPassedRows * S::form.staged_row();
#pragma unroll
    for (int i = 0; i < S::kTiles; ++i) {
        const int row = (thread / kWarpgroup * S::kTiles + i) * kWgmmaRows + thread / kWarp % 4 * kPassedRows;
#pragma unroll
        for (int at = 0; at < S::kGroups; at += kGroupsAtOnce) {
            // Barrier: the columns of the turn before have been read.
            __syncwarp();
#pragma unroll
            for (int j = 0; j < kGroupsAtOnce && at + j < S::kGroups; ++j) {
                const T(&v)[4] = sums[i][at + j];
                char* const place = rows + g * kRow + (8 * j + 2 * t) * kSize;
                put(place, v[0], v[1]);
                put(place + 8 * kRow, v[2], v[3]);
            }
            // Barrier: the rows are read by other lanes.
            __syncwarp();
            const int byte = lane % (S::form.passed / 16) * 16, column = byte / kSize;
            if (column >= (S::kGroups - at) * 8) continue;
            const int first = lane / (S::form.passed / 16);
            take(rows + first * kRow + byte, row + first, i * S::kGroups + at + column / 8, 8 * at + column);
        }
    }
}

// A number of the result, of kSize bytes.
template <int kSize>
using Number = std::conditional_t<kSize == 4, uint32_t, std::conditional_t<kSize == 2, uint16_t, uint8_t>>;

// Wide rows are rows of the result: what `put` made of the sums is stored in rows of kSize bytes a number.
//
//     to             number (0, 0); rows are row_bytes apart
//     vectors        whether 16 bytes at multiples of 16 are aligned
//     columns        of the result
template <class S, int kSize, class T, class Put>
__device__ inline void store_rows(char* staging, const T (&sums)[S::kTiles][S::kGroups][4], const Put& put, char* to,
                                  int64_t row_bytes, bool vectors, int64_t columns, const OwnTile& tile) {
    pass_rows<S, kSize>(staging, sums, put, [&](const char* staged, int row, int group, int column) {
        constexpr int kCount = 16 / kSize, kRow = kPassedRow<S, kSize>;
        const auto owns = [&](int of) { return of >= tile.from && of < tile.to; };
        // Numbers of the lane's 16 bytes that are to be stored. Those of one byte belong to two groups.
        int begin = 0, end = kCount;
        if constexpr (kCount > 8) {
            begin = owns(group) ? 0 : 8;
            end = owns(group + 1) ? kCount : 8;
        } else if (!owns(group)) {
            return;
        }
        const int64_t m = tile.first + row, n = tile.first_narrow + column;
        char* to_row = to + m * row_bytes + n * kSize;
        const int64_t step = row_bytes * kPassedStep<S>;
        if (vectors && end - begin == kCount && n + kCount <= columns) {
#pragma unroll
            for (int r = 0; r < kPassedRows; r += kPassedStep<S>, to_row += step) {
                const uint4 v = *reinterpret_cast<const uint4*>(staged + r * kRow);
                if (m + r < tile.end) store(to_row, v);
            }
        } else {
#pragma unroll 1
            for (int r = 0; r < kPassedRows && m + r < tile.end; r += kPassedStep<S>, to_row += step) {
#pragma unroll 1
                for (int e = begin; e < end && n + e < columns; ++e) {
                    reinterpret_cast<Number<kSize>*>(to_row)[e] =
                        reinterpret_cast<const Number<kSize>*>(staged + r * kRow)[e];
                }
            }
        }
    });
}

// Wide rows are columns of the result. A warpgroup passes its 64 columns of up to 32 rows at a time.
//
//     each                               neighbours of a row that a thread takes, of 4 bytes
//     take(from, row, group)             row: counted from the tile's first, of `group`, of 8 rows
template <class S, class T, class Take>
__device__ inline void pass_columns(char* staging, const T (&sums)[S::kGroups][4], int each, const Take& take) {
    constexpr int kRowsAtOnce = S::kNarrow < kRowsOfColumns ? S::kNarrow : kRowsOfColumns;
    const int thread = threadIdx.x - kWarpgroup, warpgroup = thread / kWarpgroup, lane = thread % kWarp;
    const int g = lane / 4, t = lane % 4, column = thread / kWarp % 4 * 16 + g;
    char* const rows = staging + warpgroup * kRowsAtOnce * Form::kSwappedRow;
    const auto staged = [&](int row, int c) { return reinterpret_cast<T*>(rows + row * Form::kSwappedRow) + c; };
    const int lanes = kWgmmaRows / each, own = thread % lanes * each;
#pragma unroll
    for (int at = 0; at < S::kGroups; at += kRowsAtOnce / 8) {
        // Barrier: the rows of the turn before have been read.
        warpgroup_meets(1 + warpgroup);
#pragma unroll
        for (int j = 0; j < kRowsAtOnce / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) *staged(8 * j + 2 * t + e % 2, column + e / 2 * 8) = sums[at + j][e];
        }
        // Barrier: the rows are read by other warps.
        warpgroup_meets(1 + warpgroup);
        for (int r = thread % kWarpgroup / lanes; r < kRowsAtOnce; r += kWarpgroup / lanes) {
            take(staged(r, own), 8 * at + r, at + r / 8);
        }
    }
}

// Wide rows are columns of the result: stored like store_rows, of which there are `rows`.
template <class S, int kSize, class T, class Put>
__device__ inline void store_columns(char* staging, const T (&sums)[S::kGroups][4], const Put& put, char* to,
                                     int64_t row_bytes, bool vectors, int64_t rows, const OwnTile& tile) {
    constexpr int kCount = 16 / kSize;
    const int thread = threadIdx.x - kWarpgroup;
    const int64_t n = tile.first + thread / kWarpgroup * kWgmmaRows + thread % (kWgmmaRows / kCount) * kCount;
    const bool whole = vectors && tile.first % kCount == 0 && n + kCount <= tile.end;
    pass_columns<S>(staging, sums, kCount, [&](const T* staged, int row, int group) {
        const int64_t m = tile.first_narrow + row;
        if (group < tile.from || group >= tile.to || m >= rows || n >= tile.end) return;
        char* const at = to + m * row_bytes + n * kSize;
        alignas(16) char numbers[16];
#pragma unroll
        for (int i = 0; i < kCount; i += 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(staged + i);
            T v[4];
            memcpy(v, &four, sizeof(v));
            put(numbers + i * kSize, v[0], v[1]);
            put(numbers + (i + 2) * kSize, v[2], v[3]);
        }
        if (whole) {
            store(at, *reinterpret_cast<const uint4*>(numbers));
        } else {
#pragma unroll
            for (int e = 0; e < kCount; ++e) {
                if (n + e < tile.end)
                    reinterpret_cast<Number<kSize>*>(at)[e] = reinterpret_cast<const Number<kSize>*>(numbers)[e];
            }
        }
    });
}

}  // namespace
}  // namespace rocm_fp8::tiles
