// Splits of a sequence's tokens: workgroups that each take a share of them. Their number is a launch's; where a share
// begins and ends follows from the sequence's own length. For HIP and CUDA.
#pragma once

#include <cstdint>

#include "../mla_decode.h"

namespace rocm_fp8::mla_decode {

struct Share {
    int32_t begin, end;  // tiles
};

// Splits that get tiles: the first ones.
ROCM_FP8_HD inline int32_t used_splits(int32_t tiles, int32_t splits) { return tiles < splits ? tiles : splits; }

// Of split i. The shares of the used ones differ by a tile at most.
ROCM_FP8_HD inline Share share_of(int32_t tiles, int32_t splits, int32_t i) {
    const int32_t used = used_splits(tiles, splits);
    if (i >= used) return {0, 0};
    return {int32_t(int64_t(tiles) * i / used), int32_t(int64_t(tiles) * (i + 1) / used)};
}

// The same, but that the first shares are the longer ones: without divisions of 64 bits, which take a kernel's start.
ROCM_FP8_HD inline Share short_share_of(int32_t tiles, int32_t splits, int32_t i) {
    const int32_t used = used_splits(tiles, splits);
    if (i >= used) return {0, 0};
    const int32_t each = int32_t(uint32_t(tiles) / uint32_t(used)), more = tiles - each * used;
    const int32_t begin = i * each + (i < more ? i : more);
    return {begin, begin + each + (i < more)};
}

// Where splits leave their sums: [batch][splits][rows], of `out` 512 float32 each. Those of splits that are not used
// are not written; nor is `out` where lse is -infinity.
struct Partial {
    float *out, *lse;
    int32_t splits, tile;  // tile: tokens

    static int64_t bytes(int64_t batch, int64_t splits, int64_t rows) {
        return batch * splits * rows * (kLatent + 1) * int64_t(sizeof(float));
    }
    static Partial at(void* scratch, int64_t batch, int64_t rows, int splits, int tile) {
        float* const out = static_cast<float*>(scratch);
        return {out, out + batch * splits * rows * kLatent, splits, tile};
    }
    ROCM_FP8_HD int64_t row(int64_t b, int32_t split, int64_t rows, int64_t row) const {
        return (b * splits + split) * rows + row;
    }
};

}  // namespace rocm_fp8::mla_decode
