// Rows of values to FP8, for AMD and NVIDIA GPUs: the bodies of the kernels whose values come from one row each. Each
// element is read once: a group, or a row, stays in registers between its maximum and its quotients. A scale for the
// tensor needs two launches: the maxima of parts, which go through memory, and the quotients.
//
//     flat     all vectors of 8 elements, row after row, kHeld neighbours a thread: a given scale, groups, the tensor
//              | 0 | 1 | ... |  the lanes that hold a group of 32, 64 or 128 exchange their maxima
//     row      a wave (warp), a workgroup (CTA) or a cluster holds a row: thread t has vectors t, t + T, ...
//     any      element by element: odd widths and strides, the FP8 format that is not the chip's
//
// All of them write the same bytes. A Source says what the values are:
//
//     type                      the values'
//     load(row, vector)         the operands of eight of them, from memory into registers
//     values(loaded)            Eight<type>
//     element(row, column)      one value, as float32
//     fetch(row, vector)        fetches an operand's 128 bytes into L2; kFetched: for how many vectors that serves
//     from(row, column)         by the host: the values from there on; kElementBytes: how far columns are apart
//     tuning                    RowsTuning (launch.h)
#pragma once

#include "../../gpu/overlap.h"
#include "sink.h"

namespace rocm_fp8 {
namespace {

// In every thread.
template <int kThreads>
__device__ inline uint32_t largest_of(const Maxima& maxima) {
    uint32_t largest = 0;
    for (int64_t i = threadIdx.x; i < maxima.count; i += kThreads)
        largest = larger(largest, global<uint32_t>(maxima.data)[i]);
    return largest_of_workgroup<kThreads>(largest, kThreads);
}

// Vectors of a thread of a flat kernel, next to each other in memory. On AMD GPUs one: of two, each load takes every
// other 16 bytes, and by the estimates so touches each line twice.
// And the bytes that a thread of a row kernel loads at once.
#if defined(__CUDACC__)
constexpr int kMostNeighbours = 2, kMostLoadedBytes = 128;
#else
constexpr int kMostNeighbours = 1, kMostLoadedBytes = 256;
#endif

// Where a flat kernel's scale comes from; 32, 64, 128: of groups of that size.
constexpr int kGiven = 0, kFromMaxima = 1;

// Workgroups of a multiple of kLanes; of kThreads with kFromMaxima, whose workgroups take one after the other.
template <class Source, int kScale, int kHeld, int kThreads>
__device__ inline void write_flat(const Source& source, const QuantizedRows& to, const FlatWork& work,
                                  const Maxima& maxima) {
    constexpr int kGroupLanes = kScale / (kEight * kHeld);
    const uint32_t in_row = uint32_t(to.d) / (kEight * kHeld);
    uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
    const auto place = [&](uint32_t& row, uint32_t& column) {
        const uint32_t n = index < work.count ? index : work.count - 1;
        row = divide(n, work.row_of), column = n - row * work.row_of.divisor;
    };
    uint32_t row, column;
    place(row, column);
    if (blockIdx.x < work.fetching && threadIdx.x % (Source::kFetched / kHeld) == 0 && column < in_row)
        source.fetch(row, column * kHeld);
    wait_for_previous_kernel();

    QuantizationScale by;
    if constexpr (kScale == kGiven) {
        by = QuantizationScale(load_scalar(to.scale));
    } else if constexpr (kScale == kFromMaxima) {
        by = QuantizationScale(
            computed_scale(to.dynamic, upper_bound(to.dynamic), largest_of<kThreads>(maxima), index == 0, 0, 0));
    }
    do {
        // Lanes beyond the row's end hold its last one, which changes no maximum, and write nothing.
        const uint32_t first = (column < in_row ? column : in_row - 1) * kHeld;
        typename Source::Loaded loaded[kHeld];
#pragma unroll
        for (int v = 0; v < kHeld; ++v) loaded[v] = source.load(row, first + v);
        Eight<Source::type> e[kHeld];
#pragma unroll
        for (int v = 0; v < kHeld; ++v) e[v] = source.values(loaded[v]);
        if constexpr (kGroupLanes > 0) {
            uint32_t largest = 0;
#pragma unroll
            for (int v = 0; v < kHeld; ++v) largest = larger(largest, e[v].largest());
            largest = max_over_lanes<kGroupLanes>(largest);
            const bool leads = index < work.count && column % kGroupLanes == 0;
            by = QuantizationScale(
                computed_scale(to.dynamic, upper_bound(to.dynamic), largest, leads, row, column / kGroupLanes));
        }
        if (index < work.count && column < in_row)
            store_quotients(offset(to.out, row * to.stride + first * kEight), e, by);
        if constexpr (kScale != kFromMaxima) break;
        index += gridDim.x * kThreads;
        place(row, column);
    } while (index < work.count);
}

// kHeld vectors a thread.
template <class Source, int kHeld, Holder holder>
__device__ inline void write_row(const Source& source, const QuantizedRows& to) {
    const RowHolder<holder> by;
    by.expect(true);
    const uint32_t vectors = uint32_t(to.d) / kEight;
    if (holder == Holder::wave && by.row >= to.rows) return;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        if (threadIdx.x % Source::kFetched == 0 && by.index(v) < vectors) source.fetch(by.row, by.index(v));
    }
    wait_for_previous_kernel();
    using Loaded = typename Source::Loaded;
    // All at once, or as many as a thread of a large CTA has registers for.
    constexpr int kAtOnce = sizeof(Loaded) * kHeld <= kMostLoadedBytes ? kHeld : 2;
    Eight<Source::type> e[kHeld];
    uint32_t largest = 0;
#pragma unroll
    for (int first = 0; first < kHeld; first += kAtOnce) {
        Loaded loaded[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) loaded[i] = source.load(by.row, by.loaded(first + i, vectors));
        keep_order();  // the loads first
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            e[first + i] = source.values(loaded[i]);
            largest = larger(largest, e[first + i].largest());
            // One after another: eight vectors leave no registers for the operands of several computations.
            if constexpr (kHeld == 8) keep_order();
        }
    }
    const QuantizationScale quantization(
        computed_scale(to.dynamic, upper_bound(to.dynamic), by.largest(largest), by.t == 0, by.row, 0));
    void* out = offset(to.out, by.row * to.stride);
    store_row<kHeld>(out, by, vectors, [&](int v) { return e[v].quantized(quantization); });
}

