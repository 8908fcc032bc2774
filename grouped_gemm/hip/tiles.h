// Many rows an expert: tiles of sorted rows by the main loop of common/gemm/hip/tile_loop.h. A workgroup makes one tile
// after the other; which ones there are is in the offsets (row_tiles.h).
#pragma once

#include "../../common/gemm/hip/block_sums.h"
#include "../../common/hip/half_matrix.h"
#include "config.h"
#include "gather.h"

namespace rocm_fp8::grouped_gemm::hip {
namespace {

// mode: whether scale_b is a scale a channel, which the epilogue multiplies by.
using Launch = TileLaunch<Args>;

// What the epilogue needs, of one group.
struct GroupResult {
    int64_t m, n;  // m: behind the group's last row
    gemm::Scales scale_b;
    gemm::Bias bias;
    gemm::Output out;
};

template <class S>
__device__ inline void finish_group(TileSums<S>& sums, const Launch& launch, const Item& done,
                                    char (&regions)[S::waves][S::region_bytes]) {
    const Args& a = launch.args;
    const GroupResult result{done.end, a.n, scales_of(a.scale_b, done.group), bias_of(a, done.group), a.out};
    finish_tile<S>(sums, result, launch.mode, done.row, int64_t(done.tile_n) * S::columns, regions);
}

template <class S>
__device__ inline void start_group_loads(auto& load_a, auto& load_b, const Args& a, const Item& item, uint32_t first_k,
                                         uint32_t end_k) {
    load_a.start(a, item, first_k, end_k);
    const gemm::Operand b{0, a.b.data + item.group * a.b.group_stride, a.b.row_stride, 1};
    load_b.start(b, int64_t(item.tile_n) * S::columns, a.n, first_k, end_k);
}

#if defined(__gfx950__)
constexpr int kMostSkipped = 128 * 128;  // larger tiles of FP8 have no registers left for it
#else
constexpr int kMostSkipped = 256 * 128;
#endif
template <class S>
constexpr bool skips = S::rows * S::columns <= kMostSkipped;

// FP8. ranges: of rows of B that lie apart.
template <class S, class Launch, int ranges = 1>
struct GroupSums
    : BlockSums<S, Launch, GatheredScales<S::rows, S::threads>, ScaleLoader<1, S::threads, false>, false, ranges> {
    using Item = hip::Item;
    static constexpr bool kSkips = skips<S>;
    using GroupSums::BlockSums::BlockSums;

    // columns: the first of each range.
    __device__ void start_scales(const Launch& launch, const Item& item, const int64_t (&columns)[ranges]) {
        const auto& a = launch.args;
        this->scales_a.start(a, item, item.k_begin, item.k_end);
        if (!launch.mode) {
#pragma unroll
            for (int r = 0; r < ranges; ++r)
                this->scales_b[r].start(scales_of(a.scale_b, item.group), columns[r], a.n, item.k_begin, item.k_end);
        }
    }
};
template <class S>
struct ScaledTile : GroupSums<S, Launch> {
    using ScaledTile::GroupSums::GroupSums;

    template <class LoadA, class LoadB>
    __device__ void start(LoadA& load_a, LoadB& load_b, const Launch& launch, const Item& item, uint32_t first_k,
                          uint32_t end_k) {
        start_group_loads<S>(load_a, load_b, launch.args, item, first_k, end_k);
        this->start_scales(launch, item, {int64_t(item.tile_n) * S::columns});
    }
    __device__ void finish(const Launch& launch, const Item& done, char (&regions)[S::waves][S::region_bytes]) {
        finish_group<S>(this->sums, launch, done, regions);
    }
};

// float16 and bfloat16: sums in place.
template <class S, DType type>
class HalfTile {
  public:
    using Launch = hip::Launch;
    using Item = hip::Item;
    static constexpr bool kBlocksApart = false, kSkips = true;
    static constexpr int kInstructions = kHalfInstructions;
    struct Lds {};

    __device__ explicit HalfTile(Lds&) {}

