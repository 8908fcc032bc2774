// Quantisation to FP8 for AMD and NVIDIA GPUs: the kernels' bodies, which the two have in common.
//
// Bytes: 2 (x) + 1 (out) = 3 an element with 16-bit types; scales are few. Floor: those bytes at the memory rate. Each
// element is read once: a group, or a row, stays in registers between its maximum and its quotients. A scale for the
// tensor needs two launches: the maxima of parts, which go through memory, and the quotients.
//
//     flat     all vectors of 8 elements, row after row, one a thread: a scale that is given, groups, the tensor
//              | 0 | 1 | ... |  4, 8 or 16 lanes hold a group of 32, 64 or 128 and exchange their maxima
//     row      a wave (warp) or a workgroup (CTA) holds a row: thread t has vectors t, t + T, ...
//     any      element by element: odd widths and strides, the FP8 format that is not the chip's
//
// All of them write the same bytes.
#pragma once

#include "../common/divider.h"
#include "../common/fp8.h"
#include "../common/gpu/kernel_at.h"
#include "../common/vendor.h"
#include "quantize_fp8.h"

namespace rocm_fp8::quantize {
namespace {

constexpr int kVector = 8;  // elements
constexpr uint32_t kInfinity = 0x7F800000u, kMagnitude = 0x7FFFFFFFu;

__device__ inline uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Of a float32's bits without the sign: 0 where they are no finite number's.
__device__ inline uint32_t if_finite(uint32_t magnitude) { return magnitude < kInfinity ? magnitude : 0; }

// Eight elements in registers.
template <DType in>
struct Elements {
    static constexpr int kLoads = in == DType::f32 ? 2 : 1, kBytes = 16 * kLoads;
    Vector128 bits[kLoads];

    __device__ void load_from(const void* row, VectorIndex vector) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) bits[i] = load_vector(row, vector * kBytes + i * 16);
    }
    __device__ f32x2 pair(int i) const {
        if constexpr (in == DType::f32) {
            return f32x2{bits_float(word(bits[i / 2], i % 2 * 2)), bits_float(word(bits[i / 2], i % 2 * 2 + 1))};
        } else {
            return Pairs<in>::widen(word(bits[0], i));
        }
    }
    // The largest finite magnitude, as a float32's bits: those of magnitudes have the order of the numbers.
    __device__ uint32_t largest() const {
        uint32_t found = 0;
        if constexpr (in == DType::f32) {
#pragma unroll
            for (int i = 0; i < 8; ++i) found = larger(found, word(bits[i / 4], i % 4) & kMagnitude);
        } else {
            // Two 16-bit numbers an instruction.
#pragma unroll
            for (int i = 0; i < 4; ++i) found = max_halves(found, word(bits[0], i) & 0x7FFF7FFFu);
            found = float_bits(Pairs<in>::widen(larger(found & 0xFFFFu, found >> 16)).x);
        }
        if (__builtin_expect(found < kInfinity, 1)) return found;
        found = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const f32x2 two = pair(i);
            found = larger(found, if_finite(float_bits(two.x) & kMagnitude));
            found = larger(found, if_finite(float_bits(two.y) & kMagnitude));
        }
        return found;
    }
    __device__ auto quantized(const QuantizationScale& scale) const {
        const f32x2 y[4] = {pair(0), pair(1), pair(2), pair(3)};
        return quantize_vector<in>(y, scale);
    }
};

__device__ inline float upper_bound(const DynamicScale& rule) {
    return rule.upper_bound ? load_scalar(rule.upper_bound) : bits_float(kInfinity);
}

__device__ inline void write_scale(const DynamicScale& to, int64_t row, int64_t group, float scale) {
    const int64_t at = row * to.row_stride + group * to.group_stride;
    if (to.exponents) global<uint8_t>(to.data)[at] = uint8_t(float_bits(scale) >> 23);
    else global<float>(to.data)[at] = scale;
}

