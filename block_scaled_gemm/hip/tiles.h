// The tile kernel: common/gemm/hip/tile_loop.h with scales of blocks. How the waves of a workgroup divide a tile, and how
// a stage lies in LDS, is in common/gemm/hip/tile.h. A lane has the sums of one row, which have one scale.
#pragma once

#include "../../common/gemm/hip/add_parts.h"
#include "../../common/gemm/hip/block_sums.h"
#include "launch.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

using namespace gemm::hip;

// strided: for operands of any layout, which take more registers.
template <int index, bool strided = false>
struct Shape : LoopShape<kTileShapes[index], kChunksAFragment, strided> {
    static_assert(Shape::columns <= kBlock);
};

// strided: the scales, too, have any layout.
template <class S, bool per_column, bool strided>
class ScaledTile : public BlockSums<S, Launch, ScaleLoader<S::rows, S::threads, strided>,
                                    ScaleLoader<per_column ? S::columns : 1, S::threads, strided>, per_column> {
  public:
    using Item = WorkItem;
    static constexpr bool kSkips = false;
    using ScaledTile::BlockSums::BlockSums;

    template <class LoadA, class LoadB>
    __device__ void start(LoadA& load_a, LoadB& load_b, const Launch& launch, const Item& item, uint32_t first_k,
                          uint32_t end_k) {
        const Args& a = launch.args;
        const int64_t row = first_row<S>(item), column = first_column<S>(item);
        load_a.start(a.a, row, a.m, first_k, end_k);
        load_b.start(a.b, column, a.n, first_k, end_k);
        this->scales_a.start(a.scale_a, row, a.m, item.k_begin, item.k_end);
        if (!launch.mode) this->scales_b[0].start(a.scale_b, column, a.n, item.k_begin, item.k_end);
    }
    __device__ void finish(const Launch& launch, const Item& done, char (&regions)[S::waves][S::region_bytes]) {
        if (launch.split.parts > 1 && !add_parts<S>(this->sums, done, launch.split, regions)) return;
        finish_tile<S>(this->sums, launch.args, launch.mode, first_row<S>(done), first_column<S>(done), regions);
    }
};

// 256: beyond that there are accumulation registers alone, which vector instructions do not reach.
template <int index, bool per_column, bool strided, bool transposed_a = false, bool transposed_b = false>
__global__ __launch_bounds__(Shape<index>::threads, Shape<index>::waves_per_simd)
__attribute__((amdgpu_num_vgpr(256))) void
block_scaled_gemm_tiles(Launch) {
    using S = Shape<index, strided>;
    constexpr Layout kRows = strided ? Layout::strided : Layout::aligned;
    using LoadA = LoaderOf<S, S::rows, transposed_a ? Layout::transposed : kRows>;
    using LoadB = LoaderOf<S, S::columns, transposed_b ? Layout::transposed : kRows>;
    using T = TileLoop<S, LoadA, LoadB, ScaledTile<S, per_column, strided>>;
    __shared__ typename T::Lds lds;
    make_items<S, Launch, T>(lds);
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
