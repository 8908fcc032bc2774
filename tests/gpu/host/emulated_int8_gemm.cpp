// int8_gemm's CUDA kernel, emulated: what its launcher does, with a tile that the caller names.
#include <bit>
#include <utility>

#include "common/cuda/vector.h"
// The emulation comes first: it defines CUDA's words.
#include "int8_gemm/cuda/kernel.h"

using namespace rocm_fp8;
using namespace rocm_fp8::int8_gemm;
using namespace rocm_fp8::int8_gemm::cuda;

extern "C" int tile_count() { return kTileCount; }

// vectors: whether operands may be read by 16 bytes; the caller knows their alignment.
extern "C" void run(int index, bool vectors, const Args* a) {
    const Tile& tile = kTiles[index];
    const int64_t row_tiles = ceil_div(a->m, tile.rows), column_tiles = ceil_div(a->n, tile.columns);
    [&]<int... i>(std::integer_sequence<int, i...>) {
        const auto launch_tile = [&](auto kernel) {
            launch(row_tiles * column_tiles * a->batch, tile.threads(), 1, tile.shared_bytes(),
                   [&] { kernel(*a, row_tiles, column_tiles); });
        };
        ((index == i ? launch_tile(vectors ? int8_gemm_tiles<i, true> : int8_gemm_tiles<i, false>) : void()), ...);
    }(std::make_integer_sequence<int, kTileCount>());
}