    template <class LoadA, class LoadB>
    __device__ void start(LoadA& load_a, LoadB& load_b, const Launch& launch, const Item& item, uint32_t first_k,
                          uint32_t end_k) {
        start_group_loads<S>(load_a, load_b, launch.args, item, first_k, end_k);
    }
    __device__ void clear(const Launch&) { clear_sums(sums); }
    __device__ void filled(const Launch&) {}
    __device__ void multiply(int i, int j, const u32x4* b, const u32x4* a, int n, bool) {
        sums[i][j] = multiply_half<S::matrix, type>(*b, *a, sums[i][j], n);
    }
    __device__ void finish(const Launch& launch, const Item& done, char (&regions)[S::waves][S::region_bytes]) {
        finish_group<S>(sums, launch, done, regions);
    }

  private:
    TileSums<S> sums;
};

// The turn-th item of this workgroup.
template <class S, class Launch>
__device__ inline bool item_at(const RowTiles<S::rows>& row_tiles, int turn, Item* item) {
    const Launch& launch = arguments<Launch>();
    const int tiles_n = launch.work.tiles_n, items = row_tiles.tiles() * tiles_n;
    const int at = item_of(turn, int(blockIdx.x), int(gridDim.x), items);
    if (at < 0) return false;
    const RowTile rows = row_tiles.tile(at / tiles_n);
    const gemm::TileAt t =
        gemm::tile_at<8>(at - rows.before * tiles_n, RowTiles<S::rows>::tiles_of(rows.first, rows.end), tiles_n);
    const int blocks = int(gemm::blocks_of(launch.args.k));
    *item = {rows.group, rows.first + t.down * S::rows, rows.end, t.across, 0, blocks};
    return true;
}

// As make_items, of RowTiles whose registers lie in LDS while tiles are made.
template <class S, class Launch, class T>
__device__ inline void make_grouped_items(typename T::Lds& lds) {
    __shared__ uint32_t up_to[S::threads];
    RowTiles<S::rows> row_tiles(arguments<Launch>().args);
    up_to[threadIdx.x] = row_tiles.up_to;
    const auto next = [&](int turn, Item* item) {
        const Args& a = arguments<Launch>().args;
        return item_at<S, Launch>(RowTiles<S::rows>(a, up_to[fresh_thread()]), turn, item);
    };
    Item item;
    int turn = 0;
    if (!next(turn, &item)) return;
    T tile(lds);
    tile.begin(item);
    for (bool more = true; more;) {
        // What it waits for comes behind this item's first stages, which are waited for as well.
        Item following;
        more = next(++turn, &following);
        tile.multiply();
        const Item done = item;
        // The next item's first stages come while this one ends.
        if (more) item = following, tile.begin(item);
        tile.finish(done);
    }
}

// type: FP8 (e4m3fnuz stands for the chip's own), float16 or bfloat16. any: operands of any alignment.
template <int index, DType type, bool any>
struct TileOf {
    static constexpr bool fp8 = type == DType::e4m3fnuz;
    using S = LoopShape<kTileShapes[index], fp8 ? kChunksAFragment : 1, any>;
    using LoadA = std::conditional_t<any, GatheredAnyLoader<S, S::rows>, GatheredLoader<S, S::rows>>;
    using LoadB = LoaderOf<S, S::columns, any ? Layout::unaligned : Layout::aligned>;
    using Loop = TileLoop<S, LoadA, LoadB, std::conditional_t<fp8, ScaledTile<S>, HalfTile<S, type>>>;
};

template <int index, DType type, bool any>
__global__ __launch_bounds__((TileOf<index, type, any>::S::threads), (TileOf<index, type, any>::S::waves_per_simd))
__attribute__((amdgpu_num_vgpr(256))) void
grouped_gemm_tiles(Launch) {
    using Tile = TileOf<index, type, any>;
    __shared__ typename Tile::Loop::Lds lds;
    make_grouped_items<typename Tile::S, Launch, typename Tile::Loop>(lds);
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::hip
