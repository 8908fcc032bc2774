// Many rows: a workgroup's waves share rows of A, each has columns of its own.
//
//     A: L2 --> registers, a step of 128 k ahead --> 16-bit numbers, or codes as they are --> LDS, a step
//     exponents: L2 --> registers --> LDS, 16 steps of them
//     a wave   B: L2 --> registers, two steps in flight --> matrix instructions (wave.h)
//
// A workgroup makes a tile of one expert's rows by 128 columns, 32 a wave. B's codes, decoded once, meet all rows of the tile.
// LDS has one step: while a workgroup meets at a barrier, others of the compute unit multiply.
//
// Bound: matrix instructions. Steps and figures: docs/journal/mx_gemm-hip.md.
#pragma once

#include "../../common/hip/lds.h"
#include "wave.h"

namespace rocm_fp8::mx_gemm::hip {
namespace {

constexpr int kTileDepth = 2;

// The tile's rows of A, of the step that LDS has and, in registers, of the next one.
template <class F, int tile_rows>
class RowsInLds {
    // A piece is 16 bytes in memory. FP8 that is widened takes twice as many here; what has exponents stays codes.
    static constexpr bool kCodes = F::scaled || F::folds_a;
    static constexpr int kRowBytes = kCodes ? F::step_bytes_a : kStep * 2, kChunks = kRowBytes / kChunk,
                         kPerRow = F::step_bytes_a / kChunk, kAll = tile_rows * kPerRow,
                         kPieces = (kAll + kTileThreads - 1) / kTileThreads, kWider = kRowBytes / F::step_bytes_a,
                         kPerBlock = kPerRow / kStepBlocks;

    u32x4 pieces[kPieces];
    uint32_t at[kPieces];
    Buffer buffer{nullptr, 0};
    char* lds;
    int blocks;

    static __device__ int thread() { return int(threadIdx.x); }
    static __device__ int row_of_piece(int i) { return (i * kTileThreads + thread()) / kPerRow; }
    static __device__ bool is_piece(int i) {
        return (i + 1) * kTileThreads <= kAll || i * kTileThreads + thread() < kAll;
    }
    // Chunks of a row are permuted: lanes that read together have different banks, on either chip.
    __device__ char* place(int row, int chunk) const {
        const int turn = kChunks == 16 ? row % 4 + row / 8 % 2 * 8 : kChunks == 8 ? row / 2 % 8 : -(row / 4) & 3;
        return lds + row * kRowBytes + (chunk ^ turn) * kChunk;
    }

  public:
    static constexpr int kLdsBytes = tile_rows * kRowBytes;

    __device__ void start(const RowsOfA& rows, char* in_lds) {
        const gemm::Operand& a = rows.launch.args.a;
        lds = in_lds, blocks = int(rows.launch.args.k / kMxBlock);
        buffer = Buffer(offset(a.data, rows.from() * a.row_stride), kNowhere);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const int row = rows.first + row_of_piece(i);
            at[i] = row < rows.end && is_piece(i)
                        ? rows.source(row) * uint32_t(a.row_stride) + uint32_t(thread() % kPerRow * kChunk)
                        : kNowhere;
        }
    }
    // Beyond K, and rows beyond the tile's: zeros, which touch no memory.
    __device__ void request(int step) {
        const bool inside = step * kStepBlocks + thread() % kPerRow / kPerBlock < blocks;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) pieces[i] = buffer.load(at[i] + (inside ? step * F::step_bytes_a : kNowhere));
        // Before the weights that are requested next: waits count loads.
        __builtin_amdgcn_sched_barrier(0);
    }
    __device__ void put() const {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const u32x4& v = pieces[i];
            if (!is_piece(i)) {
                asm volatile("" ::"v"(v));  // waits for the load: the next one has its registers
                continue;
            }
            const auto store = [&](int half, u32x4 chunk) {
                *reinterpret_cast<u32x4*>(place(row_of_piece(i), thread() % kPerRow * kWider + half)) = chunk;
            };
            if constexpr (kCodes) {
                store(0, v);
            } else if constexpr (F::fp8_a) {
                for (int half = 0; half < 2; ++half) store(half, numbers_of_a<F::dealt>(eight_bytes(v, half)));
            } else {
                store(0, numbers_of_a<F::dealt>(v));
            }
        }
    }

    // What LDS has.
    __device__ u32x4 chunk(int row, int number) const { return *reinterpret_cast<const u32x4*>(place(row, number)); }
    template <class OfA>
    struct Step {
        const RowsInLds& rows;
        const OfA& exponents;
        int block;
        static __device__ int row(int m) { return 16 * m + own_row(); }
        __device__ Operand operand(int m) const {
            using P = PiecesOfA<F>;
            u32x4 found[P::count];
#pragma unroll
            for (int i = 0; i < P::count; ++i) found[i] = rows.chunk(row(m), P::byte(i) / kChunk);
            return operand_of(found);
        }
        __device__ uint32_t scale(int m) const { return exponents.of(row(m), block); }
        __device__ auto codes(int m, int i) const {
            if constexpr (F::fp8_a)
                return eight_bytes(rows.chunk(row(m), own_block() * (kMxBlock / kChunk) + i / 2), i % 2);
            else return rows.chunk(row(m), own_block())[i];
        }
        __device__ u32x4 numbers(int m, int i, bool counts = true) const {
            if constexpr (F::folds_a)
                return scaled_codes<F>(counts ? codes(m, i) : decltype(codes(m, i))(0), kUnscaled);
            const u32x4 v = rows.chunk(row(m), own_block() * (kMxBlock / 8) + i);
            return counts ? v : u32x4(0);
        }
        __device__ u32x4 scaled_numbers(int m, int i) const {
            if constexpr (F::folds_a) return scaled_codes<F>(codes(m, i), scale(m));
            else return numbers(m, i);
        }
    };
};

