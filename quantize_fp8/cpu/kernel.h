// Quantisation to FP8 on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: 2 (x) + 1 (out) = 3 an element with 16-bit types. Floor: those bytes at the copy rate. A row or a group is read
// twice, from memory for its maximum and from the nearest cache for its quotients:
//
//     pass 1   |x| -> largest finite magnitude -> scale
//     pass 2   x / scale -> FP8
//
// A scale for the whole tensor takes two passes over memory: amax_rows, then quantize_rows with the scale given.
//
// Files: kernel.h (these kernels), one .cpp an instruction set, quantize_fp8.cpp (the launcher).
//
// Steps and figures: docs/journal/quantize_fp8-cpu.md.
#pragma once

#include <limits>

#include "../../common/cpu/lanes.h"
#include "../../common/cpu/rows.h"
#include "../quantize_fp8.h"

namespace rocm_fp8::quantize {

// A launch's arguments, and with a scale for the whole tensor what its parts have found.
struct Job : Args {
    void (*note_largest)(void* context, float largest);
    void* context;
};

namespace {

// The largest finite magnitude of n numbers.
template <class L, DType in>
float largest_finite(const void* x, int64_t n) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    typename L::F largest = L::set1(0);
    float rare = 0;
    for_blocks<L>(n, [&](int64_t i, auto count, int) {
        const typename L::F v = L::magnitude(L::template load<in, in>(at<in>(x, i), count));
        if (__builtin_expect(L::any_not_below(v, kInfinity), 0)) rare = L::template finite_maximum<in>(v, rare);
        else largest = L::larger(largest, v);
    });
    return L::template finite_maximum<in>(largest, rare);
}

inline void write_scale(const DynamicScale& to, int64_t row, int64_t group, float scale) {
    const int64_t at = row * to.row_stride + group * to.group_stride;
    if (to.exponents) static_cast<uint8_t*>(to.data)[at] = uint8_t(float_bits(scale) >> 23);
    else static_cast<float*>(to.data)[at] = scale;
}

inline float upper_bound(const DynamicScale& rule) {
    return rule.upper_bound ? *rule.upper_bound : std::numeric_limits<float>::infinity();
}

template <class L, DType in, DType out_type>
void quantize_rows(const Job& a, int64_t begin, int64_t end) {
    constexpr float kMax = Fp8Format<out_type>::max;
    const int64_t step = a.given_scale || a.scale.group <= 0 ? a.d : a.scale.group;
    const float bound = a.given_scale ? 0.0f : upper_bound(a.scale);
    for (int64_t row = begin; row < end; ++row) {
        const void* x = at<in>(a.x, row * a.x_stride);
        void* out = at<out_type>(a.out, row * a.out_stride);
        for (int64_t first = 0; first < a.d; first += step) {
            const int64_t length = a.d - first < step ? a.d - first : step;
            const void* values = at<in>(x, first);
            float scale;
            if (a.given_scale) {
                scale = *a.given_scale;
            } else {
                scale = scale_of(largest_finite<L, in>(values, length), a.scale, bound);
                write_scale(a.scale, row, first / step, scale);
            }
            L::template quantize<out_type, in>(values, at<out_type>(out, first), length,
                                               typename L::Scale(scale, kMax));
        }
    }
}

template <class L, DType in>
void amax_rows(const Job& a, int64_t begin, int64_t end) {
    float largest = 0;
    for (int64_t row = begin; row < end; ++row) {
        const float of_row = largest_finite<L, in>(at<in>(a.x, row * a.x_stride), a.d);
        largest = largest > of_row ? largest : of_row;
    }
    a.note_largest(a.context, largest);
}

// Every instantiation, chosen by the arguments' types.
template <class L, DType in>
RowsKernel<Job> pick_by_out(const Job& a) {
    if (a.note_largest) return amax_rows<L, in>;
    return a.out_dtype == DType::e4m3fn ? quantize_rows<L, in, DType::e4m3fn> : quantize_rows<L, in, DType::e4m3fnuz>;
}
template <class L>
RowsKernel<Job> pick(const Job& a) {
    if (a.dtype == DType::f32) return pick_by_out<L, DType::f32>(a);
    return a.dtype == DType::f16 ? pick_by_out<L, DType::f16>(a) : pick_by_out<L, DType::bf16>(a);
}

}  // namespace

RowsKernel<Job> kernel_portable(const Job& job);
RowsKernel<Job> kernel_avx2(const Job& job);
RowsKernel<Job> kernel_avx512(const Job& job);

}  // namespace rocm_fp8::quantize
