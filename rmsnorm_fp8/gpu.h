// Common parts of the RMSNorm kernels for AMD and NVIDIA GPUs: what is normalised, the body of the fast kernel, the
// element-by-element kernel, the choice by types.
#pragma once

#include "../common/rows/gpu/launch.h"
#include "../quantize_fp8/quantize_fp8.h"
#include "reciprocal_rms.h"
#include "rmsnorm_fp8.h"

namespace rocm_fp8::rms_norm {
namespace {

struct Machine {
    __device__ static float fma(float a, float b, float c) { return fmaf(a, b, c); }
    __device__ static float sqrt(float v) { return sqrtf(v); }
    __device__ static float rsqrt(float v) {
#if defined(__CUDACC__)
        return rsqrtf(v);
#else
        return __builtin_amdgcn_rsqf(v);
#endif
    }
};

// A Source says what is normalised: h. Another one, such as a sum over several buffers, has the same members:
//
//     type                      h's
//     keeps()                   whether h is written
//     load(row, vector)         the operands of eight of them, from memory into registers
//     values(loaded)            Eight<type>
//     keep(row, vector, h)      writes h
//     element(row, column)      one of them, as bits; written where keeps()
//     again(row, column)        the same once more, after a barrier
//     fetch(row, first, count)  fetches so many vectors' operands into L2
//     complete(by, vectors, loaded)   where it has one: what all threads of a row do between load and values
//
// x; or x + residual, which is written to the residual. By `either`: at run time, which halves the kernels.
enum class Residual { none, added, either };

template <DType in, Residual with>
struct Hidden {
    static constexpr DType type = in;
    struct Loaded {
        Vector128 x, residual;
    };

    const void* x;
    void* residual;
    int64_t x_stride, residual_stride;  // in elements

    __device__ bool keeps() const { return with == Residual::added || (with == Residual::either && residual); }
    __device__ Loaded load(int64_t row, VectorIndex vector) const {
        Loaded loaded;
        loaded.x = load_vector(x_row(row), vector * 16);
        if (keeps()) loaded.residual = load_vector(residual_row(row), vector * 16);
        return loaded;
    }
    __device__ Eight<in> values(const Loaded& loaded) const {
        Eight<in> h{{loaded.x}};
        if (keeps()) {
#pragma unroll
            for (int i = 0; i < kEight / 2; ++i)
                set_word(h.bits[0], i, Pairs<in>::add(h.pair(i), word(loaded.residual, i)));
        }
        return h;
    }
    __device__ void keep(int64_t row, VectorIndex vector, const Eight<in>& h) const {
        store_vector(residual_row(row), vector * 16, h.bits[0]);
    }
    __device__ uint32_t element(int64_t row, int64_t column) const {
        const uint32_t v = global<uint16_t>(x_row(row))[column];
        if (!keeps()) return v;
        auto* kept = global<uint16_t>(residual_row(row));
        const uint32_t h = Pairs<in>::add(v, kept[column]) & 0xFFFFu;
        kept[column] = uint16_t(h);
        return h;
    }
    __device__ uint32_t again(int64_t row, int64_t column) const {
        return keeps() ? global<uint16_t>(residual_row(row))[column] : global<uint16_t>(x_row(row))[column];
    }
    __device__ void fetch(int64_t row, VectorIndex first, uint32_t count) const {
        fetch_to_l2(offset(x_row(row), first * 16), count * 16);
        if (keeps()) fetch_to_l2(offset(residual_row(row), first * 16), count * 16);
    }

