// What a wave of either kernel multiplies in a step of 128 k: 32 columns of B, straight from memory, by tiles of 16 rows.
//
// Lane 16 g + j has row j of A and of B, of each 128 k block g: a load of 16 bytes is its block's 32 codes of e2m1. So all
// that a lane multiplies in a step has one scale. Two ways:
//
//     16-bit   B's numbers times their scale, as bfloat16 or float16 (decode.h), by A's; where A has exponents those, too, times
//              theirs. Blocks whose scale does not fold are multiplied one by one and scaled in float32, as the contract
//              has it (add_scaled): a rare branch.
//     scaled   gfx950's v_mfma_scale_f32_16x16x128_f8f6f4, for A of FP8 or e2m1: codes and exponents as they are. Of FP8 a
//              lane has 16 k from 16 g, and 16 from 64 + 16 g; exponents stay those of block g.
//
// A lane of the products has four columns of each subtile. Rows of B are dealt to them so that those are eight neighbours:
// subtile t, lane j has column 8 (j / 4) + 4 t + j % 4 of the wave's. Where gates and ups are halves of B, the first subtile
// has gates, the second their ups.
//
// A row's sums are added in the same order by both kernels, however many rows are beside it.
#pragma once

#include "../../common/gemm/epilogue.h"
#include "../../common/hip/buffer.h"
#include "../../grouped_gemm/hip/row_tiles.h"
#include "config.h"
#include "decode.h"
#include "exponents.h"

namespace rocm_fp8::mx_gemm::hip {
namespace {

using grouped_gemm::hip::RowTile;

constexpr int kSubN = kWaveColumns / 16;  // subtiles of columns

struct Launch {
    Args args;
    Divider columns;  // tiles of columns
};

__device__ inline int own_row() { return int(threadIdx.x) % 16; }
__device__ inline int own_block() { return int(threadIdx.x) % kWave / 16; }

// e4m3fnuz: the chip's own FP8. blocks_a: A has exponents.
template <DType a, bool blocks_a_, DType b, bool gated_>
struct Formats {
    static constexpr bool gated = gated_;
    static __device__ bool of_halves(const Args& args) { return gated && !args.gate.interleaved; }
    static constexpr bool half_a = a == DType::bf16 || a == DType::f16, fp8_a = is_fp8(a), fp8_b = is_fp8(b),
                          blocks_a = blocks_a_, scaled = kScaledProducts && !half_a,
                          folds_a = blocks_a && !scaled;  // A's numbers are multiplied by their scales
    static constexpr DType type = a == DType::f16 ? DType::f16 : DType::bf16;  // of 16-bit products
    static constexpr bool dealt = kDealt && !fp8_b && !scaled;
    static constexpr int bits_a = half_a ? 16 : fp8_a ? 8 : 4, bits_b = fp8_b ? 8 : 4;
    static constexpr int step_bytes_a = kStep * bits_a / 8, step_bytes_b = kStep * bits_b / 8;
};

// Of a wave's 32 columns of B, in the order in which their exponents lie in LDS: the lane's of subtile c.
template <class F>
__device__ inline int own_column(const Args& a, int c) {
    return F::of_halves(a) ? 16 * c + own_row() : own_row() / 4 * 8 + 4 * c + own_row() % 4;
}
// The first column of B of a wave whose columns begin at `first`; how far beyond it the i-th one lies; how many of the 32, or
// of halves of each 16, B has.
template <class F>
__device__ inline int first_of_wave(const Args& a, int first) {
    return F::of_halves(a) ? first / 2 : first;
}
template <class F>
__device__ inline int beyond_first(const Args& a, int i) {
    return F::of_halves(a) ? i % 16 + i / 16 * int(a.n / 2) : i;
}
template <class F>
__device__ inline int columns_left(const Args& a, int first) {
    return F::of_halves(a) ? int(a.n / 2) - first / 2 : int(a.n) - first;
}
template <class F>
__device__ inline bool is_left(const Args& a, int i, int left) {
    return (F::of_halves(a) ? i % 16 : i) < left;
}

// A lane's pieces of 16 bytes of a step.
template <bool scaled, int step_bytes>
struct Pieces {
    static constexpr int count = step_bytes / 4 / kChunk;
    static constexpr bool of_halves = scaled && count == 2;
    static __device__ int byte(int i) { return (of_halves ? 4 * i + own_block() : own_block() * count + i) * kChunk; }
    // Which block of the step it is of.
    static __device__ int block(int i) { return of_halves ? 2 * i + own_block() / 2 : own_block(); }
};
template <class F>
using PiecesOfA = Pieces<F::scaled, F::step_bytes_a>;
template <class F>
using PiecesOfB = Pieces<F::scaled, F::step_bytes_b>;

// Rows of A, by offsets of 32 bits: of all where rows are gathered, else from `first` on.
struct RowsOfA {
    const Launch& launch;
    int first, end;  // rows of the result

    __device__ int from() const { return launch.args.rows ? 0 : first; }
    // Which one, from `from` on, is that of a row of the result. Beyond the last: the last one's.
    __device__ uint32_t source(int row) const {
        return uint32_t(gemm::source_of(launch.args, row < end ? row : end - 1) - from());
    }
};

// A workgroup's tile.
struct Place {
    RowTile tile;
    int row, column;  // its first ones
};
template <int rows, int columns>
__device__ inline Place find_place(const Launch& launch) {
    const Args& args = launch.args;
    const int number = int(divide(blockIdx.x, launch.columns));
    const RowTile tile =
        args.offsets ? grouped_gemm::hip::row_tile<rows>(args, number) : RowTile{0, 0, int(args.m), number, 0};
    return {tile, tile.first + tile.tile * rows, int(blockIdx.x - number * launch.columns.divisor) * columns};
}

// Eight codes of a row with exponents, times their scale, which folds. codes: eight bytes of FP8, a word of e2m1.
template <class F>
__device__ inline u32x4 scaled_codes(auto codes, uint32_t exponent) {
    if constexpr (F::fp8_a) return numbers_of_a<F::dealt>(codes, bits_float(exponent << 23));
    else return Decoder<F::type, false>(exponent)(codes);
}

// Where A has none.
struct NoExponents {
    static constexpr int kLdsBytes = 1;
    __device__ void request(int) {}
    __device__ void put(int) const {}
    __device__ uint32_t of(int, int) const { return kUnscaled; }
};
template <class F, int rows, int threads>
using ExponentsOfA = std::conditional_t<F::blocks_a, Exponents<rows, threads>, NoExponents>;

// Rows beyond the tile's have the last one's.
template <class OfA>
__device__ inline void start_exponents_of_a(OfA& of_a, const RowsOfA& rows, uint8_t* lds) {
    if constexpr (!std::is_same_v<OfA, NoExponents>) {
        const Args& args = rows.launch.args;
        of_a.start(args.scale_a.data, args.scale_a, args.a_rows, int(args.k / kMxBlock), lds,
                   [&](int row) { return rows.from() + rows.source(rows.first + row); });
    }
}

// The lane's block in a step. Beyond K: the last one, which is multiplied by zeros; its scale is NaN only where the row is.
__device__ inline int block_of(int step, int blocks) {
    const int own = step * kStepBlocks + own_block();
    return own < blocks ? own : blocks - 1;
}

// B's codes, `depth` steps of them in registers.
template <class F, int depth>
class Weights {
    using P = PiecesOfB<F>;
    u32x4 codes[depth][kSubN][P::count];
    Buffer buffer{nullptr, 0};
    uint32_t at[kSubN];
    int blocks;

