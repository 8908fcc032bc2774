// Residual + LayerNorm + int8 for AMD and NVIDIA GPUs.
//
// Bytes, with a residual and 16-bit types: 2 (x) + 2 (residual) + 2 (residual written) + 1 (out) = 7 an element. Floor:
// those bytes at the memory rate. A row stays in registers, as float32, from the sum to the quotients.
#pragma once

#include "../common/rows/gpu/int8.h"
#include "layer_norm_int8.h"

namespace rocm_fp8::layer_norm_int8 {
namespace {

// x + residual, rounded to the type.
template <DType in>
__device__ inline Eight<in> added(const Eight<in>& x, const Eight<in>& residual) {
    Eight<in> sum;
    if constexpr (in == DType::f32) {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
            const float v = bits_float(word(x.bits[i / 4], i % 4)) + bits_float(word(residual.bits[i / 4], i % 4));
            set_word(sum.bits[i / 4], i % 4, float_bits(v));
        }
    } else {
#pragma unroll
        for (int i = 0; i < kEight / 2; ++i) {
            set_word(sum.bits[0], i, Pairs<in>::add(word(x.bits[0], i), word(residual.bits[0], i)));
        }
    }
    return sum;
}

template <DType in>
__device__ inline f32x2 rounded(f32x2 v) {
    if constexpr (in == DType::f32) return v;
    else return Pairs<in>::widen(Pairs<in>::round_any_nan(v));
}

template <DType in, DType weight_type, Holder holder, int kHeld>
__global__ __launch_bounds__(most_threads(holder)) void layer_norm_int8_rows(Args a) {
    let_next_kernel_start();
    const RowThreads<holder> by;
    if (by.row >= a.rows) return;
    wait_for_previous_kernel();
    const uint32_t vectors = uint32_t(a.d) / kEight;
    const void* x = offset(a.x, by.row * a.x_stride * kElementBytes<in>);
    void* residual = a.residual ? offset(a.residual, by.row * a.residual_stride * kElementBytes<in>) : nullptr;
    Eight<in> e[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) e[v].load_from(x, by.loaded(v, vectors));
    if (residual) {
        Eight<in> other[kHeld];
#pragma unroll
        for (int v = 0; v < kHeld; ++v) other[v].load_from(residual, by.loaded(v, vectors));
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            e[v] = added<in>(e[v], other[v]);
            if (by.index(v) >= vectors) continue;
#pragma unroll
            for (int i = 0; i < Eight<in>::kLoads; ++i) {
                store_at(offset(residual, (int64_t(by.index(v)) * Eight<in>::kLoads + i) * 16), e[v].bits[i]);
            }
        }
    }
    EightFloats h[kHeld];
    float sum = 0;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        widen(e[v], h[v]);
        if (by.index(v) >= vectors) continue;
#pragma unroll
        for (int i = 0; i < kEight; ++i) sum += h[v][i];
    }
    const float mean = by.sum(sum) / float(a.d);
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
#pragma unroll
        for (int i = 0; i < kEight; ++i) h[v][i] -= mean;
        if (by.index(v) >= vectors) continue;
#pragma unroll
        for (int i = 0; i < kEight; ++i) squares += h[v][i] * h[v][i];
    }
    const float r = 1.0f / sqrtf(by.sum(squares) / float(a.d) + a.epsilon);
    FiniteRange range;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        Eight<weight_type> weight, bias;
        weight.load_from(a.weight, by.loaded(v, vectors));
        if (a.bias) bias.load_from(a.bias, by.loaded(v, vectors));
#pragma unroll
        for (int i = 0; i < kEight / 2; ++i) {
            const f32x2 w = weight.wide(i);
            f32x2 y{h[v][2 * i] * r * w.x, h[v][2 * i + 1] * r * w.y};
            if (a.bias) {
                const f32x2 b = bias.wide(i);
                y = f32x2{y.x + b.x, y.y + b.y};
            }
            y = rounded<in>(y);
            h[v][2 * i] = y.x, h[v][2 * i + 1] = y.y;
            range.note(y.x);
            range.note(y.y);
        }
    }
    const Int8Divisor by_scale = divisor_of_row(a.scale, by, range);
    int8_t* out = a.out + by.row * a.out_stride;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        if (by.index(v) >= vectors) continue;
        store_codes(out + int64_t(by.index(v)) * kEight, h[v], [&](float each) { return by_scale.quotient(each); });
    }
}