// Whether the vector kernels can take it.
inline bool rows_fit(const Args& a) {
    const int bytes = a.dtype == DType::f32 ? 4 : 2;
    return a.d % kVector == 0 && rows_aligned(a.x, a.x_stride * bytes) && rows_aligned(a.out, a.out_stride, kVector);
}

// The largest over a workgroup of `threads`, in every thread. May be called again after a barrier.
template <int kMostThreads>
__device__ inline uint32_t largest_of_group(uint32_t v, int threads) {
    __shared__ uint32_t maxima[kMostThreads / kLanes];
    v = max_over_lanes<kLanes>(v);
    const int lane = threadIdx.x % kLanes, waves = threads / kLanes;
    if (lane == 0) maxima[threadIdx.x / kLanes] = v;
    // Closes: the maxima are read below by waves that did not write them.
    __syncthreads();
    return max_over_lanes<kLanes>(lane < waves ? maxima[lane] : 0u);
}

// The largest of the maxima that quantize_largest has written.
template <int kThreads>
__device__ inline uint32_t largest_partial(const uint32_t* partials, int count) {
    uint32_t largest = 0;
    for (int i = threadIdx.x; i < count; i += kThreads) largest = larger(largest, global<uint32_t>(partials)[i]);
    return largest_of_group<kThreads>(largest, kThreads);
}

// Where a flat kernel's scale comes from; a positive value: the lanes that hold a group.
constexpr int kGiven = 0, kFromPartials = 1;

// `row_of` divides by the lanes of a row: its vectors, filled up to whole groups.
template <DType in, int kScale, int kThreads>
__device__ inline void write_vectors(const Args& a, Divider row_of, uint32_t count, const uint32_t* partials,
                                     int partial_count) {
    const uint32_t index = blockIdx.x * kThreads + threadIdx.x, n = index < count ? index : count - 1;
    const uint32_t row = divide(n, row_of), column = n - row * row_of.divisor, vectors = uint32_t(a.d) / kVector;
    // Lanes beyond the row's end hold its last vector, which changes no maximum, and write nothing.
    Elements<in> e;
    e.load_from(offset(a.x, row * a.x_stride * (Elements<in>::kBytes / kVector)),
                column < vectors ? column : vectors - 1);
    float scale;
    if constexpr (kScale == kGiven) {
        scale = load_scalar(a.given_scale);
    } else if constexpr (kScale == kFromPartials) {
        scale = scale_of(bits_float(largest_partial<kThreads>(partials, partial_count)), a.scale, upper_bound(a.scale));
        if (index == 0) write_scale(a.scale, 0, 0, scale);
    } else {
        const uint32_t largest = max_over_lanes<kScale>(e.largest());
        scale = scale_of(bits_float(largest), a.scale, upper_bound(a.scale));
        if (index < count && column % kScale == 0) write_scale(a.scale, row, column / kScale, scale);
    }
    const auto q = e.quantized(QuantizationScale(scale));
    if (index < count && column < vectors) store_at(offset(a.out, row * a.out_stride + column * kVector), q);
}

