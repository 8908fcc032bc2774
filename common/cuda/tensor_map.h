// Host side: descriptors by which TMA takes tiles of a matrix of bytes, encoded once.
#pragma once

#include <cuda.h>

#include "../types.h"

namespace rocm_fp8 {

// [rows, k] bytes, rows `stride` bytes apart, in tiles of `height` rows by `width` bytes, with the 128-byte swizzle.
struct ByteMatrix {
    const void* data;
    int64_t rows, k, stride;
    int width, height;

    bool operator==(const ByteMatrix&) const = default;
};

// false where TMA takes no such matrix (an overlapping layout, a driver older than CUDA 12). A descriptor depends on
// nothing but the ByteMatrix, so that each thread keeps those that it used last: encoding takes some 100 ns of the host.
bool describe(CUtensorMap* map, const ByteMatrix& matrix);

}  // namespace rocm_fp8
