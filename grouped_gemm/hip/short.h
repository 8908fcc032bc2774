// K of at most two blocks of FP8: rows stay in registers, as fragments over all of K, and weights stream past them.
//
//     a wave's rows of A: L2 --> registers, once
//     each turn           32 columns of B: HBM --> registers, two turns in flight --> matrix instructions
//                         --> scales, bias, rounding --> 16-byte stores
//
// A loop over so short a K is over before its loads are under way, so the loop is over columns. A workgroup makes a tile
// of an expert's rows by 512 columns. Its waves share out the turns, and nothing else: no LDS, no barrier.
// Bound: bytes of weights, and of the result where an expert has many rows.
//
// All forms give a row the same bits: a sum is one wave's, of block 0, then of block 1.
//
// A lane of v_mfma_f32_16x16x32 has four columns of a row of each of two subtiles. Rows of B are dealt to them so that
// those are eight neighbours: subtile t, lane j has column 8 (j / 4) + 4 t + j % 4 of the turn's.
#pragma once

#include "../../common/gemm/epilogue.h"
#include "config.h"
#include "tiles.h"

namespace rocm_fp8::grouped_gemm::hip {
namespace {

constexpr int kShortBlocks = kMostShortK / gemm::kBlock, kShortLoads = kShortBlocks * kHalves, kLaneColumns = 8;

// What a launch needs beside scales of blocks: nothing; a factor or a bias a column; operands of any alignment as well.
enum class Short { plain, columns, any };
// 64 rows leave no registers for factors of columns.
constexpr int kTallestOfColumns = 1;

template <int index, Short kind>
class ShortTile {
    static constexpr StreamShape shape = kShortShapes[index];
    static constexpr bool any = kind == Short::any;
    static constexpr int kSubRows = shape.rows / 16, kSubtiles = kTurnColumns / 16, kDepth = any ? 1 : shape.depth,
                         kTurns = shape.columns / kTurnColumns / shape.waves;
    static_assert(kSubtiles == 2 && kTurns % kDepth == 0);
    // The shortest form's experts have one tile of rows: nobody reads their weights again.
    static constexpr int kPolicy = index == 0 ? kNonTemporal : kPlainAccess;
    static constexpr int kScalesOfB = shape.columns / gemm::kBlock * kShortBlocks;  // of the workgroup's columns
    static_assert(kScalesOfB <= kWave);

    const Args& args;
    const Item& item;
    const bool channels;
    const uint8_t* b;
    int64_t first;  // the wave's first column
    uint32_t at_b[kShortLoads];
    u32x4 a[kSubRows][kShortBlocks][kHalves], weights[kDepth][kSubtiles][kShortBlocks][kHalves];
    float scale_a[kSubRows][kShortBlocks];
    float scale_b;  // lane 2 c + block: of the workgroup's c-th 128 columns

  public:
    static constexpr int rows = shape.rows, columns = shape.columns, threads = shape.waves * kWave,
                         waves_per_simd = any                      ? 1
                                          : kind == Short::columns ? 2
                                                                   : (shape.waves * shape.per_unit + 3) / 4;

    __device__ ShortTile(const Launch& launch, const Item& item)
        : args(launch.args),
          item(item),
          channels(kind != Short::plain && launch.mode),
          b(args.b.data + item.group * args.b.group_stride),
          first(int64_t(item.tile_n) * columns + uniform(threadIdx.x / kWave) * kTurnColumns) {}

    __device__ void make() {
        const uint32_t of_row = own_column(0) * uint32_t(args.b.row_stride);
        each_load([&](int n, uint32_t k) { at_b[n] = k < uint32_t(args.k) ? of_row + k : kNowhere; });
#pragma unroll
        for (int slot = 0; slot < kDepth; ++slot) request(slot, slot);
        load_rows();
        load_scales();
#pragma unroll 1
        for (int round = 0; round < kTurns && column_of(round) < args.n; round += kDepth) {
#pragma unroll
            for (int slot = 0; slot < kDepth; ++slot) {
                const int turn = round + slot;
                f32x4 sums[kSubRows][kSubtiles];
                multiply(turn, slot, sums);
                request(turn + kDepth, slot);
                store(turn, sums);
            }
        }
    }

  private:
    static __device__ int lane() { return int(threadIdx.x) % kWave; }
    // Of a turn's: the row of B that the lane loads for subtile t.
    static __device__ int own_column(int t) { return lane() % 16 / 4 * kLaneColumns + t * 4 + lane() % 4; }
    __device__ int64_t column_of(int turn) const { return first + turn * shape.waves * kTurnColumns; }

