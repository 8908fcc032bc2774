// Who holds a row of values in registers: thread t has the row's vectors t, t + lanes, ... Exchanges a maximum.
#pragma once

#include "eight.h"

#if defined(__CUDACC__)
#include "../cuda/cluster_maximum.h"
#endif

namespace rocm_fp8 {
namespace {

// cluster: of CTAs, on NVIDIA GPUs from Hopper on.
enum class Holder { wave, workgroup, cluster };

constexpr int kMostRowThreads = 1024;  // a workgroup

template <Holder holder>
struct RowHolder {
    int64_t row;
    int lanes, t;

    // Before wait_for_previous_kernel.
    __device__ RowHolder() {
        const int threads = blockDim.x;
        if constexpr (holder == Holder::wave) {
            row = int64_t(blockIdx.x) * (threads / kLanes) + uniform(threadIdx.x / kLanes);
            lanes = kLanes, t = threadIdx.x % kLanes;
        } else {
            row = blockIdx.x, lanes = threads, t = threadIdx.x;
        }
#if defined(__CUDACC__)
        if constexpr (holder == Holder::cluster) {
            const int ctas = ctas_in_cluster();
            row = blockIdx.x / ctas, lanes = ctas * threads, t = rank_in_cluster() * threads + threadIdx.x;
            if (threadIdx.x == 0) expect_maxima(maxima_full());
            __syncwarp();
            arrive_at_cluster_start();
        }
#endif
    }

    // Over the row, in every thread. Once a kernel.
    __device__ uint32_t largest(uint32_t v) const {
        if constexpr (holder == Holder::wave) return max_over_lanes<kLanes>(v);
        else if constexpr (holder == Holder::workgroup) return largest_of_workgroup<kMostRowThreads>(v, lanes);
#if defined(__CUDACC__)
        else {
            wait_for_cluster_start();
            return largest_of_cluster(maxima_full(), v);
        }
#endif
    }

#if defined(__CUDACC__)
  private:
    __device__ static Barrier* maxima_full() {
        __shared__ Barrier full;
        return &full;
    }
#endif
};

}  // namespace
}  // namespace rocm_fp8
