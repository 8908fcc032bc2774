// Few rows an expert: the streams of common/gemm/hip/stream.h. A workgroup makes a tile of one expert's rows (16 or 32)
// and 16 or 32 columns, over all of K: each active expert's weights are read once for each such tile of rows. It finds its
// expert in the offsets (row_tiles.h). The launch has as many workgroups as there may be tiles; those beyond the last end.
#pragma once

#include "../../common/gemm/hip/scaled_stream.h"
#include "../../common/gemm/hip/stream_end.h"
#include "config.h"
#include "gather.h"

namespace rocm_fp8::grouped_gemm::hip {
namespace {

struct StreamLaunch {
    Args args;
    Divider columns;     // tiles of columns
    int blocks, longer;  // of a wave's share of K; the first `longer` shares have one more
    bool channels;       // scale_b is a scale a channel: the end's
};

// Waves' scales: of A's rows, times that of B's block.
template <class S>
class GroupScales {
    GatheredScales<S::rows, kWave> a;
    ScaleLoader<1, kWave, false> b;
    const Item* item;
    bool channels;

  public:
    static constexpr bool per_column = false;

    __device__ void of(const Item& tile) { item = &tile; }
    __device__ void begin(int column, int first, int blocks) {
        const StreamLaunch& launch = arguments<StreamLaunch>();
        channels = launch.channels;
        if (blocks == 0) return;
        a.start(launch.args, *item, first, first + blocks);
        if (!channels)
            b.start(scales_of(launch.args.scale_b, item->group), column, launch.args.n, first, first + blocks);
        request(0);
    }
    __device__ void request(uint32_t block) {
        const Args& args = arguments<StreamLaunch>().args;
        a.request(args.scale_a, block);
        if (!channels) b.request(args.scale_b, block);
    }
    __device__ void store(float* region) const {
        const Args& args = arguments<StreamLaunch>().args;
        const float other = channels ? 1.0f : gemm::scale_of_bits(args.scale_b.dtype == DType::e8m0, b.bits[0]);
        store_scales<S::rows, kWave>(region, args.scale_a, a, [&](float v) { return v * other; });
    }
};

// any: loads byte by byte leave no registers for more blocks.
template <int index, DType type, bool any>
struct StreamOf {
    static constexpr bool fp8 = type == DType::e4m3fnuz;
    static constexpr int rows = kStreamShapes[index].rows;
    using S = Stream<kStreamShapes[index], any ? 32 / rows : kStreamShapes[index].depth>;
    using A = std::conditional_t<any, GatheredAnyFragments<rows>, GatheredFragments<rows>>;
    using B = std::conditional_t<any, AnyFragments<S::columns>, AlignedFragments<S::columns, kNonTemporal>>;
    using Sums = std::conditional_t<fp8, ScaledSums<S, GroupScales<S>>, RunningSums<S, type>>;
};

template <int index, DType type, bool any>
__global__ __launch_bounds__((StreamOf<index, type, any>::S::threads),
                             (any ? 1 : StreamOf<index, type, any>::S::waves_per_simd)) void
grouped_gemm_stream(StreamLaunch) {
    using Of = StreamOf<index, type, any>;
    using S = typename Of::S;
    using Sums = typename Of::Sums;
    __shared__ alignas(16) float regions[S::waves][Sums::kRegion];
    const StreamLaunch& launch = arguments<StreamLaunch>();
    const Args& args = launch.args;
    const int tile = int(divide(blockIdx.x, launch.columns));
    const int column = int(blockIdx.x - tile * launch.columns.divisor) * S::columns;
    const RowTile rows = row_tile<S::rows>(args, tile);
    if (rows.group < 0) return;
    const Item item{rows.group, rows.first + rows.tile * S::rows, rows.end, 0, 0, 0};
    const int wave = uniform(threadIdx.x / kWave), blocks = launch.blocks, longer = launch.longer;
    const int first = wave * blocks + (wave < longer ? wave : longer), count = blocks + (wave < longer);

    StreamSlice<S, gemm::kBlock, typename Of::A, typename Of::B, Sums> slice;
    if constexpr (Of::fp8) {
        slice.sums.of_scales().of(item);
        slice.sums.start(regions[wave], column, first, count);
    }
    const gemm::Operand b{0, args.b.data + item.group * args.b.group_stride, args.b.row_stride, 1};
    if constexpr (any) slice.load_b.start(b, column, args.n);
    else slice.load_b.start(b.data, uint32_t(b.row_stride), column, int(args.n));
    slice.load_a.start(args, item);
    slice.start(uint32_t(first) * gemm::kBlock, count, uint32_t(args.k));

    const gemm::Scales scales = scales_of(args.scale_b, item.group);
    gemm::Output out = args.out;
    out.data = offset(out.data, item.row * out.row_stride * (out.dtype == DType::f32 ? 4 : 2));
    const int left = item.end - item.row, m = left < S::rows ? left : S::rows;
    StreamEnd<S, ChannelFactors<true, false>> ending({scales, launch.channels}, bias_of(args, item.group), out,
                                                     SplitK{1, nullptr, nullptr}, m, int(args.n), column, 0, 0);
    ending.finish(slice, regions, wave, S::waves);
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::hip