  public:
    // Columns from `column` on, of which B may have less, or none.
    __device__ void start(const Args& args, int group, int column) {
        const int left = columns_left<F>(args, column), first = first_of_wave<F>(args, column);
        blocks = int(args.k / kMxBlock);
        buffer = Buffer(args.b.data + group * args.b.group_stride + int64_t(first) * args.b.row_stride, kNowhere);
#pragma unroll
        for (int c = 0; c < kSubN; ++c) {
            const int own = own_column<F>(args, c);
            at[c] = is_left<F>(args, own, left) ? beyond_first<F>(args, own) * uint32_t(args.b.row_stride) : kNowhere;
        }
    }
    // Beyond K, and beyond the last column: zeros, which touch no memory.
    __device__ void request(int slot, int step) {
#pragma unroll
        for (int c = 0; c < kSubN; ++c) {
#pragma unroll
            for (int i = 0; i < P::count; ++i) {
                const bool inside = step * kStepBlocks + P::block(i) < blocks;
                codes[slot][c][i] = buffer.load(at[c] + (inside ? step * F::step_bytes_b + P::byte(i) : kNowhere));
            }
        }
    }
    __device__ const auto& of(int slot) const { return codes[slot]; }
};

__device__ inline u32x2 eight_bytes(const u32x4& v, int half) { return __builtin_bit_cast(u32x2, half_of(v, half)); }

// A wave's sums, of kTiles times 16 rows by 32 columns.
template <class F, int kTiles>
class Sums {
    f32x4 sums[kTiles][kSubN];
    using Codes = u32x4[kSubN][PiecesOfB<F>::count];

  public:
    __device__ void clear() {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int c = 0; c < kSubN; ++c) sums[m][c] = f32x4(0);
        }
    }

