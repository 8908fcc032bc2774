// What the lanes of a wave (warp) tell one another, by names that HIP and CUDA share. All lanes call these together.
#pragma once

#include "../vendor.h"

namespace rocm_fp8 {
namespace {

#if defined(__CUDACC__)

using LaneMask = uint32_t;

__device__ inline LaneMask lanes_where(bool v) { return __ballot_sync(kWholeWarp, v); }
__device__ inline int count(LaneMask lanes) { return __popc(lanes); }
__device__ inline int lowest(LaneMask lanes) { return __ffs(int(lanes)) - 1; }
// How many of them are below the caller. They may differ between lanes.
__device__ inline uint32_t lanes_below(LaneMask lanes) {
    return uint32_t(__popc(lanes & ((1u << threadIdx.x % kLanes) - 1)));
}
__device__ inline uint32_t of_lane(uint32_t v, int lane) { return __shfl_sync(kWholeWarp, v, lane); }

// The sum over the lanes up to the caller, itself included.
__device__ inline uint32_t sum_up_to_lane(uint32_t v) {
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
        const uint32_t other = __shfl_up_sync(kWholeWarp, v, distance);
        v += int(threadIdx.x % kLanes) >= distance ? other : 0;
    }
    return v;
}

// What lanes have written to shared memory before, the wave's other lanes read behind.
__device__ inline void meet_lanes() { __syncwarp(); }

#else

using LaneMask = uint64_t;

__device__ inline LaneMask lanes_where(bool v) { return __builtin_amdgcn_ballot_w64(v); }
__device__ inline int count(LaneMask lanes) { return __builtin_popcountll(lanes); }
__device__ inline int lowest(LaneMask lanes) { return __builtin_ctzll(lanes); }
__device__ inline uint32_t lanes_below(LaneMask lanes) {
    return __builtin_amdgcn_mbcnt_hi(uint32_t(lanes >> 32), __builtin_amdgcn_mbcnt_lo(uint32_t(lanes), 0));
}
__device__ inline uint32_t of_lane(uint32_t v, int lane) { return uint32_t(__builtin_amdgcn_readlane(int(v), lane)); }

__device__ inline uint32_t sum_up_to_lane(uint32_t v) {
    v += dpp<kRowShiftRight1>(v);
    v += dpp<kRowShiftRight2>(v);
    v += dpp<kRowShiftRight4>(v);
    v += dpp<kRowShiftRight8>(v);
    v += dpp<kLastOfRowToNext, kRows1And3>(v);
    return v + dpp<kLane31ToUpperHalf, kRows2And3>(v);
}

// A wave's LDS accesses take effect in their order: the compiler alone must keep it.
__device__ inline void meet_lanes() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
}

#endif

__device__ inline float of_lane(float v, int lane) { return bits_float(of_lane(float_bits(v), lane)); }

// The lanes whose key, of kBits bits, is the caller's. A vote a bit: of equal speed for every routing.
template <int kBits>
__device__ inline LaneMask lanes_with(uint32_t key) {
    LaneMask same = ~LaneMask(0);
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit) {
        const bool one = key >> bit & 1;
        const LaneMask ones = lanes_where(one);
        same &= one ? ones : ~ones;
    }
    return same;
}
// Whether the caller is the highest of these lanes.
__device__ inline bool is_highest(LaneMask lanes) { return lanes >> threadIdx.x % kLanes == 1; }

}  // namespace
}  // namespace rocm_fp8
