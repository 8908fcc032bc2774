// How a launch of swiglu_fp8.cu is cut into CTAs: a function of the sizes alone, with no CUDA in it, so that it can be
// tested anywhere.
#pragma once

#include <cstdint>

namespace rocm_fp8::swiglu::cuda {

constexpr int kVector = 8;  // elements of gate and of up: 16 bytes each
constexpr int kThreads = 128, kMostThreads = 256;

struct Config {
    bool fast;    // else element by element: odd widths and strides, the format that is not the chip's
    int vectors;  // per thread: 1 or 2
    int threads;  // per CTA
    int64_t ctas;
    int64_t fetching;  // so many of the first CTAs fetch into L2 before the PDL wait
};

// aligned: gate and up of every row start at multiples of 16 bytes, the result at multiples of 8.
//
// The vectors of all rows have consecutive numbers, so that short rows leave no thread idle. Few vectors go to CTAs of
// one warp, which spread over the multiprocessors. With very many, each thread takes two. The vectors of the first CTAs
// are fetched before the PDL wait, while the previous kernel ends. Further fetches would delay the loads that are
// needed now.
constexpr Config pick_config(int64_t rows, int64_t d, int multiprocessors, bool aligned) {
    constexpr int64_t kLargestIndex = int64_t(1) << 31;
    constexpr int kWarpLanes = 32, kFetched = 1024;  // vectors per multiprocessor: 32 KiB of gate and up
    const int64_t vectors = rows * (d / kVector);
    const auto ctas = [](int64_t items, int64_t a_cta) { return (items + a_cta - 1) / a_cta; };
    if (!aligned || vectors >= kLargestIndex) return {false, 1, kThreads, ctas(rows * d, kThreads), 0};
    const auto config = [&](int held, int threads) {
        return Config{true, held, threads, ctas(vectors, held * threads),
                      int64_t(kFetched) * multiprocessors / (held * threads)};
    };
    if (vectors <= 128 * int64_t(multiprocessors)) return config(1, kWarpLanes);
    if (vectors <= 1500 * int64_t(multiprocessors)) return config(1, kThreads);
    if (vectors <= 3800 * int64_t(multiprocessors)) return config(1, kMostThreads);
    // In this range alone up to 2 % faster than either neighbour.
    if (vectors <= 4600 * int64_t(multiprocessors)) return config(2, kMostThreads);
    return config(2, kThreads);
}
// Also for 2^31 vectors: indices are 32 bits.
static_assert(!pick_config(3, 33, 132, false).fast && pick_config(1 << 19, 1 << 14, 132, true).fast &&
              !pick_config(1 << 20, 1 << 14, 132, true).fast);

}  // namespace rocm_fp8::swiglu::cuda
