// Common parts of the RMSNorm kernels for AMD and NVIDIA GPUs: the order of a vector's sum, an element's arithmetic,
// the element-by-element kernel, the choice by types.
#pragma once

#include "../common/rows/gpu/launch.h"
#include "../quantize_fp8/quantize_fp8.h"
#include "reciprocal_rms.h"
#include "rmsnorm_fp8.h"

namespace rocm_fp8::rms_norm {
namespace {

// h^2 summed over a vector, in the one order that all kernels use.
template <int kPairs>
__device__ inline float sum_of_squares(const f32x2 (&h)[kPairs]) {
    f32x2 s = h[0] * h[0];
#pragma unroll
    for (int i = 1; i < kPairs; ++i) s = fma(h[i], h[i], s);
    return s.x + s.y;
}

// Two elements: round(round(h * r) * weight). The weights are a pair of the type, or of float32.
template <DType in>
__device__ inline uint32_t normalize(uint32_t h, float r, uint32_t weights) {
    return Pairs<in>::mul(Pairs<in>::scaled(h, r), weights);
}
template <DType in>
__device__ inline uint32_t normalize(uint32_t h, float r, f32x2 weights) {
    return Pairs<in>::round_any_nan(Pairs<in>::widen(Pairs<in>::scaled(h, r)) * weights);
}

// What a kernel makes of the normalised values.
enum class Output { values, fp8, computed };  // fp8: by a given scale; computed: by scales of its own

// Whether the fast kernels can take the arguments. d must be a multiple of `elements`. Rows of all tensors must start
// at multiples of 16 bytes, rows of an FP8 result at multiples of `fp8_bytes`.
inline bool rows_fit(const Args& a, int elements, int fp8_bytes) {
    const bool out =
        is_fp8(a.out_dtype) ? rows_aligned(a.out, a.out_stride, fp8_bytes) : rows_aligned(a.out, a.out_stride * 2);
    return a.d % elements == 0 && out && rows_aligned(a.x, a.x_stride * 2) && rows_aligned(a.weight, 0) &&
           (!a.residual || rows_aligned(a.residual, a.residual_stride * 2)) &&
           (!a.normalized || rows_aligned(a.normalized, a.normalized_stride * 2));
}

// The end of a kernel with computed scales. The threads of `by` hold a row's normalised values in `y`, thread t vectors
// t, t + by.lanes, ...; by.largest() exchanges a maximum. False: the results, in `q`, are not to be stored.
template <DType in, int kHeld, class Row, class Quotients>
__device__ inline bool computed_quotients(const Args& a, const Row& by, const Eight<in> (&y)[kHeld],
                                          Quotients (&q)[kHeld]) {
    const uint32_t vectors = uint32_t(a.d) / kEight;
    const auto index = [&](int v) { return uint32_t(v * by.lanes + by.t); };
    if (a.normalized) {
        void* normalized = offset(a.normalized, by.row * a.normalized_stride * 2);
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            if (index(v) < vectors) store_at(offset(normalized, int64_t(index(v)) * 16), y[v].bits[0]);
        }
    }
    const float bound = upper_bound(a.dynamic);
    if (a.dynamic.group > 0) {
        const int lanes = a.dynamic.group / kEight;
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            // Threads beyond the row's end hold its last vector, which changes no maximum.
            const uint32_t largest = largest_of_lanes(y[v].largest(), a.dynamic.group);
            const float scale = scale_of(bits_float(largest), a.dynamic, bound);
            if (index(v) < vectors && index(v) % lanes == 0) write_scale(a.dynamic, by.row, index(v) / lanes, scale);
            q[v] = y[v].quantized(QuantizationScale(scale));
        }
        return true;
    }
    uint32_t largest = 0;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) largest = larger(largest, y[v].largest());
    largest = by.largest(largest);
    if (a.dynamic.group == DynamicScale::kTensor) {  // see launch_tensor
        if (by.t == 0) global<uint32_t>(a.dynamic.data)[by.row] = largest;
        return false;
    }
    const float scale = scale_of(bits_float(largest), a.dynamic, bound);
    if (by.t == 0) write_scale(a.dynamic, by.row, 0, scale);
    const QuantizationScale quantization(scale);
#pragma unroll
    for (int v = 0; v < kHeld; ++v) q[v] = y[v].quantized(quantization);
    return true;
}

// A scale for the tensor: launch(args) normalises, and writes the values and the largest of each row instead of a scale.
// A second launch quantises. A tensor of one row has the scale of that row.
template <class Launch>
Status launch_tensor(const Args& args, const Executor& on, const Launch& launch) {
    if (args.rows == 1) {
        Args row = args;
        row.dynamic.group = DynamicScale::kRow;
        return launch(row);
    }
    const int64_t bytes = args.normalized ? 0 : parts(args.rows * args.d * 2, 16) * 16;
    char* memory = static_cast<char*>(on.scratch(on.context, bytes + args.rows * int64_t(sizeof(uint32_t))));
    if (!memory) return {"no memory for the values of a tensor"};
    Args first = args;
    if (!args.normalized) first.normalized = memory, first.normalized_stride = args.d;
    first.dynamic.data = memory + bytes;
    const Status status = launch(first);
    if (!status.ok()) return status;
    quantize::Args second{};
    second.x = first.normalized, second.x_stride = first.normalized_stride, second.dtype = args.dtype;
    second.dynamic = args.dynamic;
    second.out = args.out, second.out_stride = args.out_stride, second.out_dtype = args.out_dtype;
    second.rows = args.rows, second.d = args.d;
    return quantize::launch_by_maxima(second, reinterpret_cast<uint32_t*>(memory + bytes), args.rows, on);
}