// kHeld vectors a thread. Of a workgroup's row `threads` is the number of its threads, else kLanes.
template <DType in, int kHeld, bool whole_group, int kMostThreads>
__device__ inline void write_row(const Args& a, int threads) {
    const int lanes = whole_group ? threads : kLanes;
    const int t = whole_group ? int(threadIdx.x) : int(threadIdx.x) % kLanes;
    const int64_t row =
        whole_group ? int64_t(blockIdx.x) : int64_t(blockIdx.x) * (threads / kLanes) + uniform(threadIdx.x / kLanes);
    if (!whole_group && row >= a.rows) return;
    const void* x = offset(a.x, row * a.x_stride * (Elements<in>::kBytes / kVector));
    const uint32_t vectors = uint32_t(a.d) / kVector;
    const auto index = [&](int v) { return uint32_t(v * lanes + t); };
    Elements<in> e[kHeld];
    // Threads beyond the row's end load its last vector: a branch around loads would keep them from being in flight
    // together.
#pragma unroll
    for (int v = 0; v < kHeld; ++v) e[v].load_from(x, index(v) < vectors ? index(v) : vectors - 1);
    after_loads();
    uint32_t largest = 0;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) largest = larger(largest, e[v].largest());
    if constexpr (whole_group) largest = largest_of_group<kMostThreads>(largest, threads);
    else largest = max_over_lanes<kLanes>(largest);
    const float scale = scale_of(bits_float(largest), a.scale, upper_bound(a.scale));
    if (t == 0) write_scale(a.scale, row, 0, scale);
    const QuantizationScale by(scale);
    void* out = offset(a.out, row * a.out_stride);
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        if (index(v) < vectors) store_at(offset(out, int64_t(index(v)) * kVector), e[v].quantized(by));
    }
}

template <DType in>
__device__ inline float element(const Args& a, int64_t row, int64_t column) {
    const int64_t at = row * a.x_stride + column;
    if constexpr (in == DType::f32) return global<float>(a.x)[at];
    else return Pairs<in>::widen(global<uint16_t>(a.x)[at]).x;
}

// The largest over elements [begin, end) of a row, of those that this thread of `threads` takes.
template <DType in>
__device__ inline uint32_t largest_element(const Args& a, int64_t row, int64_t begin, int64_t end, int thread,
                                           int threads) {
    uint32_t found = 0;
    for (int64_t i = begin + thread; i < end; i += threads) {
        found = larger(found, if_finite(float_bits(element<in>(a, row, i)) & kMagnitude));
    }
    return found;
}

template <DType in>
__device__ inline void quantize_elements(const Args& a, int64_t row, int64_t begin, int64_t end, float scale,
                                         int thread, int threads) {
    auto* out = global<uint8_t>(offset(a.out, row * a.out_stride));
    for (int64_t i = begin + thread; i < end; i += threads) {
        out[i] = quantize_one(element<in>(a, row, i), scale, a.out_dtype == DType::e4m3fnuz);
    }
}

// Any sizes, strides and either FP8 format: a workgroup takes rows, of groups each wave takes some. kScale as above, of
// rows or groups kOfRow and kOfGroup.
constexpr int kOfRow = 2, kOfGroup = 3;

template <DType in, int kScale, int kThreads>
__device__ inline void quantize_by_element(const Args& a, const uint32_t* partials, int partial_count) {
    const int t = threadIdx.x, lane = t % kLanes;
    float scale = 0;
    if constexpr (kScale == kGiven) {
        scale = load_scalar(a.given_scale);
    } else if constexpr (kScale == kFromPartials) {
        scale = scale_of(bits_float(largest_partial<kThreads>(partials, partial_count)), a.scale, upper_bound(a.scale));
        if (blockIdx.x == 0 && t == 0) write_scale(a.scale, 0, 0, scale);
    }
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        if constexpr (kScale == kOfGroup) {
            const int64_t groups = a.scale.groups(a.d);
            for (int64_t group = uniform(t / kLanes); group < groups; group += kThreads / kLanes) {
                const int64_t begin = group * a.scale.group, rest = a.d - begin;
                const int64_t end = begin + (rest < a.scale.group ? rest : a.scale.group);
                const uint32_t mine = largest_element<in>(a, row, begin, end, lane, kLanes);
                scale = scale_of(bits_float(max_over_lanes<kLanes>(mine)), a.scale, upper_bound(a.scale));
                if (lane == 0) write_scale(a.scale, row, group, scale);
                quantize_elements<in>(a, row, begin, end, scale, lane, kLanes);
            }
        } else {
            if constexpr (kScale == kOfRow) {
                const uint32_t mine = largest_element<in>(a, row, 0, a.d, t, kThreads);
                scale = scale_of(bits_float(largest_of_group<kThreads>(mine, kThreads)), a.scale, upper_bound(a.scale));
                if (t == 0) write_scale(a.scale, row, 0, scale);
                // Closes: the next row's maxima overwrite those that waves may still read.
                __syncthreads();
            }
            quantize_elements<in>(a, row, 0, a.d, scale, t, kThreads);
        }
    }
}