    // A step. scale: of the lane's block of each subtile of B. rows: has A's operand(m) and scale(m), or numbers(m, i,
    // counts), the i-th eight of the lane's block, in the order of B's, and scaled_numbers(m, i), of numbers that fold.
    template <class Rows>
    __device__ void multiply(const Codes& codes, const uint32_t (&scale)[kSubN], const Rows& rows) {
        if constexpr (F::scaled) {
            Operand b[kSubN];
#pragma unroll
            for (int c = 0; c < kSubN; ++c) b[c] = operand_of(codes[c]);
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
                const Operand a = rows.operand(m);
                const uint32_t scale_a = rows.scale(m);
#pragma unroll
                for (int c = 0; c < kSubN; ++c)
                    sums[m][c] = multiply_scaled<F::fp8_b, F::fp8_a>(b[c], a, sums[m][c], scale[c], scale_a);
            }
        } else {
            bool fold = true;
#pragma unroll
            for (int c = 0; c < kSubN; ++c) fold &= folds<F::type, F::fp8_b>(scale[c]);
            if constexpr (F::folds_a) {
#pragma unroll
                for (int m = 0; m < kTiles; ++m) fold &= folds<F::type, F::fp8_a>(rows.scale(m));
            }
            if (__builtin_expect(any_lane(!fold), 0)) add_scaled(codes, scale, rows);
            else add(codes, scale, rows);
        }
    }

    // by_row: A has scales of rows.
    template <bool by_row>
    __device__ void store(const Launch& launch, const RowTile& tile, int row, int column) const {
        const Args& args = launch.args;
        const int first = column + own_block() * kEach, count = int(args.n) - first;
        if (count <= 0) return;
        // What was requested beyond K is back before other loads have its registers.
        asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
        const gemm::Bias& bias = args.bias;
        float biases[kEach];
        if (bias.data) read_biases(bias, tile.group * args.bias_group_stride, first, count, biases);
        const bool wide = (args.n | args.out.row_stride) % kEach == 0 && uintptr_t(args.out.data) % kChunk == 0;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            const int mine = row + 16 * m + own_row();
            if (mine >= tile.end) continue;
            f32x4 v[kSubN] = {sums[m][0], sums[m][1]};
            float by = 1;
            if constexpr (by_row) by = gemm::scale_at(args.scale_a, gemm::source_of(launch.args, mine));
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                if constexpr (by_row) v[i / 4][i % 4] *= by;
                if (bias.data) v[i / 4][i % 4] += biases[i];  // without one, -0 stays -0
            }
            put(args.out, mine * args.out.row_stride + first, v, count, wide);
        }
    }

    // Hidden values: a lane has one of 16 of four rows at once. Of its own it would have four where its row is live, and few
    // are.
    template <bool by_row>
    __device__ void store_gated(const Launch& launch, const RowTile& tile, int row, int column) const {
        const Args& args = launch.args;
        const int lane = int(threadIdx.x) % kWave, number = lane % 16, hidden = int(args.n / 2),
                  n = column / 2 + number, own = number % 4;
        const bool halves = F::of_halves(args);
        if (column / 2 >= hidden) return;
        // What was requested beyond K is back before other loads have its registers.
        asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
        gemm::Bias bias = args.bias;
        float biases[kSubN] = {};
        if (bias.data) {
            bias.data = offset(bias.data, tile.group * args.bias_group_stride * (bias.dtype == DType::f32 ? 4 : 2));
            const int at = n < hidden ? n : hidden - 1;
#pragma unroll
            for (int c = 0; c < kSubN; ++c) biases[c] = gemm::bias_at(bias, halves ? at + c * hidden : 2 * at + c);
        }
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            const int live = tile.end - row - 16 * m;
            for (int first = 0; first < 16 && first < live; first += 4) {
                const int of_tile = first + lane / 16, mine = row + 16 * m + of_tile, from = number / 4 * 16 + of_tile;
                float v[kSubN] = {};  // the gate, the up
#pragma unroll
                for (int i = 0; i < kEach; ++i) {
                    const float given = sums[m][i / 4][i % 4];  // a bit cast of a vector's element takes the first one
                    const float found = __builtin_bit_cast(
                        float, __builtin_amdgcn_ds_bpermute(from * 4, __builtin_bit_cast(int, given)));
#pragma unroll
                    for (int c = 0; c < kSubN; ++c) v[c] = i == (halves ? own + 4 * c : 2 * own + c) ? found : v[c];
                }
                if (of_tile >= live || n >= hidden) continue;
                float by = 1;
                if constexpr (by_row) by = gemm::scale_at(args.scale_a, gemm::source_of(launch.args, mine));
#pragma unroll
                for (int c = 0; c < kSubN; ++c) {
                    if constexpr (by_row) v[c] *= by;
                    if (bias.data) v[c] += biases[c];  // without one, -0 stays -0
                }
                gemm::put(args.out, mine * args.out.row_stride + n, moe_gate::gated(args.gate, v[0], v[1]));
            }
        }
    }

  private:
    static constexpr int kEach = 4 * kSubN;  // neighbours in a row of the result

    // All at once: the type's branch is around them. Beyond the last column: the last one's.
    static __device__ void read_biases(const gemm::Bias& bias, int64_t group, int first, int count,
                                       float (&to)[kEach]) {
        const auto read = [&]<class T>(T, const auto& value) {
            const auto* from = global<T>(bias.data) + group;
            T found[kEach];
#pragma unroll
            for (int i = 0; i < kEach; ++i) found[i] = from[(first + (i < count ? i : count - 1)) * bias.stride];
#pragma unroll
            for (int i = 0; i < kEach; ++i) to[i] = value(found[i]);
        };
        if (bias.dtype == DType::f32) read(float(), [](float v) { return v; });
        else read(uint16_t(), [&](uint16_t v) { return gemm::widened(bias.dtype, v); });
    }

    // wide: all of them exist, and lie at multiples of 16 bytes.
    static __device__ void put(const gemm::Output& out, int64_t at, const f32x4 (&v)[kSubN], int count, bool wide) {
        if (!wide) {
#pragma unroll
            for (int i = 0; i < kEach; ++i)
                if (i < count) gemm::put(out, at + i, v[i / 4][i % 4]);
        } else if (out.dtype == DType::f32) {
#pragma unroll
            for (int c = 0; c < kSubN; ++c)
                store_at(offset(out.data, 4 * at + 16 * c), __builtin_bit_cast(u32x4, v[c]));
        } else {
            const auto pair = [&](float a, float b) { return gemm::rounded_pair(out.dtype, f32x2{a, b}); };
            store_at(offset(out.data, 2 * at),
                     u32x4{pair(v[0].x, v[0].y), pair(v[0].z, v[0].w), pair(v[1].x, v[1].y), pair(v[1].z, v[1].w)});
        }
    }

    // The i-th eight k of the lane's block; zeros where they do not count.
    static __device__ auto eight_codes(const Codes& codes, int c, int i, bool counts = true) {
        if constexpr (F::fp8_b) return counts ? eight_bytes(codes[c][i / 2], i % 2) : u32x2(0);
        else return counts ? codes[c][0][i] : 0;
    }

    template <class Rows>
    __device__ void add(const Codes& codes, const uint32_t (&scale)[kSubN], const Rows& rows) {
        using D = Decoder<F::type, F::fp8_b>;
        D decoders[kSubN];
#pragma unroll
        for (int c = 0; c < kSubN; ++c) decoders[c] = D(scale[c]);
        u32x4 b[2][kSubN], a[2][kTiles];
        const auto read = [&](int i) {
#pragma unroll
            for (int c = 0; c < kSubN; ++c) b[i % 2][c] = decoders[c](eight_codes(codes, c, i));
#pragma unroll
            for (int m = 0; m < kTiles; ++m) a[i % 2][m] = rows.scaled_numbers(m, i);
        };
        read(0);
#pragma unroll
        for (int i = 0; i < kMxBlock / 8; ++i) {
            if (i + 1 < kMxBlock / 8) read(i + 1);
            // Instructions on the same sums are apart.
#pragma unroll
            for (int n = 0; n < kInstructionsOnChunks; ++n) {
#pragma unroll
                for (int m = 0; m < kTiles; ++m) {
#pragma unroll
                    for (int c = 0; c < kSubN; ++c)
                        sums[m][c] = multiply_part<16, F::type>(b[i % 2][c], a[i % 2][m], sums[m][c], n);
                }
            }
            // One eight is read ahead, no more: there are no registers for all.
            if constexpr (kTiles > 1) __builtin_amdgcn_sched_barrier(0);
        }
    }

    // A block at a time: the lanes of the other blocks give zeros.
    template <class Rows>
    __device__ void add_scaled(const Codes& codes, const uint32_t (&scale)[kSubN], const Rows& rows) {
        keep_branch();
        const Decoder<F::type, F::fp8_b> unscaled(127);
#pragma unroll 1
        for (int block = 0; block < kStepBlocks; ++block) {
            const bool mine = own_block() == block;
#pragma unroll
            for (int c = 0; c < kSubN; ++c) {
                f32x4 by;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int from = 16 * block + own_block() * 4 + e;  // a lane that has the sum's column
                    by[e] = e8m0_value(uint32_t(__builtin_amdgcn_ds_bpermute(from * 4, int(scale[c]))));
                }
#pragma unroll
                for (int m = 0; m < kTiles; ++m) {
                    __builtin_amdgcn_sched_barrier(0);  // tile after tile: the numbers of all would be spilled
                    asm volatile("" ::: "memory");
                    f32x4 products(0);
#pragma unroll
                    for (int i = 0; i < kMxBlock / 8; ++i)
                        products = multiply_chunks<16, F::type>(unscaled(eight_codes(codes, c, i, mine)),
                                                                rows.numbers(m, i, mine), products);
                    f32x4 scales = by;
                    if constexpr (F::folds_a) {  // of the lane's row
                        const int from = 16 * block + own_row();
                        scales *= e8m0_value(uint32_t(__builtin_amdgcn_ds_bpermute(from * 4, int(rows.scale(m)))));
                    }
                    sums[m][c] = __builtin_elementwise_fma(products, scales, sums[m][c]);
                }
            }
        }
    }
};

}  // namespace
}  // namespace rocm_fp8::mx_gemm::hip
