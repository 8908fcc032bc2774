// moe_combine: a workgroup has kCombineThreads * 8 columns of a token. Its lanes load the token's positions and weights
// once; those that are not dropped follow one another, several rows of y in flight.
//
//     vectors   rows and d are multiples of 16 bytes and of 8 elements: a thread has eight neighbours
//     elements  any: a thread has eight columns, kCombineThreads apart
#pragma once

#include "../../common/divider.h"
#include "../../common/gpu/lanes.h"
#include "../../common/gpu/overlap.h"
#include "../../common/rows/gpu/eight.h"
#include "../moe_routing.h"

namespace rocm_fp8::moe_routing {
namespace {

constexpr int kCombineThreads = 128, kCombineColumns = kCombineThreads * kEight;

// A thread's columns of a row that begins at p, of `columns`: at least one.
template <DType type, bool by_vector>
struct Columns {
    Eight<type> held;

    __device__ void load(const void* p, uint32_t columns) {
        held.load_from(p, threadIdx.x * kEight < columns ? threadIdx.x : 0);
    }
    __device__ void add_to(float (&sums)[kEight], float weight) const {
#pragma unroll
        for (int i = 0; i < kEight / 2; ++i) {
            const f32x2 two = held.wide(i);
            sums[2 * i] += weight * two.x, sums[2 * i + 1] += weight * two.y;
        }
    }
    __device__ static void store(void* p, uint32_t columns, const float (&sums)[kEight]) {
        if (threadIdx.x * kEight >= columns) return;
        Eight<type> rounded;
        if constexpr (type == DType::f32) {
#pragma unroll
            for (int i = 0; i < kEight; ++i) set_word(rounded.bits[i / 4], i % 4, float_bits(sums[i]));
        } else {
#pragma unroll
            for (int i = 0; i < kEight / 2; ++i) {
                set_word(rounded.bits[0], i, Pairs<type>::round_any_nan(f32x2{sums[2 * i], sums[2 * i + 1]}));
            }
        }
#pragma unroll
        for (int i = 0; i < Eight<type>::kLoads; ++i) {
            store_vector(p, VectorIndex(threadIdx.x * Eight<type>::kLoads + i) * 16, rounded.bits[i]);
        }
    }
};

template <DType type>
struct Columns<type, false> {
    float held[kEight];

    __device__ static uint32_t column(int i) { return threadIdx.x + i * kCombineThreads; }

    __device__ void load(const void* p, uint32_t columns) {
#pragma unroll
        for (int i = 0; i < kEight; ++i) held[i] = element_at<type>(p, column(i) < columns ? column(i) : 0);
    }
    __device__ void add_to(float (&sums)[kEight], float weight) const {
#pragma unroll
        for (int i = 0; i < kEight; ++i) sums[i] += weight * held[i];
    }
    __device__ static void store(void* p, uint32_t columns, const float (&sums)[kEight]) {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
            if (column(i) >= columns) break;
            if constexpr (type == DType::f32) global<float>(p)[column(i)] = sums[i];
            else global<uint16_t>(p)[column(i)] = uint16_t(Pairs<type>::round_any_nan(both(sums[i])));
        }
    }
};

template <DType type>
__device__ inline const void* part_of(const void* rows, int64_t row, int64_t stride, int64_t column) {
    return offset(rows, (row * stride + column) * kElementBytes<type>);
}

// A thread's columns of `shared`, as they lie. Loaded before y's: a load behind those could take registers of loads that
// nobody waits for.
template <bool by_vector>
struct SharedColumns {
    Vector128 bits[2];

    __device__ void load(const CombineArgs& a, int64_t token, int64_t first, uint32_t columns) {
        if constexpr (!by_vector) return;
        if (a.shared_dtype == DType::f32) load_as<DType::f32>(a, token, first, columns);
        else load_as<DType::bf16>(a, token, first, columns);
    }
    template <DType type>
    __device__ void add_to(float (&sums)[kEight], const CombineArgs& a, int64_t token, int64_t first,
                           uint32_t columns) const {
        Columns<type, by_vector> shared;
        if constexpr (by_vector) {
#pragma unroll
            for (int i = 0; i < Eight<type>::kLoads; ++i) shared.held.bits[i] = bits[i];
        } else {
            shared.load(part_of<type>(a.shared, token, a.shared_stride, first), columns);
        }
        shared.add_to(sums, 1.0f);  // the product is exact
    }

