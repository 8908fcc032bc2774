// Quantisation to FP8 for AMD and NVIDIA GPUs: the kernels of ../common/rows/gpu/quantize.h over a tensor of values.
//
// Bytes: 2 (x) + 1 (out) = 3 an element with 16-bit types; scales are few. Floor: those bytes at the memory rate.
#pragma once

#include "../common/rows/gpu/launch.h"
#include "quantize_fp8.h"

namespace rocm_fp8::quantize {
namespace {

template <DType in>
struct Values {
    static constexpr DType type = in;
    using Loaded = Eight<in>;
    static constexpr int kFetched = 128 / Loaded::kBytes, kElementBytes = Loaded::kBytes / kEight;
    static constexpr RowsTuning tuning{64, 512, 256, 1, false, 2500};

    const void* x;
    int64_t stride;  // in bytes

    Values from(int64_t row, int64_t column) const {
        return {static_cast<const char*>(x) + row * stride + column * kElementBytes, stride};
    }
    __device__ Loaded load(int64_t row, VectorIndex vector) const {
        Loaded e;
        e.load_from(offset(x, row * stride), vector);
        return e;
    }
    __device__ static const Eight<in>& values(const Loaded& loaded) { return loaded; }
    __device__ float element(int64_t row, int64_t column) const {
        return element_at<in>(offset(x, row * stride), column);
    }
    __device__ void fetch(int64_t row, VectorIndex vector) const {
        fetch_line_to_l2(offset(x, row * stride + vector * Loaded::kBytes));
    }
};

template <DType in, int kScale, int kHeld>
__global__ __launch_bounds__(kRowsThreads) void quantize_flat(Values<in> x, QuantizedRows to, FlatWork work,
                                                              Maxima maxima) {
    let_next_kernel_start();
    write_flat<Values<in>, kScale, kHeld, kRowsThreads>(x, to, work, maxima);
}

template <DType in, Holder holder, int kHeld>
__global__ __launch_bounds__(most_threads(holder)) void quantize_rows(Values<in> x, QuantizedRows to) {
    let_next_kernel_start();
    write_row<Values<in>, kHeld, holder>(x, to);
}

template <DType in, int kScale>
__global__ __launch_bounds__(kRowsThreads) void quantize_fallback(Values<in> x, QuantizedRows to, Maxima maxima) {
    let_next_kernel_start();
    write_by_element<Values<in>, kScale, kRowsThreads>(x, to, maxima);
}

template <DType in, bool by_vector>
__global__ __launch_bounds__(kRowsThreads) void quantize_largest(Values<in> x, int64_t rows, int64_t d, FlatWork work,
                                                                 uint32_t* maxima, void* kept) {
    let_next_kernel_start();
    find_largest<Values<in>, by_vector, kRowsThreads>(x, rows, d, work, maxima, kept);
}

template <DType in>
struct Kernels {
    using Source = Values<in>;
    template <int kScale, int kHeld>
    static auto flat() {
        constexpr int kNeighbours = kHeld < kMostNeighbours ? kHeld : kMostNeighbours;
        return quantize_flat<in, kScale, kNeighbours>;
    }
    template <Holder holder, int kHeld>
    static auto row() {
        return quantize_rows<in, holder, kHeld>;
    }
    template <int kScale>
    static auto any() {
        return quantize_fallback<in, kScale>;
    }
    template <bool by_vector>
    static auto largest() {
        return quantize_largest<in, by_vector>;
    }
};

template <DType in, class Vendor>
Status launch_as(Args a, const Maxima& maxima, const Vendor& vendor, const Executor& on) {
    using K = Kernels<in>;
    const int bytes = in == DType::f32 ? 4 : 2;
    // A tensor of one row, or of few vectors without space between rows, is quantised as a row: in one launch.
    const bool dense = a.x_stride == a.d && a.out_stride == a.d && a.rows * a.d <= int64_t(kEight) * kMostRowThreads;
    if (!a.scale && !maxima.data && a.dynamic.group == DynamicScale::kTensor && (a.rows == 1 || dense)) {
        a.d *= a.rows, a.rows = 1;
        a.dynamic.group = DynamicScale::kRow;
    }
    const auto to = QuantizedRows::of(a, a.scale);
    const Values<in> x{a.x, a.x_stride * bytes};
    const auto fits = [&](int vectors) {
        return a.d % (kEight * vectors) == 0 && rows_aligned(a.x, a.x_stride * bytes) &&
               rows_aligned(a.out, a.out_stride, kEight * vectors);
    };
    const bool native = a.out_dtype == vendor.fp8;
    const Fit fit{native && fits(1), native && kMostNeighbours == 2 && fits(2)};
    if (a.scale) return launch_flat<K>(x, to, kGiven, fit, maxima, vendor);
    if (maxima.data) return launch_flat<K>(x, to, kFromMaxima, fit, maxima, vendor);
    if (a.dynamic.group != DynamicScale::kTensor) return launch_computed<K>(x, to, fit, vendor);

    const bool by_vector = fits(1) && vectors_countable<Values<in>>(a.rows, a.d);
    const int64_t count = maxima_of<Values<in>>(a.rows, a.d, by_vector, vendor.units);
    auto* found = static_cast<uint32_t*>(on.scratch(on.context, count * int64_t(sizeof(uint32_t))));
    if (!found) return {"no memory for the maxima of a tensor's parts"};
    const Status status = launch_largest<K>(x, a.rows, a.d, by_vector, found, nullptr, vendor);
    return status.ok() ? launch_flat<K>(x, to, kFromMaxima, fit, Maxima{found, count}, vendor) : status;
}

template <class Vendor>
Status launch_by_type(const Args& a, const Maxima& maxima, const Vendor& vendor, const Executor& on) {
    if (a.rows == 0 || a.d == 0) return {};
    if (a.dtype == DType::f32) return launch_as<DType::f32>(a, maxima, vendor, on);
    return a.dtype == DType::f16 ? launch_as<DType::f16>(a, maxima, vendor, on)
                                 : launch_as<DType::bf16>(a, maxima, vendor, on);
}

}  // namespace
}  // namespace rocm_fp8::quantize
