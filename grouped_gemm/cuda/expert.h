// Kinds of operands, and the GEMM of one expert as the parts that block_scaled_gemm lends take it.
#pragma once

#include "../../block_scaled_gemm/cuda/store.h"
#include "row_tiles.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

namespace scaled = block_scaled_gemm::cuda;

enum Kind { kScaled, kBf16, kF16 };  // FP8 with scales, or 16-bit without
__device__ constexpr int bytes_of(Kind kind) { return kind == kScaled ? 1 : 2; }

__device__ inline const void* moved(const void* p, int64_t elements, DType type) {
    const int size = type == DType::f32 ? 4 : type == DType::e8m0 ? 1 : 2;
    return offset(p, elements * size);
}

// Rows of the result before `end` are the expert's; those of A and of the result are counted through all experts.
__device__ inline block_scaled_gemm::Args gemm_of(const Args& a, int64_t expert, int64_t end) {
    block_scaled_gemm::Args g{};
    g.a = a.a, g.b = a.b;
    g.a.k_stride = g.b.k_stride = 1;  // all of it counts bytes
    g.b.data += expert * a.b.group_stride;
    g.m = end, g.n = a.n, g.k = a.k;
    g.scale_a = a.scale_a, g.scale_b = a.scale_b;
    g.scale_b.data = moved(a.scale_b.data, expert * a.scale_b.group_stride, a.scale_b.dtype);
    g.bias = a.bias;
    if (a.bias.data) g.bias.data = moved(a.bias.data, expert * a.bias_group_stride, a.bias.dtype);
    g.out = a.out;
    return g;
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
