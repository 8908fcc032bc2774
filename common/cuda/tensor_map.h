// Host side: TMA descriptors of matrices of bytes, encoded once and kept.
#pragma once

#include <cuda.h>

#include "../types.h"

namespace rocm_fp8 {

// [rows, k] bytes, rows `stride` bytes apart, which of one row says nothing. TMA loads tiles of `height` rows by `width`
// bytes with the 128-byte swizzle. groups: 0, or so many such matrices, group_stride bytes apart, for tiles in three
// dimensions.
struct ByteMatrix {
    const void* data;
    int64_t rows, k, stride;
    int width = 0, height = 0;
    int64_t groups = 0, group_stride = 0;

    bool operator==(const ByteMatrix&) const = default;
};

// Whether TMA takes a matrix, by its address, sizes and strides. Tiles' coordinates, which go beyond its end, are ints.
inline bool tma_takes(const ByteMatrix& m) {
    constexpr int64_t kMost = (int64_t(1) << 31) - 256;
    const auto fits = [&](int64_t stride) { return stride % 16 == 0 && stride >= m.k && stride < int64_t(1) << 40; };
    return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.rows <= kMost && m.k <= kMost &&
           (m.rows == 1 || fits(m.stride)) && (m.groups <= 1 || fits(m.group_stride));
}

// Returns false if TMA cannot take the matrix (an overlapping layout, a driver older than CUDA 12). A descriptor
// depends on the ByteMatrix alone. So each thread keeps those that it used last: encoding takes some 100 ns on the
// host.
bool describe(CUtensorMap* map, const ByteMatrix& matrix);

}  // namespace rocm_fp8