// --- element by element ---

// The largest of value(begin), ..., value(end - 1), of those that this thread of `threads` takes.
template <class Value>
__device__ inline uint32_t largest_value(const Value& value, int64_t begin, int64_t end, int thread, int threads) {
    uint32_t found = 0;
#if !defined(__CUDACC__)
#pragma clang loop vectorize(disable)  // by twos it takes more scalar registers than there are
#endif
    for (int64_t i = begin + thread; i < end; i += threads) {
        found = larger(found, if_finite(float_bits(value(i)) & kMagnitudeBits));
    }
    return found;
}

template <class Value>
__device__ inline void write_values(const Value& value, const QuantizedRows& to, int64_t row, int64_t begin,
                                    int64_t end, float scale, int thread, int threads) {
    auto* out = global<uint8_t>(offset(to.out, row * to.stride));
    for (int64_t i = begin + thread; i < end; i += threads) out[i] = quantize_one(value(i), scale, to.fnuz);
}

// A row by a workgroup, by scales of its own or of its groups. May be called again.
template <int kThreads, class Value>
__device__ inline void write_row_by_element(const Value& value, const QuantizedRows& to, int64_t row) {
    const int t = threadIdx.x, lane = t % kLanes, size = to.dynamic.group;
    const float bound = upper_bound(to.dynamic);
    if (size > 0) {  // a wave takes some groups
        const int64_t groups = to.dynamic.groups(to.d);
        for (int64_t group = uniform(t / kLanes); group < groups; group += kThreads / kLanes) {
            const int64_t begin = group * size, rest = to.d - begin, end = begin + (rest < size ? rest : size);
            const uint32_t largest = max_over_lanes<kLanes>(largest_value(value, begin, end, lane, kLanes));
            const float scale = computed_scale(to.dynamic, bound, largest, lane == 0, row, group);
            write_values(value, to, row, begin, end, scale, lane, kLanes);
        }
        return;
    }
    const uint32_t largest = largest_of_workgroup<kThreads>(largest_value(value, 0, to.d, t, kThreads), kThreads);
    const float scale = computed_scale(to.dynamic, bound, largest, t == 0, row, 0);
    write_values(value, to, row, 0, to.d, scale, t, kThreads);
    // Barrier: the next row's maxima overwrite those that waves may still read.
    __syncthreads();
}