// A thread reads again the elements of the residual that it wrote.
template <DType in, DType weight_type>
__global__ __launch_bounds__(kRowsThreads) void layer_norm_int8_fallback(Args a) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    RowThreads<Holder::workgroup> by;
    for (; by.row < a.rows; by.row += gridDim.x) {
        const void* x = offset(a.x, by.row * a.x_stride * kElementBytes<in>);
        void* residual = a.residual ? offset(a.residual, by.row * a.residual_stride * kElementBytes<in>) : nullptr;
        float sum = 0;
        for (int64_t i = by.t; i < a.d; i += by.lanes) {
            float h = element_at<in>(x, i);
            if (residual) {
                h += element_at<in>(residual, i);
                if constexpr (in == DType::f32) {
                    global<float>(residual)[i] = h;
                } else {
                    const uint32_t bits = Pairs<in>::round_any_nan(f32x2{h, 0.0f});
                    global<uint16_t>(residual)[i] = uint16_t(bits);
                    h = Pairs<in>::widen(bits).x;
                }
            }
            sum += h;
        }
        const float mean = by.sum(sum) / float(a.d);
        const auto centered = [&](int64_t i) { return element_at<in>(residual ? residual : x, i) - mean; };
        float squares = 0;
        for (int64_t i = by.t; i < a.d; i += by.lanes) squares += centered(i) * centered(i);
        const float r = 1.0f / sqrtf(by.sum(squares) / float(a.d) + a.epsilon);
        const auto result = [&](int64_t i) {
            float y = centered(i) * r * element_at<weight_type>(a.weight, i);
            if (a.bias) y += element_at<weight_type>(a.bias, i);
            return rounded<in>(f32x2{y, 0.0f}).x;
        };
        FiniteRange range;
        if (!a.scale.scale) {
            for (int64_t i = by.t; i < a.d; i += by.lanes) range.note(result(i));
        }
        const Int8Divisor by_scale = divisor_of_row(a.scale, by, range);
        auto* out = global<uint8_t>(static_cast<void*>(a.out + by.row * a.out_stride));
        for (int64_t i = by.t; i < a.d; i += by.lanes) out[i] = uint8_t(by_scale.quotient(result(i)));
    }
}

template <DType in, DType weight_type, class Vendor>
Status launch_as(const Args& a, const Vendor& vendor) {
    const bool vectors = a.d % kEight == 0 && rows_aligned(a.x, a.x_stride * kElementBytes<in>) &&
                         (!a.residual || rows_aligned(a.residual, a.residual_stride * kElementBytes<in>)) &&
                         rows_aligned(a.weight, 0) && rows_aligned(a.bias, 0) &&
                         rows_aligned(a.out, a.out_stride, kEight);
    const auto pick = [&]<int form>() {
        return layer_norm_int8_rows<in, weight_type, kInt8Forms[form].holder, kInt8Forms[form].held>;
    };
    return launch_int8_rows(a, a.rows, vectors, vendor, pick, layer_norm_int8_fallback<in, weight_type>);
}

template <DType in, class Vendor>
Status launch_by_weight(const Args& a, const Vendor& vendor) {
    return a.weight_dtype == DType::f32 ? launch_as<in, DType::f32>(a, vendor) : launch_as<in, in>(a, vendor);
}

template <class Vendor>
Status launch_by_type(const Args& a, const Vendor& vendor) {
    if (a.rows == 0 || a.d == 0) return {};
    if (a.dtype == DType::f32) return launch_by_weight<DType::f32>(a, vendor);
    return a.dtype == DType::f16 ? launch_by_weight<DType::f16>(a, vendor) : launch_by_weight<DType::bf16>(a, vendor);
}

}  // namespace
}  // namespace rocm_fp8::layer_norm_int8
