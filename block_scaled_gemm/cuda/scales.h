// Reads of dequantisation scales, float32 or e8m0.
#pragma once

#include "../../common/cuda/vector.h"
#include "../../common/gemm/scales.h"
#include "../block_scaled_gemm.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

// The scales of an operand's rows, block after block from `block` on. Rows share all but their places.
struct BlockScales {
    const char* next;
    int64_t row_stride, step;  // bytes
    bool exponents, by_row;

    __device__ BlockScales(const Scales& s, int64_t block) : exponents(s.dtype == DType::e8m0), by_row(s.rows == 1) {
        const int size = exponents ? 1 : 4;
        row_stride = s.row_stride * size;
        step = s.block_stride * size;
        next = static_cast<const char*>(s.data) + block * step;
    }
    __device__ int64_t place(int64_t row) const { return (by_row ? row : row / kBlock) * row_stride; }
    // Bits as they are stored, and the number that they mean. Nothing waits for a read before value() does.
    __device__ uint32_t raw(int64_t place) const { return load_bits(next + place, exponents); }
    __device__ float value(uint32_t bits) const { return gemm::scale_of_bits(exponents, bits); }
    __device__ float at(int64_t place) const { return value(raw(place)); }
    __device__ void advance() { next += step; }
};

// Scales of columns that are the same for all blocks (channels) are multiplied in at the end.
__device__ inline bool at_the_end(const Scales& s) { return s.row_stride != 0 && s.block_stride == 0; }

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
