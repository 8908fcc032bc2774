// What the main loop (tile_loop.h) makes of products with scales of blocks: each block of 128 k has a chain of matrix
// instructions of its own, from zero. Its sums are added to the tile's, scaled, between the next block's first ones.
//
// An operator's class derives from it, and adds Item, kSkips, `start`, which starts the scales' loaders, too, and `finish`.
//
// ScalesA and ScalesB are loaders as those of block_scales.h. per_column: whether B has a scale for each column, or one
// number a block; ranges: of a wave's subtiles of columns that have such a number each (rows of B that lie apart). The
// launch's mode is whether scale_b is a scale a channel, which the epilogue multiplies by.
#pragma once

#include "block_scales.h"
#include "tile_end.h"
#include "tile_loop.h"

namespace rocm_fp8::gemm::hip {
namespace {

template <class S, class Launch_, class ScalesA, class ScalesB, bool per_column = false, int ranges = 1>
class BlockSums {
    static_assert(S::sub_n % ranges == 0 && (ranges == 1 || !per_column));
    // With one stage a block the next period's scales are stored while the last ones are read.
    static constexpr int kScaleBuffers = S::stages == 2 ? 1 : 2;

  public:
    using Launch = Launch_;
    static constexpr bool kBlocksApart = true;
    static constexpr int kInstructions = instructions_on(S::chunks);
    struct Lds {
        alignas(16) float scales[kScaleBuffers][ranges][kPeriod * kScalePitch<S::rows>];
        alignas(16) float of_columns[kScaleBuffers][per_column ? kPeriod * kScalePitch<S::columns> : 1];
    };

    __device__ explicit BlockSums(Lds& lds) : lds(lds) {}

    // The period's that begins at `block` of the item.
    __device__ void request_scales(const Launch& launch, uint32_t block) {
        scales_a.request(launch.args.scale_a, block);
        if (launch.mode) return;
#pragma unroll
        for (auto& of_range : scales_b) of_range.request(launch.args.scale_b, block);
    }
    __device__ void clear(const Launch&) {
        clear_sums(scale), clear_sums(sums), clear_sums(block_sums);
        if constexpr (per_column) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) of_columns[j] = Sums<S::matrix>(0);
        }
    }
    __device__ void filled(const Launch& launch) { store_scales(launch, 0); }

    __device__ void stage(const Launch& launch, uint32_t block, int h, uint32_t end) {
        if (h == 0 && block % kPeriod == 0 && block + kPeriod < end) request_scales(launch, block + kPeriod);
        if (h == S::stages - 1 && block % kPeriod == kPeriod - 1 && block + 1 < end) store_scales(launch, block + 1);
        if (h == 0) read_scales(block);
    }
    // In a block's first step a subtile's sums of the last block are added, before they begin anew.
    __device__ void multiply(int i, int j, const u32x4* b, const u32x4* a, int n, bool begins) {
        const bool first = begins && n == 0;
        if (first) fold(i, j);
        block_sums[i][j] = hip::multiply<S::matrix>(b, a, first ? Sums<S::matrix>(0) : block_sums[i][j], n);
        if (begins && i + 1 == S::sub_m && j + 1 == S::sub_n && n + 1 == kInstructions) take_scales();
    }

    __device__ void fold_last() {
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) fold(i, j);
        }
    }

  protected:
    ScalesA scales_a;
    ScalesB scales_b[ranges];
    TileSums<S> sums;

  private:
    // Adds a subtile's sums of the last block, scaled.
    __device__ void fold(int i, int j) {
        Sums<S::matrix> factor = Sums<S::matrix>(scale[j * ranges / S::sub_n][i]);
        if constexpr (per_column) factor *= of_columns[j];
        before_sums_are_read(block_sums[i][j]);
        sums[i][j] = __builtin_elementwise_fma(block_sums[i][j], factor, sums[i][j]);
        asm volatile("" : "+v"(sums[i][j]));  // here: later, block_sums would be held twice
    }
    // Those of the block that is folded next.
    __device__ void take_scales() {
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int r = 0; r < ranges; ++r) scale[r][i] = next_scale[r][i];
        }
        if constexpr (per_column) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) of_columns[j] = next_columns[j];
        }
    }
    __device__ void store_scales(const Launch& launch, uint32_t block) {
        const auto& a = launch.args;
        const bool channels = launch.mode;
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
            for (int r = 0; r < ranges; ++r) {
                const float other = scale_of_bits(a.scale_b.dtype == DType::e8m0, scales_b[r].bits[0]);
                hip::store_scales<S::rows, S::threads>(to[r], a.scale_a, scales_a, [&](float v) { return v * other; });
            }
        }
    }
    __device__ void read_scales(uint32_t block) {
        const int lane = threadIdx.x % kWave, wave = uniform(threadIdx.x / kWave);
        const int buffer = block / kPeriod % kScaleBuffers, row = block % kPeriod;
#pragma unroll
        for (int r = 0; r < ranges; ++r) {
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
    TileSums<S> block_sums;
    float scale[ranges][S::sub_m], next_scale[ranges][S::sub_m];
    Sums<S::matrix> of_columns[S::sub_n], next_columns[S::sub_n];
};

}  // namespace
}  // namespace rocm_fp8::gemm::hip