// FP8 by FP8, both scaled in registers: there are not enough for three workgroups.
template <int index, class F>
constexpr int kPerUnit = F::folds_a && F::fp8_b ? 2 : kTileForms[index].per_unit;

template <int index, DType a, bool blocks_a, DType b, bool gated>
__global__ __launch_bounds__(kTileThreads, (kPerUnit<index, Formats<a, blocks_a, b, gated>>)) void mx_gemm_tiles(
    Launch) {
    using F = Formats<a, blocks_a, b, gated>;
    constexpr int kRows = kTileForms[index].rows;
    using Rows = RowsInLds<F, kRows>;
    using OfA = ExponentsOfA<F, kRows, kTileThreads>;
    using OfB = Exponents<kTileColumns, kTileThreads>;
    __shared__ alignas(16) char lds[Rows::kLdsBytes];
    __shared__ alignas(16) uint8_t lds_a[OfA::kLdsBytes], lds_b[OfB::kLdsBytes];
    const Launch& launch = arguments<Launch>();
    const Place place = find_place<kRows, kTileColumns>(launch);
    if (place.tile.group < 0) return;
    const RowsOfA of_tile{launch, place.row, place.tile.end};
    const int within = uniform(int(threadIdx.x) / kWave) * kWaveColumns;

    OfA exponents_a;
    OfB exponents_b;
    start_exponents_of_a(exponents_a, of_tile, lds_a);
    const Args& args = launch.args;
    const gemm::Scales& scale_b = args.scale_b;
    const int blocks = int(args.k / kMxBlock), steps = (blocks + kStepBlocks - 1) / kStepBlocks;
    // Columns beyond the last have the last one's.
    exponents_b.start(offset(scale_b.data, place.tile.group * scale_b.group_stride), scale_b, args.n, blocks, lds_b,
                      [&](int column) {
                          const int of_wave = place.column + column / kWaveColumns * kWaveColumns,
                                    n = first_of_wave<F>(args, of_wave) + beyond_first<F>(args, column % kWaveColumns),
                                    last = int(args.n) - 1;
                          return uint32_t(n < last ? n : last);
                      });
    exponents_a.request(0);
    exponents_b.request(0);
    Weights<F, kTileDepth> weights;
    weights.start(args, place.tile.group, place.column + within);
    Rows rows;
    rows.start(of_tile, lds);
    const auto request_weights = [&](int slot, int step) {
        weights.request(slot, step);
        // Loads stay in this order, before the loop and in it: waits count them.
        __builtin_amdgcn_sched_barrier(0);
    };
    request_weights(0, 0);
    rows.request(0);
#pragma unroll
    for (int slot = 1; slot < kTileDepth; ++slot) request_weights(slot, slot);

    Sums<F, kRows / 16> sums;
    sums.clear();
    for (int window = 0; window * kWindowSteps < steps; ++window) {
        exponents_a.put(window);
        exponents_b.put(window);
        exponents_a.request(window + 1);
        exponents_b.request(window + 1);
        const int first = window * kWindowSteps, end = first + kWindowSteps < steps ? first + kWindowSteps : steps;
        for (int step = first; step < end; step += kTileDepth) {
#pragma unroll
            for (int slot = 0; slot < kTileDepth; ++slot) {
                if (step + slot >= end) break;
                rows.put();
                // Barrier: other waves read the step.
                lds_barrier();
                rows.request(step + slot + 1);
                const int block = block_of(step + slot, blocks);
                uint32_t scale[kSubN];
#pragma unroll
                for (int c = 0; c < kSubN; ++c) scale[c] = exponents_b.of(within + own_column<F>(args, c), block);
                sums.multiply(weights.of(slot), scale, typename Rows::template Step<OfA>{rows, exponents_a, block});
                request_weights(slot, step + slot + kTileDepth);
                // Barrier: the step has been read.
                lds_barrier();
            }
        }
    }
    constexpr bool by_row = F::fp8_a && !blocks_a;
    if constexpr (gated) sums.template store_gated<by_row>(launch, place.tile, place.row, place.column + within);
    else sums.template store<by_row>(launch, place.tile, place.row, place.column + within);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm::hip
