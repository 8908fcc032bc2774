// An operand's scales on the CPU: a row of them at a time, a float a block.
#pragma once

#include "../../common/fp8.h"
#include "../block_scaled_gemm.h"

namespace rocm_fp8::block_scaled_gemm {
namespace {

// Writes the scales of a row's `blocks` blocks.
inline void fill_scales(const Scales& s, int64_t row, int64_t blocks, float* out) {
    const int64_t first = row / s.rows * s.row_stride;
    if (s.dtype == DType::f32) {
        const float* from = static_cast<const float*>(s.data) + first;
        for (int64_t j = 0; j < blocks; ++j) out[j] = from[j * s.block_stride];
    } else {
        const uint8_t* from = static_cast<const uint8_t*>(s.data) + first;
        for (int64_t j = 0; j < blocks; ++j) out[j] = e8m0_value(from[j * s.block_stride]);
    }
}

// The same of neighbouring rows, without a copy where the floats lie side by side already, and once for rows that share
// them. rows[i]: of row first + i. memory: count * blocks floats.
inline void scale_rows(const Scales& s, int64_t first, int count, int64_t blocks, float* memory, const float** rows) {
    const bool direct = s.dtype == DType::f32 && (s.block_stride == 1 || blocks == 1);
    for (int i = 0; i < count; ++i) {
        const int64_t row = first + i;
        if (direct) {
            rows[i] = static_cast<const float*>(s.data) + row / s.rows * s.row_stride;
        } else if (i > 0 && (s.row_stride == 0 || row / s.rows == (row - 1) / s.rows)) {
            rows[i] = rows[i - 1];
        } else {
            fill_scales(s, row, blocks, memory + i * blocks);
            rows[i] = memory + i * blocks;
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm
