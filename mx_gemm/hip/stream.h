// Few rows an expert: weights stream from HBM past LDS into registers, and through decode.h into matrix instructions.
//
//     each wave   scales of B's blocks: HBM --> LDS, once
//                 B: HBM, A: L2 --> registers, S::depth steps of 128 k in flight --> 16-bit numbers, B's with their scale
//                 --> matrix instructions, which add over all of the wave's k
//     workgroup   sums --> LDS --> added in the order of the waves --> scales of rows, bias, rounding
//
// A workgroup makes a tile of one expert's rows by S::columns; its waves share K. It finds its expert in the offsets. The
// launch has as many workgroups as there may be tiles; those beyond the last end.
//
// Lane 16 g + j has row j of A and of B, of each 128 k block g: a load of 16 bytes is its block's 32 codes of e2m1. So all
// that a lane multiplies in a step has one scale. Blocks whose scale does not fold (decode.h) are multiplied one by one
// and scaled in float32, as the contract has it (add_scaled): a rare branch of the whole wave.
//
// Bound: bytes of weights. Steps and figures: docs/journal/mx_gemm-hip.md.
#pragma once

#include "../../common/gemm/hip/stream_end.h"
#include "../../common/hip/lds.h"
#include "../../grouped_gemm/hip/row_tiles.h"
#include "config.h"
#include "decode.h"

namespace rocm_fp8::mx_gemm::hip {
namespace {

using gemm::hip::kChunk;
using gemm::hip::store_sums;
using grouped_gemm::hip::RowTile;
using grouped_gemm::hip::RowTiles;

struct StreamLaunch {
    Args args;
    Divider columns, by_slots;  // tiles of columns
    int steps, longer;          // of a wave's share of K; the first `longer` shares have one more
};

// A step of e4m3 is twice the bytes.
template <int index, bool fp8_b>
struct StreamForm : gemm::hip::Stream<kStreamShapes[index], kStreamShapes[index].depth / (fp8_b ? 2 : 1)> {
    static constexpr int policy = kPlainAccess;
};

// The row of A of a row of the result. What is no row of A becomes one.
__device__ inline int source_of(const StreamLaunch& launch, int row) {
    const Args& a = launch.args;
    const int slot = a.rows ? global<int32_t>(a.rows)[row] : row;
    const int found = slot < 0 ? 0 : a.rows ? int(divide(uint32_t(slot), launch.by_slots)) : slot;
    const int last = int(a.a_rows - 1);
    return found < last ? found : last;
}

// The scale of A's rows, of FP8.
template <bool fp8>
struct RowFactors {
    static constexpr bool kRows = fp8, kColumns = false, kSplits = false, kEarly = false;
    const StreamLaunch& launch;
    int first;
    __device__ float row(int m) const { return gemm::scale_at(launch.args.scale_a, source_of(launch, first + m)); }
};

// Exponents of B's blocks, a tile's columns after one another: dense, as in memory.
template <class S>
class ScalesInLds {
    static constexpr int kPieces = int(S::columns * kMostBlocks / kChunk) / S::threads;
    static_assert(kPieces >= 1);
    u32x4 pieces[kPieces];
    uint32_t last;
    int bytes;

  public:
    static constexpr int kBytes = S::columns * kMostBlocks;

    // bytes: up to kBytes, from any address.
    __device__ void request(const uint8_t* from, int count) {
        bytes = count;
        const int thread = int(threadIdx.x), whole = bytes / kChunk, tail = whole * kChunk + thread;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            if (const int piece = i * S::threads + thread; piece < whole)
                pieces[i] = load_unaligned(from + piece * kChunk);
        }
        last = tail < bytes ? global<uint8_t>(from)[tail] : 0;
    }
    __device__ void store(uint8_t* to) const {
        const int thread = int(threadIdx.x), whole = bytes / kChunk, tail = whole * kChunk + thread;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            if (const int piece = i * S::threads + thread; piece < whole)
                *reinterpret_cast<u32x4*>(to + piece * kChunk) = pieces[i];
        }
        if (tail < bytes) to[tail] = uint8_t(last);
    }
};

// What a wave does of its share of K.
template <class S, DType type, bool fp8_a, bool fp8_b>
class StreamSlice {
    static constexpr bool dealt = kDealt && !fp8_b;
    static constexpr int kOfA = fp8_a ? 2 : 4, kOfB = fp8_b ? 2 : 1, kEights = kMxBlock / 8,
                         kStepOfA = kStep * (fp8_a ? 1 : 2), kStepOfB = fp8_b ? kStep : kStep / 2;
    u32x4 a[S::depth][S::sub_m][kOfA], b[S::depth][S::sub_n][kOfB];
    f32x4 sums[S::sub_m][S::sub_n];
    Buffer of_a{nullptr, 0}, of_b{nullptr, 0};
    uint32_t at_a[S::sub_m], at_b[S::sub_n];
    const uint8_t* scales[S::sub_n];  // in LDS
    int blocks;                       // of K

    static __device__ int own_row() { return int(threadIdx.x) % 16; }
    static __device__ int own_block() { return int(threadIdx.x) % kWave / 16; }

