// Which columns of long rows a launch takes: kernels count a row's vectors, and the bytes from its start, in 32 bits.
// Without a GPU's headers, so that it can be tested anywhere.
#pragma once

#include <cstdint>

namespace rocm_fp8 {

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
