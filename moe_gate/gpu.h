// moe_gate for AMD and NVIDIA GPUs: two values a thread. Bytes: those of x before *end, and out's.
#pragma once

#include "../common/gemm/epilogue.h"
#include "../common/gpu/cells.h"
#include "../common/gpu/overlap.h"
#include "moe_gate.h"

namespace rocm_fp8::moe_gate {
namespace {

constexpr int kThreads = 256;

__device__ inline float number(const void* x, DType type, int64_t i) {
    return type == DType::f32 ? global<float>(x)[i] : gemm::widened(type, global<uint16_t>(x)[i]);
}

__global__ __launch_bounds__(kThreads) void moe_gate_values(Args a, Cells cells) {
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may write what this one reads
    int64_t rows = a.rows;
    if (a.end) {
        const int end = *global<int32_t>(a.end);
        rows = end < 0 ? 0 : end < rows ? end : rows;
    }
    const gemm::Output out{0, a.out, a.out_stride, a.out_dtype};
    each_cell(cells, rows, blockIdx.x * kThreads + threadIdx.x, [&](int64_t row, int64_t j) {
        const int64_t x = row * a.x_stride;
        const float g = number(a.x, a.dtype, x + (a.gate.interleaved ? 2 * j : j)),
                    u = number(a.x, a.dtype, x + (a.gate.interleaved ? 2 * j + 1 : a.d + j));
        gemm::put(out, row * a.out_stride + j, gated(a.gate, g, u));
    });
}

template <class Vendor>
Status launch_by(const Args& a, const Vendor& vendor) {
    if (a.rows == 0 || a.d == 0) return {};
    constexpr int64_t kPerUnit = 8;
    const int64_t all = ceil_div(a.rows * a.d, kThreads), most = vendor.units * kPerUnit,
                  workgroups = all < most ? all : most;
    return vendor.launch(moe_gate_values, workgroups, kThreads, 1, a, cells_of(a.d, workgroups * kThreads));
}

}  // namespace
}  // namespace rocm_fp8::moe_gate
