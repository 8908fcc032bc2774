// Column-major operands, made K-contiguous.
#pragma once

#include <emmintrin.h>

#include <cstdint>

#include "../../common/cpu/kept_memory.h"
#include "../block_scaled_gemm.h"

namespace rocm_fp8::block_scaled_gemm {
namespace {

// 16 x 16 bytes: out[c * out_stride + r] = in[r * in_stride + c]. SSE2: every x86-64 has it.
inline void transpose_16(const uint8_t* in, int64_t in_stride, uint8_t* out, int64_t out_stride) {
    __m128i x[16], y[16];
    for (int r = 0; r < 16; ++r) x[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + r * in_stride));
    // Interleaving row r with row r + 8 doubles, four times, how many elements of a column are neighbours.
    auto interleave = [](const __m128i* from, __m128i* to) {
        for (int r = 0; r < 8; ++r) {
            to[2 * r] = _mm_unpacklo_epi8(from[r], from[r + 8]);
            to[2 * r + 1] = _mm_unpackhi_epi8(from[r], from[r + 8]);
        }
    };
    interleave(x, y);
    interleave(y, x);
    interleave(x, y);
    interleave(y, x);
    for (int c = 0; c < 16; ++c) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + c * out_stride), x[c]);
}

// The bytes of `rows` rows of k elements, whose element (r, i) is in[i * in_stride + r], to out[r * out_stride + i].
inline void transpose(const uint8_t* in, int64_t in_stride, int64_t rows, int64_t k, uint8_t* out, int64_t out_stride) {
    const int64_t whole_rows = rows / 16 * 16, whole_k = k / 16 * 16;
    for (int64_t i = 0; i < whole_k; i += 16)
        for (int64_t r = 0; r < whole_rows; r += 16)
            transpose_16(in + i * in_stride + r, in_stride, out + r * out_stride + i, out_stride);
    for (int64_t i = 0; i < k; ++i)
        for (int64_t r = i < whole_k ? whole_rows : 0; r < rows; ++r) out[r * out_stride + i] = in[i * in_stride + r];
}

// Rows of codes, K-contiguous.
struct Codes {
    const uint8_t* data;
    int64_t stride;
};

// `count` rows of an operand; of a column-major one in this thread's memory, until the next call.
template <class Operand>
Codes rows_of(const Operand& x, int64_t first, int64_t count, int64_t k) {
    if (x.k_contiguous()) return {x.data + first * x.row_stride, x.row_stride};
    static thread_local KeptMemory memory;
    // Off powers of two: rows fall into different sets of the cache.
    const int64_t stride = (k + 127) / 128 * 128 + 64;
    auto* out = reinterpret_cast<uint8_t*>(memory.at_least(count * stride));
    transpose(x.data + first * x.row_stride, x.k_stride, count, k, out, stride);
    return {out, stride};
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm
