// Sums and exchanges between the lanes of a wave, by DPP: an operand comes from another lane within the ALU, with no
// trip through LDS.
#pragma once

#include "vector.h"

namespace rocm_fp8 {
namespace {

// DPP controls (LLVM's AMDGPU guide, "DPP16"). A row is 16 lanes.
enum Dpp : int {
    kSwapNeighbours = 0xB1,   // quad_perm:[1,0,3,2]
    kSwapPairs = 0x4E,        // quad_perm:[2,3,0,1]
    kMirrorHalfRow = 0x141,   // row_half_mirror: lane i takes lane 7 - i of its eight
    kMirrorRow = 0x140,       // row_mirror: lane 15 - i of its row
    kRowShiftRight1 = 0x111,  // lane i takes lane i - 1 of its row
    kRowShiftRight2 = 0x112,
    kRowShiftRight4 = 0x114,
    kRowShiftRight8 = 0x118,
    kLastOfRow = 0x15F,         // row_newbcast:15: lane 15 of a row to all of it
    kLastOfRowToNext = 0x142,   // row_bcast:15: lane 15 of a row to all of the next one
    kLane31ToUpperHalf = 0x143  // row_bcast:31
};
constexpr int kAllRows = 0xF, kAllBanks = 0xF, kRows1And3 = 0xA, kRows2And3 = 0xC;

// Lanes without a source, or outside `rows`, get 0.
template <Dpp control, int rows = kAllRows>
__device__ inline uint32_t dpp(uint32_t v) {
    return uint32_t(__builtin_amdgcn_update_dpp(0, int(v), control, rows, kAllBanks, rows == kAllRows));
}
template <Dpp control, int rows = kAllRows>
__device__ inline float dpp(float v) {
    return __builtin_bit_cast(float, dpp<control, rows>(__builtin_bit_cast(uint32_t, v)));
}

// Sums in a fixed tree: neighbours, then neighbours of pairs, and so on. One tree serves 16 and 64 lanes: absent lanes
// are zeros and change nothing.

// The last lane of each row of 16 has the row's sum.
__device__ inline float sum_to_last_of_row(float v) {
    v += dpp<kRowShiftRight1>(v);
    v += dpp<kRowShiftRight2>(v);
    v += dpp<kRowShiftRight4>(v);
    return v + dpp<kRowShiftRight8>(v);
}
// Every lane has the sum of its row of 16.
__device__ inline float sum_of_row(float v) { return dpp<kLastOfRow>(sum_to_last_of_row(v)); }

// Lane 63 has the wave's sum. The names are common with CUDA.
constexpr int kLaneOfSum = kWave - 1;
__device__ inline float sum_over_lanes(float v) {
    v = sum_to_last_of_row(v);
    v += dpp<kLastOfRowToNext, kRows1And3>(v);
    return v + dpp<kLane31ToUpperHalf, kRows2And3>(v);
}
template <int kValues>
__device__ inline void sum_over_lanes(float (&v)[kValues]) {
#pragma unroll
    for (float& value : v) value = sum_over_lanes(value);
}
// Every lane has lane 63's value.
__device__ inline float of_lane_of_sum(float v) {
    return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, v), kLaneOfSum));
}

// v is the same in either half of each 8 or 16 neighbouring lanes: the larger of the two. A mirror serves.
template <int kCount>
__device__ inline uint32_t max_with_other_half(uint32_t v) {
    const uint32_t other = dpp<kCount == 8 ? kMirrorHalfRow : kMirrorRow>(v);
    return v > other ? v : other;
}

// The largest over each kCount neighbouring lanes (2, 4, 8, 16 or 64), in every one of them.
template <int kCount>
__device__ inline uint32_t max_over_lanes(uint32_t v) {
    const auto with = [&](uint32_t other) { v = v > other ? v : other; };
    with(dpp<kSwapNeighbours>(v));
    if constexpr (kCount >= 4) with(dpp<kSwapPairs>(v));
    if constexpr (kCount >= 8) v = max_with_other_half<8>(v);
    if constexpr (kCount >= 16) v = max_with_other_half<16>(v);
    if constexpr (kCount == kWave) {
        with(dpp<kLastOfRowToNext, kRows1And3>(v));
        with(dpp<kLane31ToUpperHalf, kRows2And3>(v));
        v = uint32_t(__builtin_amdgcn_readlane(int(v), kWave - 1));
    }
    return v;
}

// Turns two 8-byte halves a lane into one 16-byte store a lane. On entry a lane holds its part of two pieces, `first`
// and `second`. On exit an even lane holds `first` of itself and of its neighbour. An odd lane holds `second` of its
// neighbour and of itself.
__device__ inline u32x4 pair_up(u32x2 first, u32x2 second) {
    const bool odd = threadIdx.x & 1;
    const u32x2 mine = odd ? second : first, other = odd ? first : second;
    const u32x2 received{dpp<kSwapNeighbours>(other.x), dpp<kSwapNeighbours>(other.y)};
    return odd ? u32x4{received.x, received.y, mine.x, mine.y} : u32x4{mine.x, mine.y, received.x, received.y};
}

}  // namespace
}  // namespace rocm_fp8
