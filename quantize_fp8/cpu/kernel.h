// Quantisation to FP8 on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: 2 (x) + 1 (out) = 3 an element with 16-bit types. Floor: those bytes at the copy rate. A row or a group is read
// twice, for its maximum and, from the nearest caches, for its quotients:
//
//     pass 1   |x| -> largest finite magnitude -> scale
//     pass 2   x / scale -> FP8; meanwhile what pass 1 reads next is prefetched
//
// A scale for the whole tensor takes two passes over memory: 5 bytes an element.
//
// Files: kernel.h (this kernel), ../../common/rows/cpu/quantize.h (both passes, shared with the other row operators),
// avx2.cpp, avx512.cpp, quantize_fp8.cpp (the launcher).
//
// Steps and figures: docs/journal/quantize_fp8-cpu.md.
#pragma once

#include "../../common/rows/cpu/quantize.h"
#include "../quantize_fp8.h"

namespace rocm_fp8::quantize {

using Job = DynamicJob<Args>;

namespace {

// Whether dense rows can be quantised as one long row, so that short ones cost no more.
inline bool are_one_row(const Job& a) {
    const DynamicScale& rule = a.dynamic;
    if (a.x_stride != a.d || a.out_stride != a.d) return false;
    if (a.scale) return true;
    return rule.group > 0 && a.d % rule.group == 0 && rule.row_stride == a.d / rule.group * rule.group_stride;
}

template <class L, DType in, DType out_type>
void quantize_rows(const Job& a, int64_t begin, int64_t end) {
    RowQuantizer<L, in, out_type> quantizer(a);
    if (are_one_row(a)) {
        const void* x = at<in>(a.x, begin * a.d);
        return quantizer.quantize(begin, (end - begin) * a.d, x, at<out_type>(a.out, begin * a.d), x);
    }
    for (int64_t row = begin; row < end; ++row) {
        const void* x = at<in>(a.x, row * a.x_stride);
        const void* next = row + 1 < end ? at<in>(x, a.x_stride) : x;
        quantizer.quantize(row, a.d, x, at<out_type>(a.out, row * a.out_stride), next);
    }
}

// Every instantiation, chosen by the arguments' types.
template <class L, DType in>
RowsKernel<Job> pick_by_out(const Job& a) {
    return a.out_dtype == DType::e4m3fn ? quantize_rows<L, in, DType::e4m3fn> : quantize_rows<L, in, DType::e4m3fnuz>;
}
template <class L>
RowsKernel<Job> pick(const Job& a) {
    if (a.dtype == DType::f32) return pick_by_out<L, DType::f32>(a);
    return a.dtype == DType::f16 ? pick_by_out<L, DType::f16>(a) : pick_by_out<L, DType::bf16>(a);
}

}  // namespace

RowsKernel<Job> kernel_avx2(const Job& job);
RowsKernel<Job> kernel_avx512(const Job& job);

}  // namespace rocm_fp8::quantize