  public:
    __device__ void start(const StreamLaunch& launch, const RowTile& tile, int row, int column, const uint8_t* in_lds) {
        const Args& args = launch.args;
        blocks = int(args.k / kMxBlock);
        const int columns = int(args.n) - column;
        of_b = Buffer(args.b.data + tile.group * args.b.group_stride + int64_t(column) * args.b.row_stride, kNowhere);
#pragma unroll
        for (int c = 0; c < S::sub_n; ++c) {
            const int mine = 16 * c + own_row();
            at_b[c] = mine < columns ? mine * uint32_t(args.b.row_stride) + own_block() * kOfB * kChunk : kNowhere;
            scales[c] = in_lds + (mine < columns ? mine : columns - 1) * blocks;
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

    // Asks for the steps [first, first + S::depth).
    __device__ void request_first(int first) {
#pragma unroll
        for (int slot = 0; slot < S::depth; ++slot) request(slot, first + slot);
    }
    __device__ void multiply_all(int first, int count) {
        for (int step = first; step < first + count; step += S::depth) {
#pragma unroll
            for (int slot = 0; slot < S::depth; ++slot) {
                if (step + slot < first + count) multiply(slot, step + slot);
                request(slot, step + slot + S::depth);
            }
        }
    }
    __device__ void store(float* region) const { store_sums<S>(region, sums); }

  private:
    // Beyond K, and beyond the tile's rows and columns: zeros, which touch no memory.
    __device__ void request(int slot, int step) {
        const bool inside = step * kStepBlocks + own_block() < blocks;
        const uint32_t in_b = inside ? step * kStepOfB : kNowhere, in_a = inside ? step * kStepOfA : kNowhere;
#pragma unroll
        for (int c = 0; c < S::sub_n; ++c) {
#pragma unroll
            for (int i = 0; i < kOfB; ++i) b[slot][c][i] = of_b.template load<S::policy>(at_b[c] + in_b + i * kChunk);
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
            scale[c] = scales[c][block];
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
        const int lane = int(threadIdx.x) % kWave;
#pragma unroll 1
        for (int block = 0; block < kStepBlocks; ++block) {
            const bool mine = own_block() == block;
#pragma unroll
            for (int c = 0; c < S::sub_n; ++c) {
                f32x4 by;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int from = 16 * block + lane / 16 * 4 + e;  // a lane that has the sum's column
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
__global__ __launch_bounds__((StreamForm<index, fp8_b>::threads), (StreamForm<index, fp8_b>::waves_per_simd)) void
mx_gemm_stream(StreamLaunch) {
    using S = StreamForm<index, fp8_b>;
    using Scales = ScalesInLds<S>;
    // First the exponents, then the sums.
    __shared__ alignas(16) char memory[std::max(Scales::kBytes, int(S::waves * S::sums * sizeof(float)))];
    const StreamLaunch& launch = arguments<StreamLaunch>();
    const Args& args = launch.args;
    const int number = int(divide(blockIdx.x, launch.columns));
    const int column = int(blockIdx.x - number * launch.columns.divisor) * S::columns;
    const RowTile tile = args.offsets ? RowTiles<S::rows>(args).tile(number) : RowTile{0, 0, int(args.m), number, 0};
    if (tile.group < 0) return;
    const int row = tile.first + tile.tile * S::rows, columns = int(args.n) - column;
    const int wave = uniform(threadIdx.x / kWave), steps = launch.steps, longer = launch.longer;
    const int first = wave * steps + (wave < longer ? wave : longer), count = steps + (wave < longer);

    Scales scales;
    auto* const in_lds = reinterpret_cast<uint8_t*>(memory);
    const int blocks = int(args.k / kMxBlock);
    scales.request(static_cast<const uint8_t*>(args.scale_b.data) + tile.group * args.scale_b.group_stride +
                       int64_t(column) * blocks,
                   (columns < S::columns ? columns : S::columns) * blocks);
    StreamSlice<S, type, fp8_a, fp8_b> slice;
    slice.start(launch, tile, row, column, in_lds);
    slice.request_first(first);
    scales.store(in_lds);

    const RowFactors<fp8_a> factors{launch, row};
    gemm::Output out = args.out;
    out.data = offset(out.data, row * out.row_stride * (out.dtype == DType::f32 ? 4 : 2));
    gemm::Bias bias = args.bias;
    if (bias.data)
        bias.data = offset(bias.data, tile.group * args.bias_group_stride * (bias.dtype == DType::f32 ? 4 : 2));
    const int left = tile.end - row;
    gemm::hip::StreamEnd<S, RowFactors<fp8_a>> ending(factors, bias, out, SplitK{1, nullptr, nullptr},
                                                      left < S::rows ? left : S::rows, int(args.n), column, 0, 0);
    // Barrier: the exponents are read below by other waves.
    lds_barrier();
    slice.multiply_all(first, count);
    // Barrier: all waves have read the exponents, where sums are stored now.
    lds_barrier();
    auto* const regions = reinterpret_cast<float*>(memory);
    slice.store(regions + wave * S::sums);
    // Barrier: the sums are added below by other waves.
    lds_barrier();
    ending.template finish<S::sums>(regions, S::waves);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm::hip
