// SwiGLU and quantisation in the epilogue of the tiles of tiles.h: the product is never in memory.
//
//     rows of B a tile   wave column w: 32 gates, then the 32 ups of the same hidden values. So a lane has both of a value
//     sums --> rounded product --> gated values, in registers --> LDS, rows of hidden values --> groups' scales, FP8
//
// A tile of 256 columns has 128 hidden values: whole groups of 32, 64 or 128. The steps are those of the product's launch
// and of ../gpu.h's pass, by the same functions, so that the bytes are theirs.
#pragma once

#include "../../swiglu_fp8/gpu.h"
#include "tiles.h"

namespace rocm_fp8::grouped_gemm::hip {
namespace {

struct GatedArgs : Args {
    QuantizedRows to;
    float limit;
};
using GatedLaunch = TileLaunch<GatedArgs>;

// Of a wave's columns: the hidden value, counted from the tile's first one, and whether it is the up of it.
template <class S>
struct HalvesOf {
    static constexpr int kHidden = S::columns / 2, kOfWave = S::wave_columns / 2;
    static_assert(S::sub_n % 2 == 0 && kHidden % kMostHidden == 0);

    // The row of B, counted from the first gate of the tile, of the tile's row `row` of B.
    static __device__ int64_t row_of_b(int row, int64_t hidden) {
        const int wave = row / S::wave_columns, in_wave = row % S::wave_columns;
        return wave * kOfWave + in_wave % kOfWave + (in_wave < kOfWave ? 0 : hidden);
    }
};

// Rows of B, all of which there are. The gates' first one and the ups' last one lie within 2^30 bytes. The rows of a
// thread's loads are the same distance apart, so that it holds one offset.
template <class S>
struct HalvesLoader : StageLoader<S, S::columns> {
    using Base = StageLoader<S, S::columns>;
    static constexpr int kRowsALoad = S::threads / Base::kChunks;
    static_assert(Base::kPieces % S::threads == 0 && kRowsALoad % S::wave_columns == 0);
    uint32_t first, apart;

    __device__ void start(const uint8_t* rows, int64_t row_stride, int64_t hidden, uint32_t first_k, uint32_t end_k) {
        Base::end = end_k;
        Base::k = first_k + uint32_t(Base::chunk()) * kChunk;
        Base::buffer = Buffer(rows, uint32_t((hidden + HalvesOf<S>::kHidden - 1) * row_stride + end_k));
        first = uint32_t(HalvesOf<S>::row_of_b(Base::row_of(0), hidden)) * uint32_t(row_stride);
        apart = uint32_t(kRowsALoad / 2 * row_stride);
    }
    __device__ void request(u32x4 (&into)[Base::kLoads], int i, uint32_t, uint32_t mine) const {
        into[i] = Base::buffer.load(mine + first + i * apart);
    }
};

// A tile of gated values in LDS: rows of 16-bit numbers, the chunks of a row permuted as those of a stage are.
template <class S>
struct GatedRows {
    static constexpr int kRowBytes = HalvesOf<S>::kHidden * 2, kVectors = kRowBytes / kChunk;
    static constexpr int kBytes = S::rows * kRowBytes, kEach = S::rows * kVectors / S::threads;
    static_assert(kBytes <= S::waves * S::region_bytes && S::rows * kVectors % S::threads == 0);

