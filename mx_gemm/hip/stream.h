// Weights stream from HBM past LDS into registers, and through decode.h into matrix instructions.
//
//     a wave   scales of B's blocks: HBM --> LDS, once
//              B: HBM, A: L2 --> registers, depth steps of 128 k in flight --> 16-bit numbers, B's with their scale
//              --> matrix instructions, which add over all of K --> scales of rows, bias, rounding
//
// A workgroup is one wave, which makes a tile of one expert's rows by 32 columns. Waves share nothing: no barrier, and one
// starts while others stream. It finds its expert in the offsets. The launch has as many workgroups as there may be tiles;
// those beyond the last end.
//
// Lane 16 g + j has row j of A and of B, of each 128 k block g: a load of 16 bytes is its block's 32 codes of e2m1. So all
// that a lane multiplies in a step has one scale. Blocks whose scale does not fold (decode.h) are multiplied one by one
// and scaled in float32, as the contract has it (add_scaled): a rare branch of the whole wave.
//
// A lane of the products has four columns of each subtile. Rows of B are dealt to them so that those are eight neighbours:
// subtile t, lane j has column 8 (j / 4) + 4 t + j % 4 of the tile's.
//
// Bound: bytes of weights with few rows. Limit today: each 16 rows of an expert read and decode its weights anew.
// Steps and figures: docs/journal/mx_gemm-hip.md.
#pragma once

#include "../../common/gemm/epilogue.h"
#include "../../common/hip/buffer.h"
#include "../../grouped_gemm/hip/row_tiles.h"
#include "config.h"
#include "decode.h"

namespace rocm_fp8::mx_gemm::hip {
namespace {

using grouped_gemm::hip::RowTile;
using grouped_gemm::hip::RowTiles;

constexpr int kChunk = 16;  // bytes of a load

struct StreamLaunch {
    Args args;
    Divider columns, by_slots;  // tiles of columns
};

// A form with what its loads are. A step of e4m3 is twice the bytes.
template <int index, bool fp8_b>
struct StreamForm {
    static constexpr const StreamShape& shape = kStreamShapes[index];
    static constexpr int rows = shape.rows, columns = shape.columns, sub_m = rows / 16, sub_n = columns / 16,
                         depth = shape.depth / (fp8_b ? 2 : 1), waves_per_simd = (shape.per_unit + 3) / 4;
    static_assert(sub_n == 2 && shape.waves == 1);
    static constexpr int most_blocks = kMostBlocks[index];
};

// The row of A of a row of the result. What is no row of A becomes one.
__device__ inline int source_of(const StreamLaunch& launch, int row) {
    const Args& a = launch.args;
    const int slot = a.rows ? global<int32_t>(a.rows)[row] : row;
    const int found = slot < 0 ? 0 : a.rows ? int(divide(uint32_t(slot), launch.by_slots)) : slot;
    const int last = int(a.a_rows - 1);
    return found < last ? found : last;
}

// Exponents of B's blocks, a tile's columns after one another as in memory, with 16 bytes behind each 128: columns of as
// many blocks would have the same banks.
ROCM_FP8_HD constexpr uint32_t place_of_exponent(uint32_t byte) { return byte + byte / 128 * kChunk; }

template <int most_bytes>
class ScalesInLds {
    static constexpr int kPieces = most_bytes / kChunk / kWave;
    u32x4 pieces[kPieces];
    uint32_t last;
    int bytes;

    template <class Body>
    __device__ void each_piece(const Body& body) const {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            if (const int piece = i * kWave + int(threadIdx.x); piece < bytes / kChunk) body(i, piece * kChunk);
        }
    }
    __device__ int tail() const { return bytes / kChunk * kChunk + int(threadIdx.x); }

  public:
    // count: up to most_bytes, from any address.
    __device__ void request(const uint8_t* from, int count) {
        bytes = count;
        each_piece([&](int i, int at) { pieces[i] = load_unaligned(from + at); });
        last = tail() < bytes ? global<uint8_t>(from)[tail()] : 0;
    }
    __device__ void store(uint8_t* to) const {
        each_piece([&](int i, int at) { *reinterpret_cast<u32x4*>(to + place_of_exponent(at)) = pieces[i]; });
        if (tail() < bytes) to[place_of_exponent(tail())] = uint8_t(last);
        // The wave's other lanes read them.
        meet_lanes();
    }
};

// A wave's tile.
template <class S, DType type, bool fp8_a, bool fp8_b>
class StreamTile {
    static constexpr bool dealt = kDealt && !fp8_b;
    static constexpr int kOfA = fp8_a ? 2 : 4, kOfB = fp8_b ? 2 : 1, kEights = kMxBlock / 8,
                         kStepOfA = kStep * (fp8_a ? 1 : 2), kStepOfB = fp8_b ? kStep : kStep / 2;
    u32x4 a[S::depth][S::sub_m][kOfA], b[S::depth][S::sub_n][kOfB];
    f32x4 sums[S::sub_m][S::sub_n];
    Buffer of_a{nullptr, 0}, of_b{nullptr, 0};
    uint32_t at_a[S::sub_m], at_b[S::sub_n];
    const uint8_t* exponents;  // in LDS
    uint32_t first_exponent[S::sub_n];
    int blocks;  // of K