// One row per CTA or workgroup of Rows::kThreads, element by element. It takes any d, any stride, the element's own
// alignment and either FP8 format. It reads h again from memory.
//
// Rows has kVector, kSlots and sum_of_slots(slots, used) of the fast kernels, so that the order of the sum is theirs,
// and Machine.
template <class Rows, DType in>
__device__ inline void rms_norm_row(const Args& a, int64_t row) {
    constexpr int kVector = Rows::kVector, kSlots = Rows::kSlots, kThreads = Rows::kThreads;
    const auto* x = global<uint16_t>(offset(a.x, row * a.x_stride * 2));
    auto* residual = global<uint16_t>(a.residual ? offset(a.residual, row * a.residual_stride * 2) : nullptr);
    __shared__ float slots[kSlots];
    for (int i = threadIdx.x; i < kSlots; i += kThreads) slots[i] = 0;
    // Closes: the zeros are added to below, by lanes that did not write them.
    __syncthreads();

    const int lane = threadIdx.x % kLanes, wave = uniform(threadIdx.x / kLanes);
    constexpr int kWaves = kThreads / kLanes, kGroup = kLanes * kVector;
    const int64_t groups = (a.d + kGroup - 1) / kGroup;
    for (int64_t group = wave; group < groups; group += kWaves) {
        const int64_t first = group * kGroup + lane * kVector;
        f32x2 wide[kVector / 2];
        for (int i = 0; i < kVector / 2; ++i) {
            uint32_t two = 0;
            for (int k = 0; k < 2; ++k) {
                const int64_t at = first + 2 * i + k;
                if (at >= a.d) continue;
                uint32_t h = x[at];
                if (a.residual) {
                    h = Pairs<in>::add(h, residual[at]) & 0xFFFFu;
                    residual[at] = uint16_t(h);
                }
                two |= h << (16 * k);
            }
            wide[i] = Pairs<in>::widen(two);
        }
        const float sum = sum_over_lanes(sum_of_squares(wide));
        // A slot belongs to one wave: kSlots is a multiple of the number of waves.
        static_assert(kSlots % kWaves == 0);
        if (lane == kLaneOfSum) slots[group % kSlots] += sum;
    }
    // Closes: the slots, and the residual's elements, are read below by lanes that did not write them.
    __syncthreads();
    const float r =
        reciprocal_rms(Rows::sum_of_slots(slots, kSlots), 1.0f / float(a.d), a.epsilon, typename Rows::Machine());

    const auto normalized = [&](int64_t i) {
        const uint32_t h = a.residual ? residual[i] : x[i];
        return 0xFFFFu & (a.weight_dtype == DType::f32 ? normalize<in>(h, r, f32x2{global<float>(a.weight)[i], 0.0f})
                                                       : normalize<in>(h, r, uint32_t(global<uint16_t>(a.weight)[i])));
    };
    if (a.is_dynamic()) {
        if (a.normalized) {
            auto* kept = global<uint16_t>(offset(a.normalized, row * a.normalized_stride * 2));
            for (int64_t i = threadIdx.x; i < a.d; i += kThreads) kept[i] = uint16_t(normalized(i));
        }
        const auto value = [&](int64_t i) { return Pairs<in>::widen(normalized(i)).x; };
        if (a.dynamic.group == DynamicScale::kTensor) {  // see launch_tensor
            const uint32_t largest =
                largest_of_workgroup<kThreads>(largest_value(value, 0, a.d, threadIdx.x, kThreads), kThreads);
            if (threadIdx.x == 0) global<uint32_t>(a.dynamic.data)[row] = largest;
            return;
        }
        const QuantizedRows to{nullptr, a.dynamic, a.out, a.rows, a.d, a.out_stride, a.out_dtype == DType::e4m3fnuz};
        return write_row_by_element<kThreads>(value, to, row);
    }
    const float scale = a.out_dtype == in ? 1.0f : *global<float>(a.scale);
    for (int64_t i = threadIdx.x; i < a.d; i += kThreads) {
        const uint32_t y = normalized(i);
        if (a.out_dtype == in) {
            global<uint16_t>(a.out)[row * a.out_stride + i] = uint16_t(y);
        } else {
            global<uint8_t>(a.out)[row * a.out_stride + i] =
                quantize_one(Pairs<in>::widen(y).x, scale, a.out_dtype == DType::e4m3fnuz);
        }
    }
}

// pick.operator()<in, weight, output, with_residual>() for the arguments' types.
template <DType in, DType weight, Output output, class Pick>
auto by_residual(const Args& a, const Pick& pick) {
    return a.residual ? pick.template operator()<in, weight, output, true>()
                      : pick.template operator()<in, weight, output, false>();
}
template <DType in, DType weight, class Pick>
auto by_out(const Args& a, const Pick& pick) {
    if (!is_fp8(a.out_dtype)) return pick.template operator()<in, weight, Output::values, false>();
    return a.is_dynamic() ? by_residual<in, weight, Output::computed>(a, pick)
                          : by_residual<in, weight, Output::fp8>(a, pick);
}
template <DType in, class Pick>
auto by_weight(const Args& a, const Pick& pick) {
    return a.weight_dtype == DType::f32 ? by_out<in, DType::f32>(a, pick) : by_out<in, in>(a, pick);
}
template <class Pick>
auto by_types(const Args& a, const Pick& pick) {
    return a.dtype == DType::f16 ? by_weight<DType::f16>(a, pick) : by_weight<DType::bf16>(a, pick);
}

}  // namespace
}  // namespace rocm_fp8::rms_norm