    static __device__ int at(int row, int column) {
        return row * kRowBytes + (column / kEight ^ row % kVectors) * kChunk + column % kEight * 2;
    }
};

template <class S, DType type>
__device__ inline void gate_sums(const TileSums<S>& sums, float limit, char* tile) {
    using Rows = GatedRows<S>;
    const int thread = fresh_thread(), lane = thread % kWave, wave = uniform(thread / kWave);
    const swiglu::Gated<type> source{nullptr, 0, 0, limit};
    const auto rounded = [](f32x4 v, u32x4& to, int i) {
        to[i] = Pairs<type>::round_any_nan(f32x2{v.x, v.y}), to[i + 1] = Pairs<type>::round_any_nan(f32x2{v.z, v.w});
    };
#pragma unroll
    for (int i = 0; i < S::sub_m; ++i) {
        const int row = wave / S::waves_n * S::wave_rows + row_in_wave<S>(lane, i);
#pragma unroll
        for (int j = 0; j < S::sub_n / 2; ++j) {
#pragma unroll
            for (int q = 0; q < S::quads; q += 2) {
                typename swiglu::Gated<type>::Loaded two;
#pragma unroll
                for (int each = 0; each < 2; ++each) {
                    rounded(four_of<f32x4>(sums[i][j], q + each), two.gate, 2 * each);
                    rounded(four_of<f32x4>(sums[i][j + S::sub_n / 2], q + each), two.up, 2 * each);
                }
                const u32x4 y = source.values(two).bits[0];
                const auto store = [&](int quad, u32x2 four) {
                    const int column = wave % S::waves_n * HalvesOf<S>::kOfWave + column_in_wave<S>(lane, j, quad);
                    *reinterpret_cast<u32x2*>(tile + Rows::at(row, column)) = four;
                };
                store(q, u32x2{y.x, y.y});
                store(q + 1, u32x2{y.z, y.w});
            }
        }
    }
}

// The tile's rows before `end` of the result, `first` its first one; column: its first hidden value.
template <class S, DType type>
__device__ inline void quantize_tile(const QuantizedRows& to, const char* tile, int64_t first, int64_t end,
                                     int64_t column) {
    using Rows = GatedRows<S>;
    const int thread = fresh_thread();
    const bool computed = !to.scale;
    const float bound = computed ? upper_bound(to.dynamic) : 0.0f;
    QuantizationScale given;
    if (!computed) given = QuantizationScale(to.scale);
#pragma unroll
    for (int i = 0; i < Rows::kEach; ++i) {
        const int place = thread + i * S::threads, in_tile = place / Rows::kVectors, vector = place % Rows::kVectors;
        const int64_t row = first + in_tile;
        const Eight<type> y{{*reinterpret_cast<const u32x4*>(tile + Rows::at(in_tile, vector * kEight))}};
        const uint32_t at = uint32_t(column) / kEight + vector;
        const EightBytes q =
            computed ? quantized_in_group(y, to.dynamic, bound, row, at, row < end) : y.quantized_by_one(given);
        if (row < end) store_at(offset(to.out, row * to.stride + at * int64_t(kEight)), q);
    }
}

template <class S, DType type>
struct GatedTile : GroupSums<S, GatedLaunch, 2> {
    using GatedTile::GroupSums::GroupSums;

    __device__ static int64_t first_hidden(const Item& item) { return int64_t(item.tile_n) * HalvesOf<S>::kHidden; }
    template <class LoadA, class LoadB>
    __device__ void start(LoadA& load_a, LoadB& load_b, const GatedLaunch& launch, const Item& item, uint32_t first_k,
                          uint32_t end_k) {
        const GatedArgs& a = launch.args;
        const int64_t hidden = first_hidden(item);
        load_a.start(a, item, first_k, end_k);
        const uint8_t* const first = a.b.data + item.group * a.b.group_stride + hidden * a.b.row_stride;
        load_b.start(first, a.b.row_stride, a.to.d, first_k, end_k);
        this->start_scales(launch, item, {hidden, a.to.d + hidden});
    }
    __device__ void finish(const GatedLaunch& launch, const Item& done, char (&regions)[S::waves][S::region_bytes]) {
        const GatedArgs& a = launch.args;
        if (launch.mode) {
            const int wave = uniform(threadIdx.x / kWave);
            const int64_t first = first_hidden(done);
            const GroupResult result{done.end, a.n, scales_of(a.scale_b, done.group), {}, {}};
            const auto column_of = [&](int n) {
                return first + HalvesOf<S>::row_of_b(wave % S::waves_n * S::wave_columns + n, a.to.d);
            };
            scale_and_add<S>(this->sums, result, true, column_of, reinterpret_cast<float*>(regions[wave]));
            // Barrier: waves write gated values where others have read their scales.
            lds_barrier();
        }
        char* const tile = regions[0];
        gate_sums<S, type>(this->sums, a.limit, tile);
        // Barrier: rows are read by other waves than wrote them.
        lds_barrier();
        quantize_tile<S, type>(a.to, tile, done.row, done.end, first_hidden(done));
        // Others write there after the next barrier.
        lds_done();
    }
};

template <int index, DType type>
struct GatedOf {
    using S = LoopShape<kGatedShapes[index], kChunksAFragment>;
    using Loop = TileLoop<S, GatheredLoader<S, S::rows>, HalvesLoader<S>, GatedTile<S, type>>;
};

// FP8 operands; type: the product's and the gated values'.
template <int index, DType type>
__global__ __launch_bounds__((GatedOf<index, type>::S::threads), (GatedOf<index, type>::S::waves_per_simd))
__attribute__((amdgpu_num_vgpr(256))) void
grouped_gemm_gated(GatedLaunch) {
    using Gated = GatedOf<index, type>;
    __shared__ typename Gated::Loop::Lds lds;
    make_grouped_items<typename Gated::S, GatedLaunch, typename Gated::Loop>(lds);
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::hip