  private:
    __device__ const void* x_row(int64_t row) const { return offset(x, row * x_stride * 2); }
    __device__ void* residual_row(int64_t row) const { return offset(residual, row * residual_stride * 2); }
};

// h^2 summed over a vector, in the one order that all kernels use.
template <DType in>
__device__ inline float sum_of_squares(const Eight<in>& h) {
    f32x2 squares = both(0.0f);
#pragma unroll
    for (int i = 0; i < kEight / 2; ++i) squares = Pairs<in>::add_squares(h.pair(i), squares);
    return squares.x + squares.y;
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

// Whether the fast kernels can take the arguments. d must be a multiple of `elements`. Rows of all tensors must start
// at multiples of 16 bytes, rows of an FP8 result at multiples of `fp8_bytes`.
inline bool rows_fit(const Args& a, int elements, int fp8_bytes) {
    const bool out =
        is_fp8(a.out_dtype) ? rows_aligned(a.out, a.out_stride, fp8_bytes) : rows_aligned(a.out, a.out_stride * 2);
    return a.d % elements == 0 && out && rows_aligned(a.x, a.x_stride * 2) && rows_aligned(a.weight, 0) &&
           (!a.residual || rows_aligned(a.residual, a.residual_stride * 2)) &&
           (!a.normalized || rows_aligned(a.normalized, a.normalized_stride * 2));
}

// Whether weights are loaded as late as at their use: those that have no registers beside the row. And whether a load
// behind a store waits for it. And whether a row would take too many registers if it were held in float32, too.
#if defined(__CUDACC__)
template <DType weight_type, int kHeld>
constexpr bool weights_at_use = kHeld * Eight<weight_type>::kLoads > 4;
constexpr bool kStoresDelayLoads = false;
template <int kHeld>
constexpr bool holds_packed = kHeld == 2 || kHeld == 4;
#else
template <DType weight_type, int kHeld>
constexpr bool weights_at_use = kHeld > 4;
constexpr bool kStoresDelayLoads = true;
template <int kHeld>
constexpr bool holds_packed = kHeld == 4;
#endif

// The body of the fast kernels, after wait_for_previous_kernel. kHeld vectors a thread. meanwhile() is called when the
// row's sum is known.
template <DType weight_type, Output output, int kHeld, class Source, class Row, class Meanwhile>
__device__ inline void write_normalized(const Source& source, const void* weights, uint32_t d, const Row& by, Args& a,
                                        const Meanwhile& meanwhile) {
    constexpr DType in = Source::type;
    // If registers allow it, weights are loaded together with the row, so that one latency covers both. Else they are
    // loaded before the exchange, which hides the latency.
    constexpr bool weights_first = kHeld <= 2, weights_last = weights_at_use<weight_type, kHeld>;
    const uint32_t vectors = d / kEight;
    typename Source::Loaded loaded[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) loaded[v] = source.load(by.row, by.loaded(v, vectors));
    keep_order();  // so that the first sum waits for the row alone
    Eight<weight_type> weight[weights_last ? 1 : kHeld];
    const auto load_weights = [&] {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) weight[v].load_from(weights, by.loaded(v, vectors));
    };
    if constexpr (weights_first) load_weights();
    float reciprocal_d = 1.0f / float(int(d));
    Sink<output, in> sink{QuantizedRows::of(a, a.scale), a.normalized, a.normalized_stride};
    sink.prepare();
    have_computed(reciprocal_d);
    have_now(a.epsilon);
    have_now(sink.to.out);
    keep_order();  // code above does not wait for the row; code below does
    if constexpr (requires { source.complete(by, vectors, loaded); }) source.complete(by, vectors, loaded);

    Eight<in> h[kHeld];
    float sums[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        h[v] = source.values(loaded[v]);
        const float squares = sum_of_squares(h[v]);  // of every thread, without a branch
        sums[v] = by.index(v) < vectors ? squares : 0.0f;
        // Else the compiler keeps the float32 numbers that were squared.
        if (holds_packed<kHeld> && (kHeld < 4 || source.keeps())) hold_packed(h[v].bits[0]);
    }
    // Loads come before stores where the chip counts both in order: a later load's wait would include the stores.
    constexpr bool weights_between = !weights_first && !weights_last;
    if constexpr (weights_between && kStoresDelayLoads) load_weights();
    keep_order();
    if (source.keeps()) {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            if (by.index(v) < vectors) source.keep(by.row, by.index(v), h[v]);
        }
    }
    if constexpr (weights_between && !kStoresDelayLoads) load_weights();
    const float sum = by.sum(sums);
    meanwhile();
    const float r = reciprocal_rms(sum, reciprocal_d, a.epsilon, Machine());
    sink.template write<kHeld>(by, vectors, [&](int v) {
        if constexpr (weights_last) weight[0].load_from(weights, by.loaded(v, vectors));
        const Eight<weight_type>& w = weight[weights_last ? 0 : v];
        Eight<in> y;
#pragma unroll
        for (int i = 0; i < kEight / 2; ++i) set_word(y.bits[0], i, normalize<in>(h[v].pair(i), r, w.pair(i)));
        return y;
    });
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
    const int64_t bytes = args.normalized ? 0 : ceil_div(args.rows * args.d * 2, 16) * 16;
    char* memory = static_cast<char*>(on.scratch(on.context, bytes + args.rows * int64_t(sizeof(uint32_t))));
    if (!memory) return {"no memory for the values of a tensor"};
    Args first = args;
    if (!args.normalized) first.normalized = memory, first.normalized_stride = args.d;
    first.dynamic.data = memory + bytes;
    const Status status = launch(first);
    if (!status.ok()) return status;
    const auto second = quantize::Args::of(args, first.normalized, first.normalized_stride);
    return quantize::launch_by_maxima(second, reinterpret_cast<uint32_t*>(memory + bytes), args.rows, on);
}

// One row a workgroup of kRowsThreads, element by element. It takes any d, any stride, the element's own alignment and
// either FP8 format. It reads h again from memory. The order of the sum is that of RowHolder::sum.
template <class Source>
__device__ inline void write_normalized_by_element(const Source& source, const Args& a, int64_t row) {
    constexpr DType in = Source::type;
    __shared__ float slots[kSumSlots];
    for (int i = threadIdx.x; i < kSumSlots; i += kRowsThreads) slots[i] = 0;
    // Barrier: the zeros are added to below, by lanes that did not write them.
    __syncthreads();

    const int lane = threadIdx.x % kLanes, wave = uniform(threadIdx.x / kLanes);
    constexpr int kWaves = kRowsThreads / kLanes, kGroup = kLanes * kEight;
    const int64_t groups = (a.d + kGroup - 1) / kGroup;
    for (int64_t group = wave; group < groups; group += kWaves) {
        const int64_t first = group * kGroup + lane * kEight;
        Eight<in> h;
        for (int i = 0; i < kEight / 2; ++i) {
            uint32_t two = 0;
            for (int k = 0; k < 2; ++k) {
                const int64_t at = first + 2 * i + k;
                if (at < a.d) two |= source.element(row, at) << (16 * k);
            }
            set_word(h.bits[0], i, two);
        }
        const float sum = sum_over_lanes(sum_of_squares(h));
        // A slot belongs to one wave: kSumSlots is a multiple of the number of waves.
        static_assert(kSumSlots % kWaves == 0);
        if (lane == kLaneOfSum) slots[group % kSumSlots] += sum;
    }
    // Barrier: the slots, and elements that were kept, are read below by lanes that did not write them.
    __syncthreads();
    const float r = reciprocal_rms(sum_of_slots(slots, kSumSlots), 1.0f / float(a.d), a.epsilon, Machine());

    const auto normalized = [&](int64_t i) {
        const uint32_t h = source.again(row, i);
        return 0xFFFFu & (a.weight_dtype == DType::f32 ? normalize<in>(h, r, f32x2{global<float>(a.weight)[i], 0.0f})
                                                       : normalize<in>(h, r, uint32_t(global<uint16_t>(a.weight)[i])));
    };
    const auto copy_to = [&](void* rows, int64_t stride) {
        auto* out = global<uint16_t>(offset(rows, row * stride * 2));
        for (int64_t i = threadIdx.x; i < a.d; i += kRowsThreads) out[i] = uint16_t(normalized(i));
    };
    if (a.out_dtype == in) return copy_to(a.out, a.out_stride);
    const auto value = [&](int64_t i) { return Pairs<in>::widen(normalized(i)).x; };
    const auto to = QuantizedRows::of(a, a.scale);
    if (to.scale) return write_values(value, to, row, 0, a.d, *global<float>(to.scale), threadIdx.x, kRowsThreads);
    if (a.normalized) copy_to(a.normalized, a.normalized_stride);
    if (a.dynamic.group != DynamicScale::kTensor) return write_row_by_element<kRowsThreads>(value, to, row);
    const uint32_t largest = largest_of_workgroup<kRowsThreads>(largest_value(value, 0, a.d, threadIdx.x, kRowsThreads),
                                                                kRowsThreads);  // see launch_tensor
    if (threadIdx.x == 0) global<uint32_t>(a.dynamic.data)[row] = largest;
}

// Of x alone or with a residual.
template <DType in>
__device__ inline void write_normalized_by_element(const Args& a) {
    const Hidden<in, Residual::either> h{a.x, a.residual, a.x_stride, a.residual_stride};
    write_normalized_by_element(h, a, blockIdx.x);
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

// launch(args) for the scale that is asked for.
template <class Launch>
Status launch_rows(const Args& a, const Executor& on, const Launch& launch) {
    if (a.rows == 0 || a.d == 0) return {};
    if (!is_fp8(a.out_dtype) && a.residual) return {"a residual without FP8 is not an operator"};
    const bool of_tensor = a.is_dynamic() && a.dynamic.group == DynamicScale::kTensor;
    return of_tensor ? launch_tensor(a, on, launch) : launch(a);
}

}  // namespace
}  // namespace rocm_fp8::rms_norm