// The largest of each workgroup's part of the tensor, to `partials`.
template <DType in, int kThreads, bool by_vector>
__device__ inline void find_largest(const Args& a, Divider row_of, uint32_t count, uint32_t* partials) {
    uint32_t largest = 0;
    if constexpr (by_vector) {
        for (uint32_t n = blockIdx.x * kThreads + threadIdx.x; n < count; n += gridDim.x * kThreads) {
            const uint32_t row = divide(n, row_of);
            Elements<in> e;
            e.load_from(offset(a.x, row * a.x_stride * (Elements<in>::kBytes / kVector)), n - row * row_of.divisor);
            largest = larger(largest, e.largest());
        }
    } else {
        for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
            largest = larger(largest, largest_element<in>(a, row, 0, a.d, threadIdx.x, kThreads));
        }
    }
    largest = largest_of_group<kThreads>(largest, kThreads);
    if (threadIdx.x == 0) global<uint32_t>(partials)[blockIdx.x] = largest;
}

// --- launches ---

constexpr int kThreads = 256, kMostThreads = 1024;

template <DType in, int kScale>
__global__ __launch_bounds__(kThreads) void quantize_flat(Args a, Divider row_of, uint32_t count,
                                                          const uint32_t* partials, int partial_count) {
    begin_kernel();
    write_vectors<in, kScale, kThreads>(a, row_of, count, partials, partial_count);
}

template <DType in, int kHeld, bool whole_group>
__global__ __launch_bounds__(whole_group ? kMostThreads : kThreads) void quantize_rows(Args a) {
    begin_kernel();
    write_row<in, kHeld, whole_group, kMostThreads>(a, int(blockDim.x));
}

template <DType in, int kScale>
__global__ __launch_bounds__(kThreads) void quantize_any(Args a, const uint32_t* partials, int partial_count) {
    begin_kernel();
    quantize_by_element<in, kScale, kThreads>(a, partials, partial_count);
}

template <DType in, bool by_vector>
__global__ __launch_bounds__(kThreads) void quantize_largest(Args a, Divider row_of, uint32_t count,
                                                             uint32_t* partials) {
    begin_kernel();
    find_largest<in, kThreads, by_vector>(a, row_of, count, partials);
}

// Who holds a row, with how many vectors a thread.
struct RowForm {
    bool whole_group;
    int held;
};
constexpr RowForm kRowForms[] = {{false, 1}, {false, 2}, {false, 4}, {true, 1}, {true, 2}, {true, 4}, {true, 8}};
constexpr int kRowFormCount = sizeof(kRowForms) / sizeof(kRowForms[0]);

constexpr int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// The form for rows of so many vectors, as an index of kRowForms; -1: they are too long. float32 rows of eight vectors
// a thread do not fit in registers. `units`: the chip's compute units or multiprocessors. Few rows are spread over as
// many threads as there may be, because their latency is the time.
constexpr int row_form(int64_t rows, int64_t vectors, DType in, int units) {
    for (int form = 0; form < kRowFormCount; ++form) {
        const auto [whole_group, held] = kRowForms[form];
        const int64_t threads = whole_group ? kMostThreads : kLanes;
        if (held == 8 && in == DType::f32) return -1;
        if (vectors > held * threads) continue;
        const bool many = rows > 2 * units;
        if (whole_group && many && held < 4 && vectors > 4 * kLanes) continue;
        return form;
    }
    return -1;
}

