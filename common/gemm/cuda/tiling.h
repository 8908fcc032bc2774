// How a launch of a Hopper GEMM is cut into tiles, without CUDA: the launcher, the kernel and the tests read it.
#pragma once

#include "../work.h"
#include "form.h"

namespace rocm_fp8::tiles {

// `pieces` even parts of the wide rows, and whole tiles of narrow rows.
struct Tiling {
    int64_t wide_rows;
    int pieces, height;  // rows of a piece at most, a multiple of 8: what TMA copies
    int narrow_tiles;
    int splits;      // parts of K: CTAs of a cluster
    int neighbours;  // pieces whose tiles follow each other, so that they share narrow rows in L2

    ROCM_FP8_HD int tiles() const { return pieces * narrow_tiles; }
    ROCM_FP8_HD int64_t first_row(int piece) const { return (wide_rows + 7) / 8 * piece / pieces * 8; }
    // down: the piece; across: the tile of narrow rows.
    ROCM_FP8_HD gemm::TileAt at(int tile) const { return gemm::tile_at(tile, pieces, narrow_tiles, neighbours); }
};

inline Tiling tiling_of(const Form& form, int splits, int pieces, int64_t m, int64_t n) {
    const int64_t wide = form.swapped ? n : m, narrow = form.swapped ? m : n;
    const int64_t height = ceil_div(ceil_div(wide, 8), pieces) * 8;
    return {wide, pieces, int(height), int(ceil_div(narrow, form.narrow)), splits, 2048 / form.wide()};
}
// CTAs of a launch, on a GPU that holds `room` at once. A cluster that splits K has one tile: its sums take the place of
// the ring.
inline int64_t ctas_of(const Tiling& tiling, int64_t room) {
    return tiling.splits > 1 ? int64_t(tiling.tiles()) * tiling.splits : tiling.tiles() < room ? tiling.tiles() : room;
}

}  // namespace rocm_fp8::tiles
