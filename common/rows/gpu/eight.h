// Eight values of a type in registers, as the row kernels of both vendors hold them.
#pragma once

#include "../../fp8.h"
#include "../../vendor.h"
#include "forms.h"

namespace rocm_fp8 {
namespace {

constexpr uint32_t kInfinityBits = 0x7F800000u, kMagnitudeBits = 0x7FFFFFFFu;

__device__ inline uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Of a float32's bits without the sign: 0 where they are no finite number's.
__device__ inline uint32_t if_finite(uint32_t magnitude) { return magnitude < kInfinityBits ? magnitude : 0; }

// A condition of rare code that is right for every lane: on AMD GPUs the whole wave takes it, or none of it does.
__device__ inline bool for_any_lane(bool v) {
#if defined(__CUDACC__)
    return v;
#else
    return any_lane(v);
#endif
}

template <DType type>
constexpr int kElementBytes = type == DType::f32 ? 4 : 2;

template <DType type>
__device__ inline float element_at(const void* row, int64_t i) {
    if constexpr (type == DType::f32) return global<float>(row)[i];
    else return Pairs<type>::widen(global<uint16_t>(row)[i]).x;
}

// FP8 numbers.
#if defined(__CUDACC__)
using EightBytes = uint2;
#else
using EightBytes = u32x2;
#endif

template <DType type>
struct Eight {
    static constexpr int kLoads = type == DType::f32 ? 2 : 1, kBytes = 16 * kLoads;
    Vector128 bits[kLoads];

    __device__ void load_from(const void* row, VectorIndex vector) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) bits[i] = load_vector(row, (vector * kLoads + i) * 16);
    }
    // Two of them as they lie: a word of two 16-bit numbers, or two of float32.
    __device__ auto pair(int i) const {
        if constexpr (type == DType::f32) {
            return f32x2{bits_float(word(bits[i / 2], i % 2 * 2)), bits_float(word(bits[i / 2], i % 2 * 2 + 1))};
        } else {
            return word(bits[0], i);
        }
    }
    __device__ f32x2 wide(int i) const {
        if constexpr (type == DType::f32) return pair(i);
        else return Pairs<type>::widen(pair(i));
    }
    // The largest finite magnitude, as a float32's bits: those of magnitudes have the order of the numbers.
    __device__ uint32_t largest() const {
        uint32_t found = 0;
        if constexpr (type == DType::f32) {
#pragma unroll
            for (int i = 0; i < kEight; ++i) found = larger(found, word(bits[i / 4], i % 4) & kMagnitudeBits);
        } else {
            // Two 16-bit numbers an instruction.
#pragma unroll
            for (int i = 0; i < kEight / 2; ++i) found = max_halves(found, word(bits[0], i) & 0x7FFF7FFFu);
            found = float_bits(Pairs<type>::widen(larger(found & 0xFFFFu, found >> 16)).x);
        }
        if (for_any_lane(found >= kInfinityBits)) [[unlikely]] {
            found = 0;
#pragma unroll
            for (int i = 0; i < kEight / 2; ++i) {
                const f32x2 two = wide(i);
                found = larger(found, if_finite(float_bits(two.x) & kMagnitudeBits));
                found = larger(found, if_finite(float_bits(two.y) & kMagnitudeBits));
            }
        }
        return found;
    }
    __device__ EightBytes quantized(const QuantizationScale& scale) const {
        const f32x2 y[kEight / 2] = {wide(0), wide(1), wide(2), wide(3)};
        return quantize_vector<type>(y, scale);
    }
    // By a scale that is the same in all lanes; of 16-bit numbers.
    __device__ EightBytes quantized_by_one(const QuantizationScale& scale) const {
        const f32x2 y[kEight / 2] = {wide(0), wide(1), wide(2), wide(3)};
        return quantize_eight(y, scale);
    }
};

// Of neighbours in a row.
template <DType type, int kHeld>
__device__ inline void store_quotients(void* p, const Eight<type> (&e)[kHeld], const QuantizationScale& scale) {
    static_assert(kHeld == 1 || kHeld == 2);
    if constexpr (kHeld == 1) store_at(p, e[0].quantized(scale));
    else store_at(p, joined(e[0].quantized(scale), e[1].quantized(scale)));
}

// The largest over the lanes that hold a group of `size` values, 32, 64 or 128. Without branches, so that those of
// several vectors overlap.
__device__ inline uint32_t largest_of_lanes(uint32_t v, int size) {
    const uint32_t of4 = max_over_lanes<4>(v), of8 = max_with_other_half<8>(of4), of16 = max_with_other_half<16>(of8);
    return size == 32 ? of4 : size == 64 ? of8 : of16;
}

// The largest over a workgroup of `threads`, in every thread. May be called again after a barrier.
template <int kMostThreads>
__device__ inline uint32_t largest_of_workgroup(uint32_t v, int threads) {
    __shared__ uint32_t maxima[kMostThreads / kLanes];
    v = max_over_lanes<kLanes>(v);
    const int lane = threadIdx.x % kLanes, waves = threads / kLanes;
    if (lane == 0) maxima[threadIdx.x / kLanes] = v;
    // Barrier: the maxima are read below by waves that did not write them.
    __syncthreads();
    return max_over_lanes<kLanes>(lane < waves ? maxima[lane] : 0u);
}

}  // namespace
}  // namespace rocm_fp8
