// The tile kernel: common/gemm/hip/tile_loop.h with scales of blocks.
#pragma once

#include "epilogue.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

// strided: the scales, too, have any layout.
template <class S, bool of_columns, bool strided>
struct OneProduct {
    using Args = block_scaled_gemm::Args;
    using Item = WorkItem;
    using ScalesA = ScaleLoader<S::rows, S::threads, strided>;
    using ScalesB = ScaleLoader<of_columns ? S::columns : 1, S::threads, strided>;
    static constexpr bool per_column = of_columns, kSkips = false;
    static constexpr int kRangesB = 1;

    template <class LoadA, class LoadB>
    __device__ static void start_loads(LoadA& load_a, LoadB& load_b, const Args& a, const Item& item, uint32_t first_k,
                                       uint32_t end_k) {
        load_a.start(a.a, first_row<S>(item), a.m, first_k, end_k);
        load_b.start(a.b, first_column<S>(item), a.n, first_k, end_k);
    }
    __device__ static void start_scales(ScalesA& scales_a, ScalesB (&scales_b)[1], const Args& a, const Item& item,
                                        bool channels) {
        scales_a.start(a.scale_a, first_row<S>(item), a.m, item.k_begin, item.k_end);
        if (!channels) scales_b[0].start(a.scale_b, first_column<S>(item), a.n, item.k_begin, item.k_end);
    }
    template <class Regions>
    __device__ static void finish(TileSums<S>& sums, const Launch& launch, const Item& done, Regions& regions) {
        finish_tile<S, S::wave_columns>(sums, launch, done, regions);
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
    using T = TileLoop<S, LoadA, LoadB, BlockSums<S, OneProduct<S, per_column, strided>>>;
    __shared__ typename T::Lds lds;
    make_items<S, Launch, T>(lds);
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