    // body(n, k): the lane's n-th 16 bytes of a row.
    template <class Body>
    __device__ static void each_load(const Body& body) {
#pragma unroll
        for (int n = 0; n < kShortLoads; ++n) body(n, uint32_t(64 * n + own_k()));
    }
    // 16 bytes from k on of a row that begins at `from`; beyond K, or of no row, zeros.
    __device__ u32x4 load_any(const uint8_t* from, bool inside, uint32_t k) const {
        const uint32_t end = uint32_t(args.k);
        if (!inside || k >= end) return u32x4(0);
        return end - k >= uint32_t(kChunk) ? load_unaligned(from + k) : chunk_of_bytes(from + k, 1, end - k);
    }

    // Beyond the last turn, or column, nothing is loaded.
    __device__ void request(int turn, int slot) {
        const int64_t column = column_of(turn), beyond = args.n - column;
        const int left = turn < kTurns && beyond > 0 ? int(beyond < kTurnColumns ? beyond : kTurnColumns) : 0;
        const uint8_t* const from = b + column * args.b.row_stride;
        const uint32_t stride = uint32_t(args.b.row_stride);
        const Buffer buffer(from, left > 0 ? uint32_t(left - 1) * stride + uint32_t(args.k) : 0);
#pragma unroll
        for (int t = 0; t < kSubtiles; ++t) {
            each_load([&](int n, uint32_t k) {
                u32x4& to = weights[slot][t][n / kHalves][n % kHalves];
                if constexpr (any) to = load_any(from + own_column(t) * args.b.row_stride, own_column(t) < left, k);
                else to = buffer.template load<kPolicy>(at_b[n] + t * 4 * stride);
            });
        }
        // Loads stay in this order: waits count them.
        __builtin_amdgcn_sched_barrier(0);
    }

    __device__ void load_rows() {
        const Buffer all(args.a.data + first_source(args, item) * args.a.row_stride, kNowhere);
        int64_t of_a[kSubRows];
        each_source<kSubRows>(
            args, item, [](int i) { return 16 * i + own_row<16>(); },
            [&](int i, int row) {
                of_a[i] = first_source(args, item) + (row < 0 ? 0 : row);
                const uint32_t at = row < 0 ? kNowhere : row * uint32_t(args.a.row_stride);
                each_load([&](int n, uint32_t k) {
                    u32x4& to = a[i][n / kHalves][n % kHalves];
                    if constexpr (any) to = load_any(args.a.data + of_a[i] * args.a.row_stride, row >= 0, k);
                    else to = all.load(at + (k < uint32_t(args.k) ? k : kNowhere));
                });
            });
        uint32_t bits[kSubRows][kShortBlocks];
        const gemm::Scales& s = args.scale_a;
        const auto load = [&]<class T>(T) {
#pragma unroll
            for (int i = 0; i < kSubRows; ++i) {
#pragma unroll
                for (int block = 0; block < kShortBlocks; ++block)
                    bits[i][block] =
                        global<T>(s.data)[of_a[i] * s.row_stride + (has(block) ? block : 0) * s.block_stride];
            }
        };
        if (s.dtype == DType::e8m0) load(uint8_t());
        else load(uint32_t());
#pragma unroll
        for (int i = 0; i < kSubRows; ++i) {
#pragma unroll
            for (int block = 0; block < kShortBlocks; ++block)
                scale_a[i][block] = has(block) ? gemm::scale_of_bits(s.dtype == DType::e8m0, bits[i][block]) : 0.0f;
        }
    }
    // Where K is one block, the other one's products are zeros, and so are its scales.
    __device__ bool has(int block) const { return block * gemm::kBlock < args.k; }

    __device__ void load_scales() {
        scale_b = 1;
        if (channels) return;
        const gemm::Scales s = scales_of(args.scale_b, item.group);
        const int mine = lane() % kScalesOfB, block = mine % kShortBlocks;
        const int64_t column = int64_t(item.tile_n) * columns + mine / kShortBlocks * gemm::kBlock, last = args.n - 1;
        const uint32_t bits = gemm::scale_bits(s, column < last ? column : last, has(block) ? block : 0);
        scale_b = has(block) ? gemm::scale_of_bits(s.dtype == DType::e8m0, bits) : 0.0f;
    }
    __device__ float scale_of(int turn, int block) const {
        const int column = int(column_of(turn) - int64_t(item.tile_n) * columns);
        return bits_float(of_lane(__builtin_bit_cast(uint32_t, scale_b), column / gemm::kBlock * kShortBlocks + block));
    }

