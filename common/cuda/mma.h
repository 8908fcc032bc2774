// Matrix instructions of the CUDA kernels: sums of 16 columns (rows of B, the weights) by 8 rows of A, or of 16 rows by
// 8 columns. Both ways give the same bits.
//
// FP8 is widened to float16, which represents every FP8 number exactly, and multiplied there (m16n8k16, float32 sums).
// The FP8 instructions of these chips keep fewer bits of their sums than float32 has (on Hopper 14). The conversions
// cost little, because memory limits this operator, not arithmetic. mma.sync on FP8 operands gains nothing: for sm_90
// and sm_100 ptxas compiles it to the same conversions and float16 instructions.
//
// The instruction has its own assignment of k to lanes and registers, but a dot product may take k in any order. So
// lane 4 g + t loads the chunk k = 16 t ... 16 t + 15 (or 8 t ... 8 t + 7) of column g, of column g + 8 and of row g.
// Each instruction takes one word of each chunk (with rows as the wide operand, columns and rows are exchanged):
//
//     columns (wide: A of the instruction)  a0: bytes 0, 1 of column g  a1: of g + 8  a2: bytes 2, 3 of g  a3: of g + 8
//     rows (narrow: B)                      b0: bytes 0, 1 of row g     b1: bytes 2, 3
//     sums                                  d0, d1: column g, rows 2t and 2t + 1      d2, d3: column g + 8
#pragma once

#include <cstdint>

#include "vector.h"

namespace rocm_fp8 {
namespace {

constexpr int kMmaWide = 16, kMmaNarrow = 8;  // columns or rows of the wide and of the narrow operand
constexpr int kChunk = 16;                    // bytes of the widest load

// Four FP8 numbers as two pairs of float16.
struct Four {
    uint32_t low, high;
};
__device__ inline Four widen(uint32_t four) {
    Four w;
    asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.rn.f16x2.e4m3x2 %0, l;\n cvt.rn.f16x2.e4m3x2 %1, h;\n}"
        : "=r"(w.low), "=r"(w.high)
        : "r"(four));
    return w;
}

using Sums = float[4];

__device__ inline void multiply(Sums& d, Four first, Four second, Four narrow) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(first.low), "r"(second.low), "r"(first.high), "r"(second.high), "r"(narrow.low), "r"(narrow.high));
}

// The same of bfloat16.
__device__ inline void multiply_bf16(Sums& d, Four first, Four second, Four narrow) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(first.low), "r"(second.low), "r"(first.high), "r"(second.high), "r"(narrow.low), "r"(narrow.high));
}

// Multiplies kWide tiles of the wide operand by kNarrow tiles of the narrow one. Chunk: a lane's part of k of each
// column and row, 8 or 16 bytes.
template <int kWide, int kNarrow, class Chunk>
__device__ inline void multiply_chunks(Sums (&sums)[kWide][kNarrow], const Chunk (&wide)[kWide][2],
                                       const Chunk (&narrow)[kNarrow]) {
#pragma unroll
    for (int i = 0; i < int(sizeof(Chunk) / 4); ++i) {
        Four b[kNarrow];
#pragma unroll
        for (int n = 0; n < kNarrow; ++n) b[n] = widen(word(narrow[n], i));
#pragma unroll
        for (int w = 0; w < kWide; ++w) {
            const Four first = widen(word(wide[w][0], i)), second = widen(word(wide[w][1], i));
#pragma unroll
            for (int n = 0; n < kNarrow; ++n) multiply(sums[w][n], first, second, b[n]);
        }
    }
}

}  // namespace
}  // namespace rocm_fp8
