// Quantisation to MXFP4 for AMD and NVIDIA GPUs: a block of 32 a thread. Bytes: those of x, and 17 a block.
#pragma once

#include "../common/gemm/scales.h"
#include "../common/gpu/cells.h"
#include "../common/gpu/overlap.h"
#include "quantize_mxfp4.h"

namespace rocm_fp8::quantize_mxfp4 {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void quantize_mxfp4_blocks(Args a, Cells cells) {
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may write what this one reads
    each_cell(cells, a.rows, blockIdx.x * kThreads + threadIdx.x, [&](int64_t row, int64_t block) {
        const int64_t first = row * a.x_stride + block * kMxBlock, n = row * cells.columns + block;
        float values[kMxBlock];
#pragma unroll
        for (int i = 0; i < kMxBlock; ++i) {
            values[i] = a.dtype == DType::f32 ? float(global<float>(a.x)[first + i])
                                              : gemm::widened(a.dtype, global<uint16_t>(a.x)[first + i]);
        }
        uint8_t codes[kMxBlock / 2], scale;
        quantize_block([&](int i) { return values[i]; }, a.even, codes, &scale);
#pragma unroll
        for (int i = 0; i < kMxBlock / 2; ++i) global<uint8_t>(a.codes)[n * (kMxBlock / 2) + i] = codes[i];
        global<uint8_t>(a.scales)[n] = scale;
    });
}

template <class Vendor>
Status launch_by(const Args& a, const Vendor& vendor) {
    if (a.rows == 0 || a.k == 0) return {};
    constexpr int64_t kPerUnit = 8;
    const int64_t blocks = a.k / kMxBlock, all = ceil_div(a.rows * blocks, kThreads), most = vendor.units * kPerUnit,
                  workgroups = all < most ? all : most;
    return vendor.launch(quantize_mxfp4_blocks, workgroups, kThreads, 1, a, cells_of(blocks, workgroups * kThreads));
}

}  // namespace
}  // namespace rocm_fp8::quantize_mxfp4
