// What the main loop (tile_loop.h) makes of products with scales of blocks: each block of 128 k has a chain of matrix
// instructions of its own, from zero. Its sums are added to the tile's, scaled, between the next block's first ones.
//
// Product is the operator's: Args, Item; ScalesA and ScalesB, loaders as those of block_scales.h; per_column: whether
// ScalesB has a scale for each column, or one number a block; kRangesB: ranges of a wave's subtiles of columns that have
// such a number each (rows of B that lie apart); and
//
//     start_loads(load_a, load_b, args, item, first_k, end_k)
//     start_scales(scales_a, scales_b, args, item, channels)    channels (the launch's mode): scale_b is the epilogue's
//     finish(sums, launch, item, regions)
//     has_rows(item)                                            with kSkips: whether the wave has rows in the tile
#pragma once

#include "block_scales.h"
#include "tile_end.h"
#include "tile_loop.h"

namespace rocm_fp8::gemm::hip {
namespace {

template <class S, class Product>
class BlockSums {
    using ScalesA = typename Product::ScalesA;
    using ScalesB = typename Product::ScalesB;
    using Launch = TileLaunch<typename Product::Args>;
    static constexpr bool per_column = Product::per_column;
    static constexpr int kRangesB = Product::kRangesB;
    static_assert(S::sub_n % kRangesB == 0 && (kRangesB == 1 || !per_column));
    // With one stage a block the next period's scales are stored while the last ones are read.
    static constexpr int kScaleBuffers = S::stages == 2 ? 1 : 2;

  public:
    using Args = typename Product::Args;
    using Item = typename Product::Item;
    static constexpr bool kBlocksApart = true, kSkips = Product::kSkips;
    static constexpr int kInstructions = instructions_on(S::chunks);
    using Regions = char[S::waves][S::region_bytes];
    struct Lds {
        alignas(16) float scales[kScaleBuffers][kRangesB][kPeriod * kScalePitch<S::rows>];
        alignas(16) float of_columns[kScaleBuffers][per_column ? kPeriod * kScalePitch<S::columns> : 1];
    };

    __device__ explicit BlockSums(Lds& lds) : lds(lds) {}

    template <class LoadA, class LoadB>
    __device__ static void start_loads(LoadA& load_a, LoadB& load_b, const Args& a, const Item& item, uint32_t first_k,
                                       uint32_t end_k) {
        Product::start_loads(load_a, load_b, a, item, first_k, end_k);
    }

    __device__ void begin(const Args& a, const Item& item) {
        channels = arguments<Launch>().mode;
        if constexpr (kSkips) has_rows = Product::has_rows(item);
        Product::start_scales(scales_a, scales_b, a, item, channels);
    }
    __device__ bool live() const { return has_rows; }
    __device__ void requested(const Args& a) { request_scales(a, 0); }

