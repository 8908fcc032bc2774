// Quantisation to int8 for AMD and NVIDIA GPUs.
//
// Bytes: 2 (x) + 1 (out) = 3 an element with 16-bit types. Floor: those bytes at the memory rate. A row stays in
// registers between its range and its quotients.
#pragma once

#include "../common/rows/gpu/int8.h"
#include "quantize_int8.h"

namespace rocm_fp8::quantize_int8 {
namespace {

template <DType in, Holder holder, int kHeld>
__global__ __launch_bounds__(most_threads(holder)) void quantize_int8_rows(Args a) {
    let_next_kernel_start();
    const RowThreads<holder> by;
    if (by.row >= a.rows) return;
    wait_for_previous_kernel();
    const uint32_t vectors = uint32_t(a.d) / kEight;
    const void* x = offset(a.x, by.row * a.x_stride * kElementBytes<in>);
    Eight<in> e[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) e[v].load_from(x, by.loaded(v, vectors));
    FiniteRange range;
    if (!a.scale.scale) {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            EightFloats y;
            widen(e[v], y);
#pragma unroll
            for (int i = 0; i < kEight; ++i) range.note(y[i]);
        }
    }
    const Int8Divisor by_scale = divisor_of_row(a.scale, by, range);
    int8_t* out = a.out + by.row * a.out_stride;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        if (by.index(v) >= vectors) continue;
        EightFloats y;
        widen(e[v], y);
        store_codes(out + int64_t(by.index(v)) * kEight, y, [&](float each) { return by_scale.quotient(each); });
    }
}

template <DType in>
__global__ __launch_bounds__(kRowsThreads) void quantize_int8_fallback(Args a) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    RowThreads<Holder::workgroup> by;
    for (; by.row < a.rows; by.row += gridDim.x) {
        const void* x = offset(a.x, by.row * a.x_stride * kElementBytes<in>);
        FiniteRange range;
        if (!a.scale.scale) {
            for (int64_t i = by.t; i < a.d; i += by.lanes) range.note(element_at<in>(x, i));
        }
        const Int8Divisor by_scale = divisor_of_row(a.scale, by, range);
        auto* out = global<uint8_t>(static_cast<void*>(a.out + by.row * a.out_stride));
        for (int64_t i = by.t; i < a.d; i += by.lanes) out[i] = uint8_t(by_scale.quotient(element_at<in>(x, i)));
    }
}

template <DType in, class Vendor>
Status launch_as(const Args& a, const Vendor& vendor) {
    const bool vectors = a.d % kEight == 0 && rows_aligned(a.x, a.x_stride * kElementBytes<in>) &&
                         rows_aligned(a.out, a.out_stride, kEight);
    const auto pick = [&]<int form>() {
        return quantize_int8_rows<in, kInt8Forms[form].holder, kInt8Forms[form].held>;
    };
    return launch_int8_rows(a, a.rows, vectors, vendor, pick, quantize_int8_fallback<in>);
}

// A row without values has a scale.
template <class Vendor>
Status launch_by_type(const Args& a, const Vendor& vendor) {
    if (a.rows == 0 || (a.d == 0 && a.scale.scale)) return {};
    if (a.dtype == DType::f32) return launch_as<DType::f32>(a, vendor);
    return a.dtype == DType::f16 ? launch_as<DType::f16>(a, vendor) : launch_as<DType::bf16>(a, vendor);
}

}  // namespace
}  // namespace rocm_fp8::quantize_int8
