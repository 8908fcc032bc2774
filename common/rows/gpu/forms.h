// Who holds a row, in how many vectors a thread: what kernels are compiled for. And which columns of long rows a launch
// takes: kernels count a row's vectors, and the bytes from its start, in 32 bits. Without a GPU's headers, so that
// choices can be tested anywhere.
#pragma once

#include "../../types.h"

namespace rocm_fp8 {

// A wave (warp), a workgroup (CTA), on NVIDIA GPUs from Hopper on a cluster of CTAs, on AMD GPUs 16 lanes of a wave.
enum class Holder : int { wave, workgroup, cluster, quarter_wave };

struct RowForm {
    Holder holder;
    int held;  // vectors of kEight values that a thread holds
};
constexpr bool operator==(const RowForm& a, const RowForm& b) { return a.holder == b.holder && a.held == b.held; }

constexpr int kEight = 8;
constexpr int kRowsThreads = 256;      // of a workgroup, at most, where it holds no row
constexpr int kMostRowThreads = 1024;  // where it holds one

// Threads that a kernel of a form is compiled for.
constexpr int most_threads(Holder holder) {
    return holder == Holder::wave || holder == Holder::quarter_wave ? kRowsThreads : kMostRowThreads;
}

// --- columns ---

// Bytes of a row that offsets of 32 bits reach, and vectors of all rows that a launch can number.
constexpr int64_t kReach = int64_t(1) << 32, kMostVectors = int64_t(1) << 31;

// All of `d` columns where a launch reaches them. Of longer rows a power of two: so many that a launch also numbers the
// vectors, of 8, of all rows.
constexpr int64_t columns_at_once(int64_t rows, int64_t d, int64_t element_bytes) {
    if (d <= kReach / element_bytes) return d;
    constexpr int64_t kFewest = 128;  // whole groups
    int64_t columns = kReach / element_bytes;
    while (columns > kFewest && rows > (kMostVectors - 1) / (columns / 8)) columns /= 2;
    return columns;
}

// body(first, count) for each launch's columns, until one fails. Launches are in the stream's order.
template <class Body>
auto each_columns(int64_t d, int64_t at_once, const Body& body) {
    auto status = body(int64_t(0), d < at_once ? d : at_once);
    for (int64_t first = at_once; first < d && status.ok(); first += at_once)
        status = body(first, d - first < at_once ? d - first : at_once);
    return status;
}

}  // namespace rocm_fp8
