// Softmax to int8 for AMD and NVIDIA GPUs.
//
// Bytes: 4 (float32 x) + 1 (out) an element, and the mask's. Floor: those bytes at the memory rate. A row stays in
// registers, as float32, from the sum with the mask to the quotients.
#pragma once

#include "../common/rows/gpu/int8.h"
#include "../common/exponential.h"
#include "../common/gpu/ordered.h"
#include "softmax_int8.h"

namespace rocm_fp8::softmax_int8 {
namespace {

__device__ inline int8_t code_of(float e, float sum) { return to_int8(127.0f * (e / sum)); }

template <DType in, DType mask_type, Holder holder, int kHeld>
__global__ __launch_bounds__(most_threads(holder)) void softmax_int8_rows(Args a) {
    let_next_kernel_start();
    const RowThreads<holder> by;
    if (by.row >= a.rows()) return;
    wait_for_previous_kernel();
    const uint32_t vectors = uint32_t(a.d) / kEight;
    const void* x = offset(a.x, row_at(a, a.x_strides, by.row) * kElementBytes<in>);
    Eight<in> loaded[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) loaded[v].load_from(x, by.loaded(v, vectors));
    keep_order();  // the loads first
    EightFloats e[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) widen(loaded[v], e[v]);
    if (a.mask) {
        const void* mask = offset(a.mask, row_at(a, a.mask_strides, by.row) * kElementBytes<mask_type>);
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            Eight<mask_type> added;
            added.load_from(mask, by.loaded(v, vectors));
            EightFloats values;
            widen(added, values);
#pragma unroll
            for (int i = 0; i < kEight; ++i) e[v][i] += values[i];
        }
    }
    uint32_t most = 0;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
#pragma unroll
        for (int i = 0; i < kEight; ++i) most = larger(most, ordered(e[v][i]));
    }
    const float largest = of_ordered(by.largest(most));
    float part = 0;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
#pragma unroll
        for (int i = 0; i < kEight; ++i) e[v][i] = exp_of_negative(e[v][i] - largest);
        if (by.index(v) >= vectors) continue;
#pragma unroll
        for (int i = 0; i < kEight; ++i) part += e[v][i];
    }
    const float sum = by.sum(part);
    int8_t* out = a.out + row_at(a, a.out_strides, by.row);
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        if (by.index(v) >= vectors) continue;
        store_codes(out + int64_t(by.index(v)) * kEight, e[v], [&](float each) { return code_of(each, sum); });
    }
}

template <DType in, DType mask_type>
__global__ __launch_bounds__(kRowsThreads) void softmax_int8_fallback(Args a) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    RowThreads<Holder::workgroup> by;
    for (; by.row < a.rows(); by.row += gridDim.x) {
        const void* x = offset(a.x, row_at(a, a.x_strides, by.row) * kElementBytes<in>);
        const void* mask =
            a.mask ? offset(a.mask, row_at(a, a.mask_strides, by.row) * kElementBytes<mask_type>) : nullptr;
        const auto value = [&](int64_t i) {
            const float v = element_at<in>(x, i);
            return mask ? v + element_at<mask_type>(mask, i) : v;
        };
        uint32_t most = 0;
        for (int64_t i = by.t; i < a.d; i += by.lanes) most = larger(most, ordered(value(i)));
        const float largest = of_ordered(by.largest(most));
        float part = 0;
        for (int64_t i = by.t; i < a.d; i += by.lanes) part += exp_of_negative(value(i) - largest);
        const float sum = by.sum(part);
        auto* out = global<uint8_t>(static_cast<void*>(a.out + row_at(a, a.out_strides, by.row)));
        for (int64_t i = by.t; i < a.d; i += by.lanes) {
            out[i] = uint8_t(code_of(exp_of_negative(value(i) - largest), sum));
        }
    }
}

// Whether rows start at multiples of so many bytes.
inline bool aligned(const Args& a, const void* base, const Strides& s, int element, int bytes) {
    bool all = reinterpret_cast<uintptr_t>(base) % bytes == 0;
    for (int i = 0; i < 3; ++i) all = all && (a.size[i] == 1 || s.stride[i] * element % bytes == 0);
    return all;
}

template <DType in, DType mask_type, class Vendor>
Status launch_as(const Args& a, const Vendor& vendor) {
    const bool vectors = a.d % kEight == 0 && aligned(a, a.x, a.x_strides, kElementBytes<in>, 16) &&
                         (!a.mask || aligned(a, a.mask, a.mask_strides, kElementBytes<mask_type>, 16)) &&
                         aligned(a, a.out, a.out_strides, 1, kEight);
    const auto pick = [&]<int form>() {
        return softmax_int8_rows<in, mask_type, kInt8Forms[form].holder, kInt8Forms[form].held>;
    };
    return launch_int8_rows(a, a.rows(), vectors, vendor, pick, softmax_int8_fallback<in, mask_type>);
}

template <DType in, class Vendor>
Status launch_by_mask(const Args& a, const Vendor& vendor) {
    return a.mask_dtype == DType::f32 ? launch_as<in, DType::f32>(a, vendor) : launch_as<in, in>(a, vendor);
}

template <class Vendor>
Status launch_by_type(const Args& a, const Vendor& vendor) {
    if (a.rows() == 0 || a.d == 0) return {};
    if (a.dtype == DType::f32) return launch_by_mask<DType::f32>(a, vendor);
    return a.dtype == DType::f16 ? launch_by_mask<DType::f16>(a, vendor) : launch_by_mask<DType::bf16>(a, vendor);
}

}  // namespace
}  // namespace rocm_fp8::softmax_int8