  private:
    template <DType type>
    __device__ void load_as(const CombineArgs& a, int64_t token, int64_t first, uint32_t columns) {
        Columns<type, true> shared;
        shared.load(part_of<type>(a.shared, token, a.shared_stride, first), columns);
#pragma unroll
        for (int i = 0; i < Eight<type>::kLoads; ++i) bits[i] = shared.held.bits[i];
    }
};

template <DType in, DType out_type, bool by_vector>
__global__ __launch_bounds__(kCombineThreads) void moe_combine(CombineArgs a, Divider parts) {
    let_next_kernel_start();
    const uint32_t token = divide(blockIdx.x, parts), part = blockIdx.x - token * parts.divisor;
    const int64_t first = int64_t(part) * kCombineColumns;
    const uint32_t columns = uint32_t(a.d - first < kCombineColumns ? a.d - first : kCombineColumns);
    const int lane = threadIdx.x % kLanes;
    wait_for_previous_kernel();
    int32_t place = -1;
    float weight = 0;
    if (lane < a.chosen) {
        const int64_t slot = int64_t(token) * a.chosen + lane;
        place = global<int32_t>(a.positions)[slot];
        weight = global<float>(a.weights)[slot];
    }
    SharedColumns<by_vector> shared = {};
    if (a.shared) shared.load(a, token, first, columns);
    float sums[kEight] = {};
    constexpr int kAtOnce = by_vector ? 8 : 1;
    for (LaneMask left = lanes_where(place >= 0 && place < a.y_rows); left;) {
        Columns<in, by_vector> y[kAtOnce];
        float weights[kAtOnce];
        const int rows = count(left);
        LaneMask next = left;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int slot = lowest(next);
            weights[i] = of_lane(weight, slot);
            y[i].load(part_of<in>(a.y, int64_t(of_lane(uint32_t(place), slot)), a.y_stride, first), columns);
            // Behind the last row that one again: a branch around loads would keep them from being in flight together.
            next = next & (next - 1) ? next & (next - 1) : next;
            left &= left - 1;
        }
        keep_order();  // the loads first
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (i < rows) y[i].add_to(sums, weights[i]);
        }
    }
    if (a.shared) {
        const auto add = [&]<DType type>() { shared.template add_to<type>(sums, a, token, first, columns); };
        if (a.shared_dtype == DType::f32) add.template operator()<DType::f32>();
        else if (a.shared_dtype == DType::f16) add.template operator()<DType::f16>();
        else add.template operator()<DType::bf16>();
    }
    void* out = offset(a.out, (int64_t(token) * a.out_stride + first) * kElementBytes<out_type>);
    Columns<out_type, by_vector>::store(out, columns, sums);
}

template <DType in, DType out_type, class Vendor>
Status launch_combine_as(const CombineArgs& a, const Vendor& vendor) {
    const auto bytes = [](DType type) { return type == DType::f32 ? 4 : 2; };
    const bool vectors = a.d % kEight == 0 && rows_aligned(a.y, a.y_stride * bytes(in)) &&
                         rows_aligned(a.out, a.out_stride * bytes(out_type)) &&
                         (!a.shared || rows_aligned(a.shared, a.shared_stride * bytes(a.shared_dtype)));
    const auto kernel = vectors ? moe_combine<in, out_type, true> : moe_combine<in, out_type, false>;
    constexpr int64_t kMostGroups = int64_t(1) << 24;
    const int64_t parts = ceil_div(a.d, kCombineColumns), at_once = parts < kMostGroups ? kMostGroups / parts : 1;
    Status status;
    for (int64_t first = 0; first < a.rows && status.ok(); first += at_once) {
        CombineArgs some = a;
        some.rows = a.rows - first < at_once ? a.rows - first : at_once;
        some.positions += first * a.chosen, some.weights += first * a.chosen;
        some.out = static_cast<char*>(a.out) + first * a.out_stride * bytes(out_type);
        if (a.shared)
            some.shared = static_cast<const char*>(a.shared) + first * a.shared_stride * bytes(a.shared_dtype);
        status = vendor.launch(kernel, some.rows * parts, kCombineThreads, 1, some, divider_by(uint32_t(parts)));
    }
    return status;
}

template <DType in, class Vendor>
Status launch_combine_of(const CombineArgs& a, const Vendor& vendor) {
    if (a.out_dtype == DType::f32) return launch_combine_as<in, DType::f32>(a, vendor);
    return a.out_dtype == DType::f16 ? launch_combine_as<in, DType::f16>(a, vendor)
                                     : launch_combine_as<in, DType::bf16>(a, vendor);
}

}  // namespace
}  // namespace rocm_fp8::moe_routing
