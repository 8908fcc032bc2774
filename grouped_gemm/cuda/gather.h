// A's rows in the order of the result, 16-byte aligned: before the kernel for many rows, whose TMA takes tiles of
// neighbours, and for operands that TMA does not take. A warp copies a row.
#pragma once

#include "../../common/cuda/pdl.h"
#include "row_tiles.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

constexpr int kGatherThreads = 256, kGatherAtOnce = 4;  // vectors of a lane

template <bool vectors>
__global__ __launch_bounds__(kGatherThreads) void grouped_gemm_gather(Args a, uint8_t* to, int64_t stride) {
    constexpr int kWarps = kGatherThreads / kWarp;
    const int lane = threadIdx.x % kWarp;
    const int64_t bytes = a.k * a.element_bytes(), step = int64_t(gridDim.x) * kWarps;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int live = clamped(global<int32_t>(a.offsets)[a.groups], a.m);
    for (int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarp; row < live; row += step) {
        const uint8_t* const from = a.a.data + source_of(a, row) * a.a.row_stride;
        uint8_t* const own = to + row * stride;
        if constexpr (vectors) {
            for (int64_t first = lane * 16; first < bytes; first += kGatherAtOnce * kWarp * 16) {
                uint4 v[kGatherAtOnce];
#pragma unroll
                for (int i = 0; i < kGatherAtOnce; ++i) {
                    const int64_t at = first + i * kWarp * 16;
                    v[i] = load(from + (at < bytes ? at : first));
                }
#pragma unroll
                for (int i = 0; i < kGatherAtOnce; ++i) {
                    const int64_t at = first + i * kWarp * 16;
                    if (at < bytes) store(own + at, v[i]);
                }
            }
        } else {
            for (int64_t at = lane; at < bytes; at += kWarp) own[at] = from[at];
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
