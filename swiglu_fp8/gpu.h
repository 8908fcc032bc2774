// What is the same in the SwiGLU kernels for AMD and NVIDIA GPUs: those with computed scales, which are
// ../common/rows/gpu/quantize.h over gated values, and the careful one. After the vendor's gated.h.
#pragma once

#include "../common/rows/gpu/launch.h"
#include "../quantize_fp8/quantize_fp8.h"
#include "silu.h"
#include "swiglu_fp8.h"

namespace rocm_fp8::swiglu {
namespace {

// Whether the fast kernel can take it: d is a multiple of `elements`; rows of x start at multiples of 16 bytes, those of
// the result of `fp8_bytes`.
inline bool rows_fit(const Args& a, int elements, int fp8_bytes) {
    return a.d % elements == 0 && rows_aligned(a.x, a.x_stride * 2) && rows_aligned(a.out, a.out_stride, fp8_bytes);
}

// Gates and results from a column on; `d` stays the way from gate to up.
inline Args columns_from(const Args& a, int64_t first) {
    Args part = a;
    part.x = static_cast<const char*>(a.x) + first * 2;
    part.out = static_cast<char*>(a.out) + first;
    return part;
}

// round(round(silu(gate)) * up) of one element, by the careful way.
template <DType in>
__device__ inline uint32_t gated_any(uint32_t gate, uint32_t up) {
    const float g = silu_any(Pairs<in>::widen(gate).x, Machine());
    return 0xFFFFu & Pairs<in>::mul(Pairs<in>::round(both(g)), up);
}

// By all workgroups of kThreads together, element by element: any d, strides and alignment of the element's own, either
// FP8 format.
template <DType in, int kThreads>
__device__ inline void swiglu_elements(const Args& a, float scale) {
    const int64_t count = a.rows * a.d, step = int64_t(gridDim.x) * kThreads;
    for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < count; n += step) {
        const int64_t row = n / a.d, column = n % a.d;
        const auto* x = global<uint16_t>(a.x) + row * a.x_stride + column;
        global<uint8_t>(a.out)[row * a.out_stride + column] =
            quantize_one(Pairs<in>::widen(gated_any<in>(x[0], x[a.d])).x, scale, a.out_dtype == DType::e4m3fnuz);
    }
}

// --- computed scales ---

template <DType in>
struct Gated {
    static constexpr DType type = in;
    static constexpr int kFetched = 8, kElementBytes = 2;
    static constexpr RowsTuning tuning{64, 2048, 128, 2, true, 8192};
    struct Loaded {
        Vector128 gate, up;
    };

    const void* x;
    int64_t stride, up;  // of a row and from gate to up, in bytes
    float limit;

    Gated from(int64_t row, int64_t column) const {
        return {static_cast<const char*>(x) + row * stride + column * kElementBytes, stride, up, limit};
    }
    __device__ Loaded load(int64_t row, VectorIndex vector) const {
        const void* gates = offset(x, row * stride);
        return {load_vector(gates, vector * 16), load_vector(offset(gates, up), vector * 16)};
    }
    __device__ Eight<in> values(const Loaded& loaded) const {
        Vector128 gate = loaded.gate, up = loaded.up;
        // Unlikely: else the compiler clamps always, and takes the result where there is a limit.
        if (limit < bits_float(kInfinityBits)) [[unlikely]] {
#pragma unroll
            for (int i = 0; i < kEight / 2; ++i) {
                set_word(gate, i, clamped(word(gate, i), -bits_float(kInfinityBits)));
                set_word(up, i, clamped(word(up, i), -limit));
            }
        }
        return {{gated<in>(gate, up)}};
    }
    __device__ float element(int64_t row, int64_t column) const {
        const auto* gates = global<uint16_t>(offset(x, row * stride));
        const uint32_t gate = clamped(gates[column], -bits_float(kInfinityBits));
        return Pairs<in>::widen(gated_any<in>(gate, clamped(gates[column + up / 2], -limit))).x;
    }
    __device__ void fetch(int64_t row, VectorIndex vector) const {
        const void* gates = offset(x, row * stride + vector * 16);
        fetch_line_to_l2(gates);
        fetch_line_to_l2(offset(gates, up));
    }