    static __device__ int own_row() { return int(threadIdx.x) % 16; }
    static __device__ int own_block() { return int(threadIdx.x) / 16; }
    // Of B, for subtile c.
    static __device__ int own_column(int c) { return own_row() / 4 * 8 + 4 * c + own_row() % 4; }

  public:
    __device__ void start(const StreamLaunch& launch, const RowTile& tile, int row, int column, const uint8_t* in_lds) {
        const Args& args = launch.args;
        exponents = in_lds, blocks = int(args.k / kMxBlock);
        const int columns = int(args.n) - column;
        of_b = Buffer(args.b.data + tile.group * args.b.group_stride + int64_t(column) * args.b.row_stride, kNowhere);
#pragma unroll
        for (int c = 0; c < S::sub_n; ++c) {
            const int mine = own_column(c);
            at_b[c] = mine < columns ? mine * uint32_t(args.b.row_stride) + own_block() * kOfB * kChunk : kNowhere;
            first_exponent[c] = (mine < columns ? mine : columns - 1) * blocks;
        }
        of_a = Buffer(args.a.data + (args.rows ? 0 : row * args.a.row_stride), kNowhere);
#pragma unroll
        for (int m = 0; m < S::sub_m; ++m) {
            const int mine = row + 16 * m + own_row();
            const bool inside = mine < tile.end;
            const int source = source_of(launch, inside ? mine : tile.end - 1) - (args.rows ? 0 : row);
            at_a[m] = inside ? source * uint32_t(args.a.row_stride) + own_block() * kOfA * kChunk : kNowhere;
#pragma unroll
            for (int c = 0; c < S::sub_n; ++c) sums[m][c] = f32x4(0);
        }
    }

    __device__ void request_first() {
#pragma unroll
        for (int slot = 0; slot < S::depth; ++slot) request(slot, slot);
    }
    __device__ void multiply_all() {
        const int steps = (blocks + kStepBlocks - 1) / kStepBlocks;
        for (int step = 0; step < steps; step += S::depth) {
#pragma unroll
            for (int slot = 0; slot < S::depth; ++slot) {
                if (step + slot < steps) multiply(slot, step + slot);
                request(slot, step + slot + S::depth);
            }
        }
    }

    __device__ void store(const StreamLaunch& launch, const RowTile& tile, int row, int column) const {
        const Args& args = launch.args;
        gemm::Bias bias = args.bias;
        if (bias.data)
            bias.data = offset(bias.data, tile.group * args.bias_group_stride * (bias.dtype == DType::f32 ? 4 : 2));
        const int first = column + own_block() * 8;
#pragma unroll
        for (int m = 0; m < S::sub_m; ++m) {
            const int mine = row + 16 * m + own_row();
            if (mine >= tile.end) continue;
            float by = 1;
            if constexpr (fp8_a) by = gemm::scale_at(args.scale_a, source_of(launch, mine));
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int n = first + i;
                if (n >= args.n) continue;
                float v = sums[m][i / 4][i % 4];
                if constexpr (fp8_a) v *= by;
                if (bias.data) v += gemm::bias_at(bias, n);  // without one, -0 stays -0
                gemm::put(args.out, mine * args.out.row_stride + n, v);
            }
        }
    }

  private:
    // Beyond K, and beyond the tile's rows and columns: zeros, which touch no memory.
    __device__ void request(int slot, int step) {
        const bool inside = step * kStepBlocks + own_block() < blocks;
        const uint32_t in_b = inside ? step * kStepOfB : kNowhere, in_a = inside ? step * kStepOfA : kNowhere;
#pragma unroll
        for (int c = 0; c < S::sub_n; ++c) {
#pragma unroll
            for (int i = 0; i < kOfB; ++i) b[slot][c][i] = of_b.load(at_b[c] + in_b + i * kChunk);
        }
#pragma unroll
        for (int m = 0; m < S::sub_m; ++m) {
#pragma unroll
            for (int i = 0; i < kOfA; ++i) a[slot][m][i] = of_a.load(at_a[m] + in_a + i * kChunk);
        }
        // Loads stay in this order, before the loop and in it: waits count them.
        __builtin_amdgcn_sched_barrier(0);
    }