    __device__ void multiply(int turn, int slot, f32x4 (&sums)[kSubRows][kSubtiles]) const {
#pragma unroll
        for (int block = 0; block < kShortBlocks; ++block) {
            const float of_b = scale_of(turn, block);
            f32x4 products[kSubRows][kSubtiles];
#pragma unroll
            for (int n = 0; n < instructions_on(kHalves); ++n) {
#pragma unroll
                for (int i = 0; i < kSubRows; ++i) {
#pragma unroll
                    for (int t = 0; t < kSubtiles; ++t)
                        products[i][t] = gemm::hip::multiply<16>(weights[slot][t][block], a[i][block],
                                                                 n ? products[i][t] : f32x4(0), n);
                }
            }
#pragma unroll
            for (int i = 0; i < kSubRows; ++i) {
                const f32x4 factor(scale_a[i][block] * of_b);
#pragma unroll
                for (int t = 0; t < kSubtiles; ++t)
                    sums[i][t] = __builtin_elementwise_fma(products[i][t], factor, block ? sums[i][t] : f32x4(0));
            }
        }
    }

    __device__ void store(int turn, f32x4 (&sums)[kSubRows][kSubtiles]) const {
        const int64_t column = column_of(turn), own = column + lane() / 16 * kLaneColumns;
        if constexpr (kind != Short::plain) scale_columns(own, sums);
        if constexpr (any) {
            each_row([&](int i, int row, bool inside) {
                for (int c = 0; c < kLaneColumns; ++c) {
                    if (inside && own + c < args.n)
                        gemm::put(args.out, (item.row + row) * args.out.row_stride + own + c, sums[i][c / 4][c % 4]);
                }
            });
            return;
        }
        const int size = args.out.dtype == DType::f32 ? 4 : 2;
        const int64_t stride = args.out.row_stride * size;
        const Buffer out(offset(args.out.data, item.row * stride + column * size), kNowhere);
        const uint32_t across = own < args.n ? lane() / 16 * kLaneColumns * size : kNowhere;
        const auto place = [&](int row, bool inside) { return across + (inside ? row * uint32_t(stride) : kNowhere); };
        const auto round = [&](auto type) {
            each_row([&](int i, int row, bool inside) {
                u32x4 bits;
#pragma unroll
                for (int c = 0; c < kLaneColumns; c += 2) {
                    const f32x4& four = sums[i][c / 4];
                    bits[c / 2] = Pairs<type.value>::round_any_nan(f32x2{four[c % 4], four[c % 4 + 1]});
                }
                out.store(place(row, inside), bits);
            });
        };
        if (args.out.dtype == DType::bf16) {
            round(std::integral_constant<DType, DType::bf16>());
        } else if (args.out.dtype == DType::f16) {
            round(std::integral_constant<DType, DType::f16>());
        } else {
            each_row([&](int i, int row, bool inside) {
#pragma unroll
                for (int t = 0; t < kSubtiles; ++t)
                    out.store(place(row, inside) + 16 * t, __builtin_bit_cast(u32x4, sums[i][t]));
            });
        }
    }
    // body(i, row, inside): of the lane's i-th row, which is row `row` of the tile, and inside of the group.
    template <class Body>
    __device__ void each_row(const Body& body) const {
#pragma unroll
        for (int i = 0; i < kSubRows; ++i) {
            const int row = 16 * i + own_row<16>();
            body(i, row, item.row + row < item.end);
        }
    }
    // By a factor a column, plus a bias: of the lane's eight columns.
    __device__ void scale_columns(int64_t column, f32x4 (&sums)[kSubRows][kSubtiles]) const {
        const gemm::Scales s = scales_of(args.scale_b, item.group);
        const gemm::Bias bias = bias_of(args, item.group);
#pragma unroll
        for (int c = 0; c < kLaneColumns; ++c) {
            const int64_t last = args.n - 1, mine = column + c < last ? column + c : last;
            const float by =
                channels ? gemm::scale_of_bits(s.dtype == DType::e8m0, gemm::scale_bits(s, mine, 0)) : 1.0f;
            const float added = gemm::bias_at(bias, mine);
#pragma unroll
            for (int i = 0; i < kSubRows; ++i) {
                f32x4& four = sums[i][c / 4];
                if (channels) four[c % 4] *= by;
                if (bias.data) four[c % 4] += added;  // without one, -0 stays -0
            }
        }
    }
};

template <int index, Short kind>
__global__ __launch_bounds__((ShortTile<index, kind>::threads), (ShortTile<index, kind>::waves_per_simd)) void
grouped_gemm_short(Launch) {
    using Tile = ShortTile<index, kind>;
    const RowTiles<Tile::rows> row_tiles(arguments<Launch>().args);
    Item item;
    for (int turn = 0; item_at<Tile, Launch>(row_tiles, turn, &item); ++turn) Tile(arguments<Launch>(), item).make();
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::hip
