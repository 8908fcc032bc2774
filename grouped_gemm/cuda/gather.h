// A's rows and their scales as the kernel for many rows takes them, before it runs.
//
// Rows: in the order of the result, 16-byte aligned. TMA copies tiles of neighbours. A warp copies a row.
// Scales: float32 [blocks, m]. In rows each is 4 bytes of another line, which costs tiles of 256 rows 1 to 8 % (H200).
#pragma once

#include "../../common/cuda/pdl.h"
#include "expert.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

constexpr int kGatherThreads = 256, kGatherAtOnce = 4;  // vectors of a lane

struct Gathered {
    uint8_t* rows;  // or nullptr: they stay
    int64_t stride;
    float* scales;  // or nullptr
};

template <bool vectors>
__device__ inline void gather_rows(const Args& a, uint8_t* to, int64_t stride, int live) {
    constexpr int kWarps = kGatherThreads / kWarp;
    const int lane = threadIdx.x % kWarp;
    const int64_t bytes = a.k * a.element_bytes(), step = int64_t(gridDim.x) * kWarps;
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

// A CTA takes 32 rows, and each of its warps a block: together they read whole sectors.
__device__ inline void gather_scales(const Args& a, float* to, int live) {
    constexpr int kWarps = kGatherThreads / kWarp, kAtOnce = 8;  // reads of a lane before the first is written
    const int64_t blocks = ceil_div(a.k, gemm::kBlock), step = int64_t(gridDim.x) * kWarp;
    const scaled::BlockScales from(a.scale_a, 0);
    for (int64_t row = int64_t(blockIdx.x) * kWarp + threadIdx.x % kWarp; row < live; row += step) {
        const int64_t place = from.place(source_of(a, row));
        for (int64_t first = threadIdx.x / kWarp; first < blocks; first += kWarps * kAtOnce) {
            uint32_t bits[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int64_t block = first + i * kWarps;
                bits[i] = from.raw(place + (block < blocks ? block : first) * from.step);
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int64_t block = first + i * kWarps;
                if (block < blocks) to[block * a.m + row] = from.value(bits[i]);
            }
        }
    }
}

template <bool vectors>
__global__ __launch_bounds__(kGatherThreads) void grouped_gemm_gather(Args a, Gathered to) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int live = clamped(global<int32_t>(a.offsets)[a.groups], a.m);
    if (to.scales) gather_scales(a, to.scales, live);
    if (to.rows) gather_rows<vectors>(a, to.rows, to.stride, live);
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
