// From a warpgroup's sums to rows of the result: through shared memory, so that neighbouring lanes have neighbours of a
// row. What is stored, and how, is the operator's.
#pragma once

#include "ring.h"

namespace rocm_fp8::tiles {
namespace {

// A lane passes 16 bytes of every second of a warp's 16 rows, which lie kPassedRow bytes apart, without bank conflicts.
constexpr int kPassedBytes = 256, kPassedRows = 16, kPassedStep = kWarp / (kPassedBytes / 16);
template <int kSize>
constexpr int kPassedRow = kPassedBytes + (kSize == 4 ? 32 : 16);

// Wide rows are rows of the result. A warp passes its 16 rows, 256 bytes of each at a time.
//
//     put(place, first, second)          stores two neighbours of a row, kSize bytes each
//     take(from, row, group, column)     from: the lane's bytes of `row`, its first; both counted from the tile's first.
//                                        group: of 8 columns, of all that the thread has sums of
template <class S, int kSize, class T, class Put, class Take>
__device__ inline void pass_rows(char* staging, const T (&sums)[S::kTiles][S::kGroups][4], const Put& put,
                                 const Take& take) {
    constexpr int kGroupsAtOnce = kPassedBytes / (8 * kSize), kRow = kPassedRow<kSize>;
    static_assert(kRow <= Form::kStagedRow);
    const int thread = threadIdx.x - kWarpgroup, lane = thread % kWarp, g = lane / 4, t = lane % 4;
    char* const rows = staging + thread / kWarp * kPassedRows * Form::kStagedRow;
#pragma unroll
    for (int i = 0; i < S::kTiles; ++i) {
        const int row = (thread / kWarpgroup * S::kTiles + i) * kWgmmaRows + thread / kWarp % 4 * kPassedRows;
#pragma unroll
        for (int at = 0; at < S::kGroups; at += kGroupsAtOnce) {
            // Closes: the columns of the turn before have been read.
            __syncwarp();
#pragma unroll
            for (int j = 0; j < kGroupsAtOnce && at + j < S::kGroups; ++j) {
                const T(&v)[4] = sums[i][at + j];
                char* const place = rows + g * kRow + (8 * j + 2 * t) * kSize;
                put(place, v[0], v[1]);
                put(place + 8 * kRow, v[2], v[3]);
            }
            // Closes: the rows are read by other lanes.
            __syncwarp();
            const int byte = lane % (kPassedBytes / 16) * 16, column = byte / kSize;
            if (column >= (S::kGroups - at) * 8) continue;
            const int first = lane / (kPassedBytes / 16);
            take(rows + first * kRow + byte, row + first, i * S::kGroups + at + column / 8, 8 * at + column);
        }
    }
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
            take(staged(r, own), 8 * at + r, at + r / 8);
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::tiles
