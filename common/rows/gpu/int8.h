// Rows of values that become int8, for AMD and NVIDIA GPUs: who holds a row, its sums and maxima, scales, quotients.
//
//     vectors   d and all rows are multiples of 8 elements and of 16 bytes. Thread t of a wave (warp) or of a workgroup
//               (CTA) holds vectors t, t + lanes, ... of a row in registers
//     elements  any d, stride and alignment: a workgroup, one element a thread after the other, read anew in each pass
//
// Which form a row takes depends on d, types and alignment, not on the number of rows: so do the bits of a sum.
#pragma once

#include "../../int8.h"
#include "launch.h"

namespace rocm_fp8 {
namespace {

// The finite range of values; 0 belongs to it. As bits of magnitudes, which have the order of the numbers.
struct FiniteRange {
    uint32_t below = 0, above = 0;

    __device__ void note(float v) {
        const uint32_t bits = float_bits(v), magnitude = if_finite(bits & kMagnitudeBits);
        const bool negative = bits >> 31;
        below = larger(below, negative ? magnitude : 0u);
        above = larger(above, negative ? 0u : magnitude);
    }
};

// The threads of a row, with exchanges that may be repeated.
template <Holder holder>
struct RowThreads : RowHolder<holder> {
    static_assert(holder == Holder::wave || holder == Holder::workgroup);
    using RowHolder<holder>::lanes, RowHolder<holder>::t;

    // Over the row, in every thread.
    __device__ uint32_t largest(uint32_t v) const {
        // Barrier: waves may still read the maxima of the last call.
        if constexpr (holder == Holder::workgroup) __syncthreads();
        return RowHolder<holder>::largest(v);
    }
    // Not in the order of RowHolder::sum: over the threads, not over vectors.
    __device__ float sum(float v) const {
        v = sum_over_lanes(v);
        if constexpr (holder == Holder::wave) return of_lane_of_sum(v);
        __shared__ float sums[kMostRowThreads / kLanes];
        // Barrier: waves may still read the sums of the last call.
        __syncthreads();
        if (t % kLanes == kLaneOfSum) sums[t / kLanes] = v;
        // Barrier: the sums are read below by waves that did not write them.
        __syncthreads();
        float total = sums[0];
        for (int wave = 1; wave < lanes / kLanes; ++wave) total += sums[wave];
        return total;
    }
};

// By what a row is divided.
struct Int8Divisor {
    float scale;
    int32_t zero;
    bool has_zero;

    __device__ uint32_t quotient(float v) const {
        return uint8_t(has_zero ? quantize_int8_one(v, scale, zero) : quantize_int8_one(v, scale));
    }
};

// The scale that is given, or that of a row with this range (each thread's part of it), which is written.
template <Holder holder>
__device__ inline Int8Divisor divisor_of_row(const Int8Scale& s, const RowThreads<holder>& by,
                                             const FiniteRange& range) {
    if (s.scale) {
        return {*global<float>(s.scale), s.zero ? *global<int32_t>(s.zero) : 0, s.zero != nullptr};
    }
    const bool has_zero = s.zero_out != nullptr;
    Int8Divisor found{0, 0, has_zero};
    if (has_zero) {
        const uint32_t below = by.largest(range.below), above = by.largest(range.above);
        const Int8Range of = int8_range(-bits_float(below), bits_float(above));
        found.scale = of.scale, found.zero = of.zero;
    } else {
        found.scale = int8_scale(bits_float(by.largest(larger(range.below, range.above))));
    }
    if (by.t == 0) {
        global<float>(s.scale_out)[by.row * s.scale_stride] = found.scale;
        if (has_zero) global<int32_t>(s.zero_out)[by.row * s.zero_stride] = found.zero;
    }
    return found;
}

// Eight neighbours, as float32.
using EightFloats = float[kEight];

template <DType type>
__device__ inline void widen(const Eight<type>& from, EightFloats& to) {
#pragma unroll
    for (int i = 0; i < kEight / 2; ++i) {
        const f32x2 two = from.wide(i);
        to[2 * i] = two.x, to[2 * i + 1] = two.y;
    }
}
template <class Code>
__device__ inline void store_codes(int8_t* to, const EightFloats& v, const Code& code) {
    uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < kEight; ++i) words[i / 4] |= uint32_t(uint8_t(code(v[i]))) << (i % 4 * 8);
    store_at(to, EightBytes{words[0], words[1]});
}

// --- the launch ---

constexpr RowForm kInt8Forms[] = {{Holder::wave, 1}, {Holder::wave, 4}, {Holder::workgroup, 4}};

struct Int8Config {
    int form;  // of kInt8Forms; -1: element by element
    int threads;
    int64_t groups;
};

constexpr Int8Config int8_config(int64_t rows, int64_t d, bool vectors) {
    constexpr int64_t kMostGroups = int64_t(1) << 20;  // the kernel's loop takes the rest
    const int64_t count = d / kEight;
    constexpr int kWaves = kRowsThreads / kLanes;
    if (!vectors || count > 4 * kMostRowThreads) return {-1, kRowsThreads, rows < kMostGroups ? rows : kMostGroups};
    if (count <= kLanes) return {0, kRowsThreads, ceil_div(rows, kWaves)};
    if (count <= 4 * kLanes) return {1, kRowsThreads, ceil_div(rows, kWaves)};
    return {2, int(ceil_div(count, 4 * kLanes)) * kLanes, rows};
}

// pick.operator()<form>() is the kernel of a form; any: the one that takes elements.
template <class Pick, class Any, class Vendor, class Args>
Status launch_int8_rows(const Args& a, int64_t rows, bool vectors, const Vendor& vendor, const Pick& pick, Any any) {
    const Int8Config config = int8_config(rows, a.d, vectors);
    if (config.form < 0) return vendor.launch(any, config.groups, config.threads, 1, a);
    constexpr int kForms = sizeof(kInt8Forms) / sizeof(kInt8Forms[0]);
    return vendor.launch(kernel_at<kForms>(config.form, pick), config.groups, config.threads, 1, a);
}

}  // namespace
}  // namespace rocm_fp8
