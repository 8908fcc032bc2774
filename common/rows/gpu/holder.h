// The threads that hold a row of values in registers: thread t has the row's vectors t, t + lanes, ... They exchange a
// maximum, and sums.
#pragma once

#include "eight.h"

#if defined(__CUDACC__)
#include "../cuda/cluster_exchange.h"
#endif

namespace rocm_fp8 {
namespace {

// Sums of kLanes vectors each, of a row of at most so many elements.
constexpr int kMostSummed = 65536, kSumSlots = kMostSummed / kEight / kLanes;

// The sum of a row from the sums of each kLanes of its vectors, in every lane.
__device__ inline float sum_of_slots(const float* slots, int used) {
    const int lane = threadIdx.x % kLanes;
#if defined(__CUDACC__)
    float v[1] = {0};
    for (int i = lane; i < used; i += kLanes) v[0] += slots[i];
    sum_over_lanes(v);
    return v[0];
#else
    static_assert(kSumSlots == 2 * kLanes);
    float v = lane < used ? slots[lane] : 0.0f;
    if (used > kLanes) v += kLanes + lane < used ? slots[kLanes + lane] : 0.0f;
    return of_lane_of_sum(sum_over_lanes(v));
#endif
}

// kSummed: vectors a thread whose sums are exchanged, before the maximum.
template <Holder holder, int kSummed = 0>
struct RowHolder {
    static constexpr bool kWorkgroup = holder == Holder::workgroup, kCluster = holder == Holder::cluster;
    int64_t row;
    int lanes, t;

    // Of workgroups of kRowsThreads where they hold several rows; else of `threads`.
    __device__ explicit RowHolder(int threads = blockDim.x) {
        if constexpr (holder == Holder::wave) {
            row = int64_t(blockIdx.x) * (kRowsThreads / kLanes) + uniform(threadIdx.x / kLanes);
            lanes = kLanes, t = threadIdx.x % kLanes;
        } else if constexpr (holder == Holder::quarter_wave) {
            constexpr int kQuarter = 16;
            row = int64_t(blockIdx.x) * (kRowsThreads / kQuarter) + threadIdx.x / kQuarter;
            lanes = kQuarter, t = threadIdx.x % kQuarter;
        } else {
            row = blockIdx.x, lanes = threads, t = threadIdx.x;
        }
#if defined(__CUDACC__)
        if constexpr (kCluster) {
            const int ctas = ctas_in_cluster();
            row = blockIdx.x / ctas, lanes = ctas * threads, t = rank_in_cluster() * threads + threadIdx.x;
        }
#endif
    }

    // Of the row, the thread's vector v; and one to load in its place. Threads beyond the row's end load its last
    // vector: a branch around loads would keep them from being in flight together.
    __device__ uint32_t index(int v) const { return uint32_t(v * lanes + t); }
    __device__ uint32_t loaded(int v, uint32_t vectors) const { return index(v) < vectors ? index(v) : vectors - 1; }

    // What is exchanged, before wait_for_previous_kernel. Barrier: no CTA writes to another CTA of the cluster before
    // that one runs.
    __device__ void expect([[maybe_unused]] bool maximum) const {
#if defined(__CUDACC__)
        if constexpr (kCluster) {
            if (threadIdx.x == 0) {
                if constexpr (kSummed > 0) expect_words(sums_full(), kSummed);
                if (maximum) expect_words(maxima_full(), 1);
            }
            __syncwarp();
            arrive_at_cluster_start();
        }
#endif
    }

    // Over the row, in every thread. Once a kernel.
    __device__ uint32_t largest(uint32_t v) const {
        if constexpr (holder == Holder::quarter_wave) return max_over_lanes<16>(v);
        else if constexpr (holder == Holder::wave) return max_over_lanes<kLanes>(v);
        else if constexpr (kWorkgroup) return largest_of_workgroup<kMostRowThreads>(v, lanes);
#if defined(__CUDACC__)
        else {
            if constexpr (kSummed == 0) wait_for_cluster_start();
            return largest_of_cluster(maxima_full(), v);
        }
#endif
    }

    // The row's sum from those of each vector, 0 beyond its end. The tree depends on the row's length alone: over the
    // lanes of kLanes neighbouring vectors, then over the sums of those. Once a kernel.
    __device__ float sum(float (&sums)[kSummed]) const {
#if !defined(__CUDACC__)
        if constexpr (holder == Holder::quarter_wave) return sum_of_row(sums[0]);
#endif
        sum_over_lanes(sums);
        if constexpr (holder == Holder::wave) {  // the same bits as sum_of_slots
            static_assert(kSummed == 1 || kSummed == 2 || kSummed == 4);
            float sum = of_lane_of_sum(sums[0]);
            if constexpr (kSummed >= 2) sum = of_lane_of_sum(sums[1]) + sum;
            if constexpr (kSummed == 4) sum = (of_lane_of_sum(sums[3]) + of_lane_of_sum(sums[2])) + sum;
            return sum;
        } else {
            __shared__ float slots[kSumSlots];
#if defined(__CUDACC__)
            if constexpr (kCluster) {
                wait_for_cluster_start();
                exchange_in_cluster(slots, sums, sums_full());
                return sum_of_slots(slots, kSummed * (lanes / kLanes));
            }
#endif
            const int waves = lanes / kLanes, wave = uniform(threadIdx.x / kLanes);
            if (threadIdx.x % kLanes == kLaneOfSum) {
#pragma unroll
                for (int v = 0; v < kSummed; ++v) slots[v * waves + wave] = sums[v];
            }
            // Barrier: the slots are read below by waves that did not write them.
            __syncthreads();
            return sum_of_slots(slots, kSummed * waves);
        }
    }

#if defined(__CUDACC__)
  private:
    __device__ static Barrier* maxima_full() {
        __shared__ Barrier full;
        return &full;
    }
    __device__ static Barrier* sums_full() {
        __shared__ Barrier full;
        return &full;
    }
#endif
};

}  // namespace
}  // namespace rocm_fp8