    __device__ void start(const Launch&) {
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (auto& of_range : scale) of_range[i] = 0;
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) sums[i][j] = block_sums[i][j] = Sums<S::matrix>(0);
        }
        if constexpr (per_column) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) of_columns[j] = Sums<S::matrix>(0);
        }
    }
    __device__ void entered(const Args& a) { store_scales(a, 0); }
    __device__ void filled() {}

    __device__ void stage(const Args& a, uint32_t block, int h, uint32_t end) {
        if (h == 0 && block % kPeriod == 0 && block + kPeriod < end) request_scales(a, block + kPeriod);
        if (h == S::stages - 1 && block % kPeriod == kPeriod - 1 && block + 1 < end) store_scales(a, block + 1);
        if (h == 0) read_scales(block);
    }

    // Adds a subtile's sums of the last block, scaled.
    __device__ void fold(int i, int j) {
        Sums<S::matrix> factor = Sums<S::matrix>(scale[j * kRangesB / S::sub_n][i]);
        if constexpr (per_column) factor *= of_columns[j];
        before_sums_are_read(block_sums[i][j]);
        sums[i][j] = __builtin_elementwise_fma(block_sums[i][j], factor, sums[i][j]);
        asm volatile("" : "+v"(sums[i][j]));  // here: later, block_sums would be held twice
    }
    __device__ void multiply(int i, int j, const u32x4* b, const u32x4* a, int n, bool first) {
        block_sums[i][j] = hip::multiply<S::matrix>(b, a, first ? Sums<S::matrix>(0) : block_sums[i][j], n);
    }
    // From now on the scales of this block.
    __device__ void folded() {
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int r = 0; r < kRangesB; ++r) scale[r][i] = next_scale[r][i];
        }
        if constexpr (per_column) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) of_columns[j] = next_columns[j];
        }
    }
    __device__ void end() {
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) fold(i, j);
        }
    }

    __device__ void finish(const Launch& launch, const Item& done, Regions& regions) {
        Product::finish(sums, launch, done, regions);
    }

  private:
    __device__ void request_scales(const Args& a, uint32_t block) {
        scales_a.request(a.scale_a, block);
        if (!channels) {
#pragma unroll
            for (int r = 0; r < kRangesB; ++r) scales_b[r].request(a.scale_b, block);
        }
    }
    __device__ void store_scales(const Args& a, uint32_t block) {
        const int buffer = block / kPeriod % kScaleBuffers;
        const auto plain = [](float v) { return v; };
        auto& to = lds.scales[buffer];
        if constexpr (per_column) {
            hip::store_scales<S::rows, S::threads>(to[0], a.scale_a, scales_a, plain);
            // Those of channels are the epilogue's.
            const auto of_column = [&](float v) { return channels ? 1.0f : v; };
            hip::store_scales<S::columns, S::threads>(lds.of_columns[buffer], a.scale_b, scales_b[0], of_column);
        } else if (channels) {
#pragma unroll
            for (auto& of_range : to) hip::store_scales<S::rows, S::threads>(of_range, a.scale_a, scales_a, plain);
        } else {
#pragma unroll
            for (int r = 0; r < kRangesB; ++r) {
                const float other = scale_of_bits(a.scale_b.dtype == DType::e8m0, scales_b[r].bits[0]);
                hip::store_scales<S::rows, S::threads>(to[r], a.scale_a, scales_a, [&](float v) { return v * other; });
            }
        }
    }
    __device__ void read_scales(uint32_t block) {
        const int lane = threadIdx.x % kWave, wave = uniform(threadIdx.x / kWave);
        const int buffer = block / kPeriod % kScaleBuffers, row = block % kPeriod;
#pragma unroll
        for (int r = 0; r < kRangesB; ++r) {
            const float* from = lds.scales[buffer][r] + row * kScalePitch<S::rows> + wave / S::waves_n * S::wave_rows;
#pragma unroll
            for (int i = 0; i < S::sub_m; ++i) next_scale[r][i] = from[row_in_wave<S>(lane, i)];
        }
        if constexpr (per_column) {
            const float* columns =
                lds.of_columns[buffer] + row * kScalePitch<S::columns> + wave % S::waves_n * S::wave_columns;
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) {
#pragma unroll
                for (int q = 0; q < S::quads; ++q) {
                    set_four(next_columns[j], q,
                             *reinterpret_cast<const f32x4*>(columns + column_in_wave<S>(lane, j, q)));
                }
            }
        }
    }

    Lds& lds;
    bool channels;
    [[maybe_unused]] bool has_rows;
    ScalesA scales_a;
    ScalesB scales_b[kRangesB];
    TileSums<S> sums, block_sums;
    float scale[kRangesB][S::sub_m], next_scale[kRangesB][S::sub_m];
    Sums<S::matrix> of_columns[S::sub_n], next_columns[S::sub_n];
};

}  // namespace
}  // namespace rocm_fp8::gemm::hip
