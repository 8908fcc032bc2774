// Softmax to int8 on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: 4 (float32 x) + 1 (out) an element, and the mask's. One thread owns a row, which stays in the nearest caches as
// float32: x + mask and its maximum; the exponentials and 32 partial sums of them; the quotients.
//
// Files: kernel.h (this kernel), avx2.cpp, avx512.cpp, softmax_int8.cpp (the launcher).
#pragma once

#include <algorithm>

#include "../../common/cpu/kept_memory.h"
#include "../../common/rows/cpu/int8.h"
#include "../../common/exponential.h"
#include "../softmax_int8.h"

namespace rocm_fp8::softmax_int8 {

struct Job : Args {
    int64_t rows;  // as run_rows names it
};

namespace {

// As integers, whose maximum is a vector's: those of NaN are above or below all numbers, and NaN shows in the sum.
inline float largest_of(const float* values, int64_t n) {
    int32_t largest = std::numeric_limits<int32_t>::min();
    for (int64_t i = 0; i < n; ++i) {
        const int32_t bits = int32_t(float_bits(values[i])), ordered = bits ^ (bits >> 31 & 0x7FFFFFFF);
        largest = ordered > largest ? ordered : largest;
    }
    return bits_float(uint32_t(largest ^ (largest >> 31 & 0x7FFFFFFF)));
}

template <class L, DType in, DType mask_type>
void softmax_rows(const Job& a, int64_t begin, int64_t end) {
    static thread_local KeptMemory memory;
    const int64_t padded = (a.d + kPartialSums - 1) / kPartialSums * kPartialSums;
    auto* const values = reinterpret_cast<float*>(memory.at_least((padded + kStage) * int64_t(sizeof(float))));
    float* const mask = values + padded;
    for (int64_t row = begin; row < end; ++row) {
        widen<L, in>(at<in>(a.x, row_at(a, a.x_strides, row)), a.d, values);
        if (a.mask) {
            const void* from = at<mask_type>(a.mask, row_at(a, a.mask_strides, row));
            for (int64_t i = 0; i < a.d; i += kStage) {
                const int64_t n = std::min<int64_t>(kStage, a.d - i);
                widen<L, mask_type>(at<mask_type>(from, i), n, mask);
                for (int64_t j = 0; j < n; ++j) values[i + j] += mask[j];
            }
        }
        const float largest = largest_of(values, a.d);
        for (int64_t i = a.d; i < padded; ++i) values[i] = -std::numeric_limits<float>::infinity();
        float sums[kPartialSums] = {};
        for (int64_t i = 0; i < padded; i += kPartialSums)
            for (int j = 0; j < kPartialSums; ++j) {
                values[i + j] = exp_of_negative(values[i + j] - largest);
                sums[j] += values[i + j];
            }
        for (int half = kPartialSums / 2; half > 0; half /= 2)
            for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
        const float sum = sums[0];
        int8_t* out = a.out + row_at(a, a.out_strides, row);
        for (int64_t i = 0; i < a.d; ++i) out[i] = to_int8(127.0f * (values[i] / sum));
    }
}

template <class L, DType in>
RowsKernel<Job> pick_by_mask(const Job& a) {
    return a.mask_dtype == DType::f32 ? softmax_rows<L, in, DType::f32> : softmax_rows<L, in, in>;
}
template <class L>
RowsKernel<Job> pick(const Job& a) {
    if (a.dtype == DType::f32) return pick_by_mask<L, DType::f32>(a);
    return a.dtype == DType::f16 ? pick_by_mask<L, DType::f16>(a) : pick_by_mask<L, DType::bf16>(a);
}

}  // namespace

RowsKernel<Job> kernel_avx2(const Job& job);
RowsKernel<Job> kernel_avx512(const Job& job);

}  // namespace rocm_fp8::softmax_int8
