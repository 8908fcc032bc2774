// Quantisation to int8 on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: 2 (x) + 1 (out) = 3 an element with 16-bit types. Floor: those bytes at the copy rate. Parts of kStage values
// are widened into the nearest cache, then quantised. A row whose scale is computed is read twice, the second time from
// the caches.
//
// Files: kernel.h (this kernel), ../../common/rows/cpu/int8.h, avx2.cpp, avx512.cpp, quantize_int8.cpp (the
// launcher).
#pragma once

#include <algorithm>

#include "../../common/rows/cpu/int8.h"
#include "../quantize_int8.h"

namespace rocm_fp8::quantize_int8 {
namespace {

template <class L, DType in>
void quantize_rows(const Args& a, int64_t begin, int64_t end) {
    Int8Rows rows(a.scale);
    alignas(64) float values[kStage];
    for (int64_t row = begin; row < end; ++row) {
        const void* x = at<in>(a.x, row * a.x_stride);
        const auto parts = [&](auto use) {
            for (int64_t i = 0; i < a.d; i += kStage) {
                const int64_t n = std::min<int64_t>(kStage, a.d - i);
                widen<L, in>(at<in>(x, i), n, values);
                use(i, n);
            }
        };
        if (rows.computed()) {
            FiniteRange range;
            parts([&](int64_t, int64_t n) { range.note(values, n); });
            rows.compute(row, range);
        }
        parts([&](int64_t i, int64_t n) { rows.quantize(values, n, a.out + row * a.out_stride + i); });
    }
}

template <class L>
RowsKernel<Args> pick(const Args& a) {
    if (a.dtype == DType::f32) return quantize_rows<L, DType::f32>;
    return a.dtype == DType::f16 ? quantize_rows<L, DType::f16> : quantize_rows<L, DType::bf16>;
}

}  // namespace

RowsKernel<Args> kernel_avx2(const Args& args);
RowsKernel<Args> kernel_avx512(const Args& args);

}  // namespace rocm_fp8::quantize_int8