// Where the element-by-element kernel's scales come from; the others as above.
constexpr int kComputed = 2;

template <class Source, int kScale, int kThreads>
__device__ inline void write_by_element(const Source& source, const QuantizedRows& to, const Maxima& maxima) {
    wait_for_previous_kernel();
    float scale = 0;
    if constexpr (kScale == kGiven) {
        scale = load_scalar(to.scale);
    } else if constexpr (kScale == kFromMaxima) {
        const bool writes = blockIdx.x == 0 && threadIdx.x == 0;
        scale = computed_scale(to.dynamic, upper_bound(to.dynamic), largest_of<kThreads>(maxima), writes, 0, 0);
    }
    for (int64_t row = blockIdx.x; row < to.rows; row += gridDim.x) {
        const auto value = [&](int64_t column) { return source.element(row, column); };
        if constexpr (kScale == kComputed) write_row_by_element<kThreads>(value, to, row);
        else write_values(value, to, row, 0, to.d, scale, threadIdx.x, kThreads);
    }
}

// The largest of each workgroup's part of the tensor, to `maxima`; the values themselves, too, where `kept` is given:
// rows of d, with no space between them.
template <class Source, bool by_vector, int kThreads>
__device__ inline void find_largest(const Source& source, int64_t rows, int64_t d, const FlatWork& work,
                                    uint32_t* maxima, void* kept) {
    wait_for_previous_kernel();
    uint32_t largest = 0;
    if constexpr (by_vector) {
        constexpr int kAtOnce = 2;  // loads in flight
        const uint32_t step = gridDim.x * kThreads;
        for (uint32_t n = blockIdx.x * kThreads + threadIdx.x; n < work.count; n += kAtOnce * step) {
            typename Source::Loaded loaded[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const uint32_t at = n + i * step < work.count ? n + i * step : n, row = divide(at, work.row_of);
                loaded[i] = source.load(row, at - row * work.row_of.divisor);
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const Eight<Source::type> e = source.values(loaded[i]);
                largest = larger(largest, e.largest());
                if (kept && n + i * step < work.count) store_at(offset(kept, int64_t(n + i * step) * 16), e.bits[0]);
            }
        }
    } else {
        for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
            for (int64_t i = threadIdx.x; i < d; i += kThreads) {
                const float value = source.element(row, i);
                largest = larger(largest, if_finite(float_bits(value) & kMagnitudeBits));
                if constexpr (Source::type != DType::f32) {
                    if (kept) global<uint16_t>(kept)[row * d + i] = uint16_t(Pairs<Source::type>::round(both(value)));
                }
            }
        }
    }
    largest = largest_of_workgroup<kThreads>(largest, kThreads);
    if (threadIdx.x == 0) global<uint32_t>(maxima)[blockIdx.x] = largest;
}

}  // namespace
}  // namespace rocm_fp8