    // The i-th eight k of the lane's block; zeros where they do not count.
    __device__ auto codes_of_b(int slot, int c, int i, bool counts = true) const {
        if constexpr (fp8_b) return counts ? eight_bytes(b[slot][c][i / 2], i % 2) : u32x2(0);
        else return counts ? b[slot][c][0][i] : 0;
    }
    __device__ u32x4 numbers(int slot, int m, int i, bool counts = true) const {
        if constexpr (fp8_a) return numbers_of_a<dealt>(counts ? eight_bytes(a[slot][m][i / 2], i % 2) : u32x2(0));
        else return numbers_of_a<dealt>(counts ? a[slot][m][i] : u32x4(0));
    }
    static __device__ u32x2 eight_bytes(const u32x4& v, int half) { return half ? u32x2{v.z, v.w} : u32x2{v.x, v.y}; }

    __device__ void multiply(int slot, int step) {
        const int own = step * kStepBlocks + own_block(), block = own < blocks ? own : blocks - 1;
        uint32_t scale[S::sub_n];
        bool fold = true;
#pragma unroll
        for (int c = 0; c < S::sub_n; ++c) {
            scale[c] = exponents[place_of_exponent(first_exponent[c] + block)];
            fold &= folds<type, fp8_b>(scale[c]);
        }
        if (__builtin_expect(any_lane(!fold), 0)) return add_scaled(slot, scale);
        using D = Decoder<type, fp8_b>;
        D decoders[S::sub_n];
#pragma unroll
        for (int c = 0; c < S::sub_n; ++c) decoders[c] = D(scale[c]);
#pragma unroll
        for (int i = 0; i < kEights; ++i) {
            u32x4 of_b[S::sub_n];
#pragma unroll
            for (int c = 0; c < S::sub_n; ++c) of_b[c] = decoders[c](codes_of_b(slot, c, i));
#pragma unroll
            for (int m = 0; m < S::sub_m; ++m) {
                const u32x4 of_a = numbers(slot, m, i);
#pragma unroll
                for (int c = 0; c < S::sub_n; ++c) sums[m][c] = multiply_chunks<16, type>(of_b[c], of_a, sums[m][c]);
            }
        }
    }

    // A block at a time: the lanes of the other blocks give zeros.
    __device__ void add_scaled(int slot, const uint32_t (&scale)[S::sub_n]) {
        keep_branch();
        const Decoder<type, fp8_b> unscaled(127);
#pragma unroll 1
        for (int block = 0; block < kStepBlocks; ++block) {
            const bool mine = own_block() == block;
#pragma unroll
            for (int c = 0; c < S::sub_n; ++c) {
                f32x4 by;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int from = 16 * block + own_block() * 4 + e;  // a lane that has the sum's column
                    by[e] = e8m0_value(uint32_t(__builtin_amdgcn_ds_bpermute(from * 4, int(scale[c]))));
                }
#pragma unroll
                for (int m = 0; m < S::sub_m; ++m) {
                    f32x4 products(0);
#pragma unroll
                    for (int i = 0; i < kEights; ++i)
                        products = multiply_chunks<16, type>(unscaled(codes_of_b(slot, c, i, mine)),
                                                             numbers(slot, m, i, mine), products);
                    sums[m][c] = __builtin_elementwise_fma(products, by, sums[m][c]);
                }
            }
        }
    }
};

template <int index, DType type, bool fp8_a, bool fp8_b>
__global__ __launch_bounds__(kWave, (StreamForm<index, fp8_b>::waves_per_simd)) void mx_gemm_stream(StreamLaunch) {
    using S = StreamForm<index, fp8_b>;
    __shared__ alignas(16) uint8_t exponents[place_of_exponent(S::columns * S::most_blocks)];
    const StreamLaunch& launch = arguments<StreamLaunch>();
    const Args& args = launch.args;
    const int number = int(divide(blockIdx.x, launch.columns));
    const int column = int(blockIdx.x - number * launch.columns.divisor) * S::columns, columns = int(args.n) - column;
    const RowTile tile = args.offsets ? RowTiles<S::rows>(args).tile(number) : RowTile{0, 0, int(args.m), number, 0};
    if (tile.group < 0) return;
    const int row = tile.first + tile.tile * S::rows, blocks = int(args.k / kMxBlock);

    ScalesInLds<S::columns * S::most_blocks> scales;
    scales.request(static_cast<const uint8_t*>(args.scale_b.data) + tile.group * args.scale_b.group_stride +
                       int64_t(column) * blocks,
                   (columns < S::columns ? columns : S::columns) * blocks);
    StreamTile<S, type, fp8_a, fp8_b> sums;
    sums.start(launch, tile, row, column, exponents);
    sums.request_first();
    scales.store(exponents);
    sums.multiply_all();
    sums.store(launch, tile, row, column);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm::hip