// The launches by types and sizes. go(kernel, groups, threads, arguments...) is the vendor's.
template <DType in, class Go>
Status launch_as(const Args& a, int units, bool native, const Executor& on, const Go& go) {
    constexpr int64_t kLargestIndex = int64_t(1) << 31, kMostGroups = int64_t(1) << 20, kPartsAUnit = 4;
    const int group = a.given_scale ? 0 : a.scale.group;
    const bool of_tensor = !a.given_scale && group == DynamicScale::kTensor;
    const int64_t vectors = a.d / kVector;
    // The lanes of a row: filled up to whole groups.
    const int64_t row_lanes = group > 0 ? parts(a.d, group) * (group / kVector) : vectors;
    const bool by_vector = native && rows_fit(a) && a.rows * row_lanes < kLargestIndex;
    const uint32_t count = by_vector ? uint32_t(a.rows * row_lanes) : 0;
    const Divider row_of = divider_by(by_vector ? uint32_t(row_lanes) : 1);
    const int64_t any_groups = a.rows < kMostGroups ? a.rows : kMostGroups;

    uint32_t* partials = nullptr;
    int partial_count = 0;
    if (of_tensor) {
        const int64_t most = kPartsAUnit * units, wanted = by_vector ? parts(count, kThreads) : a.rows;
        partial_count = int(wanted < most ? wanted : most);
        partials = static_cast<uint32_t*>(on.scratch(on.context, partial_count * int64_t(sizeof(uint32_t))));
        if (!partials) return {"no memory for the maxima of a tensor's parts"};
        const auto kernel = by_vector ? quantize_largest<in, true> : quantize_largest<in, false>;
        const Status status = go(kernel, partial_count, kThreads, a, row_of, count, partials);
        if (!status.ok()) return status;
    }
    const uint32_t* found = partials;
    if (by_vector && !a.given_scale && group == DynamicScale::kRow) {
        const int form = row_form(a.rows, vectors, in, units);
        if (form >= 0) {
            const auto [whole_group, held] = kRowForms[form];
            const int64_t threads = whole_group ? parts(vectors, held * kLanes) * kLanes : kThreads;
            const int64_t groups = whole_group ? a.rows : parts(a.rows, kThreads / kLanes);
            const auto kernel = kernel_at<kRowFormCount>(form, []<int i>() -> void (*)(Args) {
                constexpr int held =
                    in == DType::f32 && kRowForms[i].held == 8 ? 4 : kRowForms[i].held;  // see row_form
                return quantize_rows<in, held, kRowForms[i].whole_group>;
            });
            return go(kernel, groups, int(threads), a);
        }
    }
    if (!by_vector || (!a.given_scale && group == DynamicScale::kRow)) {
        const auto kernel = a.given_scale ? quantize_any<in, kGiven>
                            : of_tensor   ? quantize_any<in, kFromPartials>
                            : group > 0   ? quantize_any<in, kOfGroup>
                                          : quantize_any<in, kOfRow>;
        return go(kernel, any_groups, kThreads, a, found, partial_count);
    }
    const auto kernel = a.given_scale ? quantize_flat<in, kGiven>
                        : of_tensor   ? quantize_flat<in, kFromPartials>
                        : group == 32 ? quantize_flat<in, 4>
                        : group == 64 ? quantize_flat<in, 8>
                                      : quantize_flat<in, 16>;
    return go(kernel, parts(count, kThreads), kThreads, a, row_of, count, found, partial_count);
}

template <class Go>
Status launch_by_type(const Args& a, int units, bool native, const Executor& on, const Go& go) {
    if (a.dtype == DType::f32) return launch_as<DType::f32>(a, units, native, on, go);
    return a.dtype == DType::f16 ? launch_as<DType::f16>(a, units, native, on, go)
                                 : launch_as<DType::bf16>(a, units, native, on, go);
}

}  // namespace
}  // namespace rocm_fp8::quantize
