// Matrix instructions on int8 (Ampere and later): int32 sums of 16 rows by 8 columns, exact.
//
// The instruction has its own assignment of k to lanes and registers, but a sum of integers may take k in any order. So
// lane 4 g + t loads the 16 bytes k = 16 t ... 16 t + 15 of row g, of row g + 8 and of column g, and each of two
// instructions takes two words of each:
//
//     rows     a0: word of row g   a1: of row g + 8   a2: the next word of row g   a3: of row g + 8
//     columns  b0: word            b1: the next word
//     sums     d0, d1: row g, columns 2t and 2t + 1   d2, d3: row g + 8
#pragma once

#include "vector.h"

namespace rocm_fp8 {
namespace {

constexpr int kInt8Rows = 16, kInt8Columns = 8, kInt8K = 64;  // of multiply_int8()

using Int8Sums = int32_t[4];

// d += 64 k: rows[0] is a lane's chunk of row g, rows[1] of row g + 8.
__device__ inline void multiply_int8(Int8Sums& d, const uint4 (&rows)[2], const uint4& column) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(word(rows[0], i)), "r"(word(rows[1], i)), "r"(word(rows[0], i + 1)), "r"(word(rows[1], i + 1)),
              "r"(word(column, i)), "r"(word(column, i + 1)));
    }
}

}  // namespace
}  // namespace rocm_fp8
