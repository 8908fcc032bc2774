// MX weights by AMX: what amx.cpp hands to the launcher.
#pragma once

#include "../../common/gemm/scales.h"
#include "../mx_gemm.h"

namespace rocm_fp8::mx_gemm {

// Numbers that are multiples of 2^low and less than 2^high.
struct Range {
    int low, high;
};

// Rows of a group that are multiplied at a time.
struct Chunk {
    const Args& args;
    const uint8_t* b;      // the group's matrix
    gemm::Scales scale_b;  // its own
    gemm::Bias bias;
    int64_t first, count;  // rows of the result
    char* operands;        // rows of A, packed
    Range* ranges;         // [count], of more than the fewest rows
    float* factors;        // [count]: A's scales of rows, or 1
};

constexpr int kMostRowsOfChunk = 512, kRowsOfTile = 16;

struct TileKernel {
    int64_t (*operand_bytes)(const Args& args, int64_t count);
    // Rows [begin, end) of the chunk; begin is a multiple of kRowsOfTile.
    void (*pack)(const Chunk& chunk, int64_t begin, int64_t end);
    void (*columns)(const Chunk& chunk, int64_t begin, int64_t end);
};

// Not of float16 rows, which bfloat16 does not hold.
TileKernel kernel_amx(const Args& args);

}  // namespace rocm_fp8::mx_gemm
