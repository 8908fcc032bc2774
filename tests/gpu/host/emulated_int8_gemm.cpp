// int8_gemm's CUDA kernels, emulated: what their launcher does, with a tile or a form that the caller names.
#include <bit>
#include <utility>

#include "common/cuda/vector.h"
// The emulation comes first: it defines CUDA's words.
#include "int8_gemm/cuda/hopper.h"
#include "int8_gemm/cuda/kernel.h"

using namespace rocm_fp8;
using namespace rocm_fp8::int8_gemm;
using namespace rocm_fp8::int8_gemm::cuda;

extern "C" int tile_count() { return kTileCount; }

// vectors: whether operands may be read by 16 bytes; the caller knows their alignment.
extern "C" void run(int index, bool vectors, const Args* a) {
    const cuda::Tile& tile = kTiles[index];
    const int64_t row_tiles = ceil_div(a->m, tile.rows), column_tiles = ceil_div(a->n, tile.columns);
    [&]<int... i>(std::integer_sequence<int, i...>) {
        const auto launch_tile = [&](auto kernel) {
            launch(row_tiles * column_tiles * a->batch, tile.threads(), 1, tile.shared_bytes(),
                   [&] { kernel(*a, row_tiles, column_tiles); });
        };
        ((index == i ? launch_tile(vectors ? int8_gemm_tiles<i, true> : int8_gemm_tiles<i, false>) : void()), ...);
    }(std::make_integer_sequence<int, kTileCount>());
}

extern "C" int form_count() { return kFormCount; }
extern "C" int form_splits(int form) { return kForms[form].splits(); }

// Of one matrix. multiprocessors: CTAs at once, which then take several tiles.
// even: with few rows, pieces that fill four multiprocessors evenly.
extern "C" void run_form(int index, int splits, int even, int multiprocessors, const Args* a) {
    const Form& form = kForms[index];
    const tiles::Size size{a->m, a->n, a->k, 4};
    const int64_t pieces = even ? tiles::filling_pieces(form, splits, size) : tiles::fewest_pieces(form, size);
    const Tiling tiling = tiles::tiling_of(form, splits, int(pieces), a->m, a->n);
    const auto map = [&](const Operand& x, int64_t rows, int height) {
        return CUtensorMap{reinterpret_cast<const uint8_t*>(x.data), rows, a->k, x.row_stride, height};
    };
    const CUtensorMap of_a = map(a->a, a->m, form.swapped ? form.narrow : tiling.height),
                      of_b = map(a->b, a->n, form.swapped ? tiling.height : form.narrow);
    [&]<int... i>(std::integer_sequence<int, i...>) {
        const auto launch_form = [&]<int at>() {
            using S = Shape<at>;
            launch(tiles::ctas_of(tiling, multiprocessors), S::kThreads, tiling.splits, sizeof(typename S::Memory),
                   [&] { int8_gemm_forms<at>(*a, S::kSwapped ? of_b : of_a, S::kSwapped ? of_a : of_b, tiling); });
        };
        ((index == i ? launch_form.template operator()<i>() : void()), ...);
    }(std::make_integer_sequence<int, kFormCount>());
}
