// How a launch of swiglu_fp8.cu is cut into blocks: a function of the sizes alone, with no CUDA in it, so that it can be
// tested anywhere.
#pragma once

#include <cstdint>

namespace rocm_fp8::swiglu::cuda {

constexpr int kVector = 8;  // elements of gate and of up: 16 bytes each
constexpr int kThreads = 128, kMostThreads = 256;

struct Config {
    bool fast;    // else element by element: odd widths and strides, the format that is not the chip's
    int vectors;  // a thread computes: 1 or 2
    int threads;  // a block
    int64_t blocks;
    int64_t fetching;  // the first of them, which fetch into L2 before the wait for the kernel before
};

// aligned: gate and up of every row start at multiples of 16 bytes, the result at multiples of 8.
//
// All vectors of all rows are numbered through, so that short rows leave no thread idle. Few of them go to blocks of one
// warp, which spread over the multiprocessors; very many to pairs a thread. What the first blocks read while the kernel
// before ends is fetched before the wait; beyond that, fetching is in the way of what is needed now.
constexpr Config pick_config(int64_t rows, int64_t d, int multiprocessors, bool aligned) {
    constexpr int64_t kLargestIndex = int64_t(1) << 31;
    constexpr int kWarpLanes = 32, kFetched = 1024;  // vectors a multiprocessor: 32 KiB of gate and up
    const int64_t vectors = rows * (d / kVector);
    const auto blocks = [](int64_t items, int64_t a_block) { return (items + a_block - 1) / a_block; };
    if (!aligned || vectors >= kLargestIndex) return {false, 1, kThreads, blocks(rows * d, kThreads), 0};
    const auto config = [&](int held, int threads) {
        return Config{true, held, threads, blocks(vectors, held * threads),
                      int64_t(kFetched) * multiprocessors / (held * threads)};
    };
    if (vectors <= 256 * int64_t(multiprocessors)) return config(1, kWarpLanes);
    if (vectors <= 1500 * int64_t(multiprocessors)) return config(1, kThreads);
    if (vectors <= 3800 * int64_t(multiprocessors)) return config(1, kMostThreads);
    // (Up to 2 % faster than either neighbour, there alone.)
    if (vectors <= 4600 * int64_t(multiprocessors)) return config(2, kMostThreads);
    return config(2, kThreads);
}

}  // namespace rocm_fp8::swiglu::cuda
