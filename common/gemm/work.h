// The order of a GEMM's tiles, on host and device, for AMD and NVIDIA GPUs.
#pragma once

#include "../types.h"

namespace rocm_fp8::gemm {

// k of a block: parts of a split K have whole blocks.
constexpr int kBlock = 128;
ROCM_FP8_HD constexpr int64_t blocks_of(int64_t k) { return (k + kBlock - 1) / kBlock; }
constexpr int64_t kMostK = (int64_t(1) << 32) - kBlock;  // whole blocks of it are counted in 32 bits

struct TileAt {
    int down, across;  // tiles of rows, of columns
};

// Tile number `tile` of down x across: column by column within a band of `band` rows of tiles, so that tiles that are
// made at the same time share rows or columns in the caches. Divisions delay a kernel's first load: a `known_band` is
// divided by as a constant.
template <int known_band = 0>
ROCM_FP8_HD constexpr TileAt tile_at(int tile, int down, int across, int band = known_band) {
    const int above = tile / (band * across) * band, inside = tile - above * across;
    const int height = down - above < band ? down - above : band;
    if (known_band > 0 && height == band) return {above + inside % band, inside / band};
    return {above + inside % height, inside / height};
}
constexpr bool comes_to_each_tile_once(int down, int across, int band) {
    int tile = 0;
    for (int first = 0; first < down; first += band)
        for (int column = 0; column < across; ++column)
            for (int row = first; row < first + band && row < down; ++row, ++tile) {
                const TileAt at = tile_at(tile, down, across, band);
                if (at.down != row || at.across != column) return false;
            }
    return true;
}
static_assert(comes_to_each_tile_once(1, 9, 8) && comes_to_each_tile_once(9, 3, 8) &&
              comes_to_each_tile_once(64, 2, 8) && comes_to_each_tile_once(3, 5, 4) &&
              comes_to_each_tile_once(17, 4, 16));

}  // namespace rocm_fp8::gemm