  private:
    // Two numbers within [low, limit]; NaN stays NaN.
    __device__ uint32_t clamped(uint32_t two, float low) const {
        const auto one = [&](float v) { return v < low ? low : v > limit ? limit : v; };
        const f32x2 v = Pairs<in>::widen(two);
        return Pairs<in>::round(f32x2{one(v.x), one(v.y)});
    }
};

template <DType in, int kGroup, int kHeld>
__global__ __launch_bounds__(kRowsThreads) void swiglu_groups(Gated<in> x, QuantizedRows to, FlatWork work,
                                                              Maxima maxima) {
    let_next_kernel_start();
    write_flat<Gated<in>, kGroup, kHeld, kRowsThreads>(x, to, work, maxima);
}

template <DType in, Holder holder, int kHeld>
__global__ __launch_bounds__(most_threads(holder)) void swiglu_rows(Gated<in> x, QuantizedRows to) {
    let_next_kernel_start();
    write_row<Gated<in>, kHeld, holder>(x, to);
}

template <DType in>
__global__ __launch_bounds__(kRowsThreads) void swiglu_fallback_computed(Gated<in> x, QuantizedRows to, Maxima maxima) {
    let_next_kernel_start();
    write_by_element<Gated<in>, kComputed, kRowsThreads>(x, to, maxima);
}

template <DType in, bool by_vector>
__global__ __launch_bounds__(kRowsThreads) void swiglu_largest(Gated<in> x, int64_t rows, int64_t d, FlatWork work,
                                                               uint32_t* maxima, void* kept) {
    let_next_kernel_start();
    find_largest<Gated<in>, by_vector, kRowsThreads>(x, rows, d, work, maxima, kept);
}

template <DType in>
struct Kernels {
    using Source = Gated<in>;
    template <int kScale, int kHeld>
    static auto flat() {
        constexpr int kGroup = kScale > kFromMaxima ? kScale : 128;  // other scales are not asked for
        constexpr int kNeighbours = kHeld < kMostNeighbours ? kHeld : kMostNeighbours;
        return swiglu_groups<in, kGroup, kNeighbours>;
    }
    template <Holder holder, int kHeld>
    static auto row() {
        return swiglu_rows<in, holder, kHeld>;
    }
    template <int>
    static auto any() {
        return swiglu_fallback_computed<in>;
    }
    template <bool by_vector>
    static auto largest() {
        return swiglu_largest<in, by_vector>;
    }
};

template <DType in, class Vendor>
Status launch_computed_as(const Args& a, const Vendor& vendor, const Executor& on) {
    using K = Kernels<in>;
    const Gated<in> x{a.x, a.x_stride * 2, a.d * 2, a.limit};
    auto to = QuantizedRows::of(a);
    if (a.rows == 1 && to.dynamic.group == DynamicScale::kTensor) to.dynamic.group = DynamicScale::kRow;
    const bool native = a.out_dtype == vendor.fp8;
    const Fit fit{native && rows_fit(a, kEight, kEight),
                  native && kMostNeighbours == 2 && rows_fit(a, 2 * kEight, 2 * kEight)};
    if (to.dynamic.group != DynamicScale::kTensor) return rocm_fp8::launch_computed<K>(x, to, fit, vendor);

    // The values go through memory: first the maxima, which lie behind them.
    const bool by_vector = rows_fit(a, kEight, 1) && vectors_countable<Gated<in>>(a.rows, a.d);
    const int64_t count = maxima_of<Gated<in>>(a.rows, a.d, by_vector, vendor.units);
    const int64_t bytes = ceil_div(a.rows * a.d * 2, 16) * 16;
    char* values = static_cast<char*>(on.scratch(on.context, bytes + count * int64_t(sizeof(uint32_t))));
    if (!values) return {"no memory for the values of a tensor"};
    auto* maxima = reinterpret_cast<uint32_t*>(values + bytes);
    const Status status = launch_largest<K>(x, a.rows, a.d, by_vector, maxima, values, vendor);
    if (!status.ok()) return status;
    return quantize::launch_by_maxima(quantize::Args::of(a, values, a.d), maxima, count, on);
}

template <class Vendor>
Status launch_computed(const Args& a, const Vendor& vendor, const Executor& on) {
    return a.dtype == DType::f16 ? launch_computed_as<DType::f16>(a, vendor, on)
                                 : launch_computed_as<DType::bf16>(a, vendor, on);
}

}  // namespace
}  // namespace rocm_fp8::swiglu
