// How a launch of swiglu_fp8.cu is cut into blocks: a function of the sizes alone, with no CUDA in it, so that it can be
// tested anywhere.
#pragma once

#include <cstdint>

namespace rocm_fp8 {

constexpr int kSwigluCudaVector = 8;  // elements of gate and of up: 16 bytes each
constexpr int kSwigluCudaThreads = 128;

struct SwigluCudaConfig {
    bool fast;       // else element by element: odd widths and strides, the format that is not the chip's
    int vectors;     // a thread computes: 1 or 2
    int threads;     // a block
    int64_t blocks;
};

// aligned: gate and up of every row start at multiples of 16 bytes, the result at multiples of 8.
//
// All vectors of all rows are numbered through, so that short rows leave no thread idle. Few of them go to blocks of one
// warp, which spread over the multiprocessors; very many to pairs a thread.
constexpr SwigluCudaConfig pick_swiglu_cuda_config(int64_t rows, int64_t d, int multiprocessors, bool aligned) {
    constexpr int64_t kLargestIndex = int64_t(1) << 31;
    constexpr int kWarpLanes = 32;
    const int64_t vectors = rows * (d / kSwigluCudaVector);
    const auto blocks = [](int64_t items, int64_t a_block) { return (items + a_block - 1) / a_block; };
    if (!aligned || vectors >= kLargestIndex) return {false, 1, kSwigluCudaThreads, blocks(rows * d, kSwigluCudaThreads)};
    if (vectors <= 256 * int64_t(multiprocessors)) return {true, 1, kWarpLanes, blocks(vectors, kWarpLanes)};
    const int held = vectors <= 8192 * int64_t(multiprocessors) ? 1 : 2;
    return {true, held, kSwigluCudaThreads, blocks(vectors, held * kSwigluCudaThreads)};
}

}  // namespace rocm_fp8
