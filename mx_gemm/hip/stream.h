// Few rows: weights stream from HBM past LDS into registers.
//
//     a wave   exponents of B's blocks: HBM --> LDS, once
//              B: HBM, A: L2 --> registers, depth steps of 128 k in flight --> matrix instructions (wave.h), which add
//              over all of K --> scales of rows, bias, rounding
//
// A workgroup is one wave, which makes a tile of one expert's rows by 32 columns. Waves share nothing: no barrier, and one
// starts while others stream. It finds its expert in the offsets. The launch has as many workgroups as there may be tiles;
// those beyond the last end.
//
// Bound: bytes of weights. Steps and figures: docs/journal/mx_gemm-hip.md.
#pragma once

#include "wave.h"

namespace rocm_fp8::mx_gemm::hip {
namespace {

// Exponents of B's blocks, a tile's columns after one another, with 16 bytes behind each 128: columns of as many blocks would
// have the same banks. In memory they lie so in two halves.
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
    // count: up to most_bytes. first: of them, where a multiple of 16, from; others from `second`. Any addresses.
    __device__ void request(const uint8_t* from, int first, const uint8_t* second, int count) {
        bytes = count;
        const auto place = [&](int at) { return at < first ? from + at : second + (at - first); };
        each_piece([&](int i, int at) { pieces[i] = load_unaligned(place(at)); });
        last = tail() < bytes ? *global<uint8_t>(place(tail())) : 0;
    }
    __device__ void store(uint8_t* to) const {
        each_piece([&](int i, int at) { *reinterpret_cast<u32x4*>(to + place_of_exponent(at)) = pieces[i]; });
        if (tail() < bytes) to[place_of_exponent(tail())] = uint8_t(last);
        // The wave's other lanes read them.
        meet_lanes();
    }
};

// A step of e4m3 weights is twice the bytes, so half as many are in flight.
template <int index, class F>
constexpr int kDepth = kStreamShapes[index].depth / (F::fp8_b ? 2 : 1);

// A lane's rows of A, `depth` steps of them in registers. Rows beyond the tile's: zeros, which touch no memory.
template <class F, int depth>
class RowsInRegisters {
    using P = PiecesOfA<F>;
    u32x4 pieces[depth][P::count];
    Buffer buffer{nullptr, 0};
    uint32_t at;
    int blocks;

  public:
    __device__ void start(const RowsOfA& rows) {
        const gemm::Operand& a = rows.launch.args.a;
        const int row = rows.first + own_row();
        blocks = int(rows.launch.args.k / kMxBlock);
        buffer = Buffer(offset(a.data, rows.from() * a.row_stride), kNowhere);
        at = row < rows.end ? rows.source(row) * uint32_t(a.row_stride) : kNowhere;
    }
    __device__ void request(int slot, int step) {
#pragma unroll
        for (int i = 0; i < P::count; ++i) {
            const bool inside = step * kStepBlocks + P::block(i) < blocks;
            pieces[slot][i] = buffer.load(at + (inside ? step * F::step_bytes_a + P::byte(i) : kNowhere));
        }
    }

    struct Step {
        const RowsInRegisters& rows;
        int slot;
        uint32_t exponent;
        __device__ Operand operand(int) const { return operand_of(rows.pieces[slot]); }
        __device__ uint32_t scale(int) const { return exponent; }
        __device__ u32x4 numbers(int, int i, bool counts = true) const {
            const auto& v = rows.pieces[slot];
            if constexpr (F::folds_a) return scaled_codes<F>(counts ? codes(i) : decltype(codes(i))(0), kUnscaled);
            else if constexpr (F::fp8_a) return numbers_of_a<F::dealt>(counts ? codes(i) : u32x2(0));
            else return numbers_of_a<F::dealt>(counts ? v[i] : u32x4(0));
        }
        __device__ u32x4 scaled_numbers(int m, int i) const {
            if constexpr (F::folds_a) return scaled_codes<F>(codes(i), exponent);
            else return numbers(m, i);
        }
        __device__ auto codes(int i) const {
            const auto& v = rows.pieces[slot];
            if constexpr (F::fp8_a) return eight_bytes(v[i / 2], i % 2);
            else return v[0][i];
        }
    };
};

template <int index, DType a, bool blocks_a, DType b, bool gated>
__global__ __launch_bounds__(kWave, ((kStreamShapes[index].per_unit + 3) / 4)) void mx_gemm_stream(Launch) {
    using F = Formats<a, blocks_a, b, gated>;
    constexpr int kRows = kStreamShapes[index].rows, kMost = kWaveColumns * kMostBlocks[index],
                  depth = kDepth<index, F>;
    using OfA = ExponentsOfA<F, kRows, kWave>;
    static_assert(kRows == 16 && kStreamShapes[index].columns == kWaveColumns && kStreamShapes[index].waves == 1 &&
                  kWindowSteps % depth == 0);
    __shared__ alignas(16) uint8_t of_b[place_of_exponent(kMost)], of_a[OfA::kLdsBytes];
    const Launch& launch = arguments<Launch>();
    const Args& args = launch.args;
    const Place place = find_place<kRows, kWaveColumns>(launch);
    if (place.tile.group < 0) return;
    const RowsOfA of_tile{launch, place.row, place.tile.end};
    const int blocks = int(args.k / kMxBlock), steps = (blocks + kStepBlocks - 1) / kStepBlocks;
    const int left = columns_left<F>(args, place.column), half = kWaveColumns / 2 * blocks,
              columns = F::of_halves(args)    ? kWaveColumns / 2 + (left < kWaveColumns / 2 ? left : kWaveColumns / 2)
                        : left < kWaveColumns ? left
                                              : kWaveColumns;
    const uint8_t* const of_group = static_cast<const uint8_t*>(args.scale_b.data) +
                                    place.tile.group * args.scale_b.group_stride +
                                    int64_t(first_of_wave<F>(args, place.column)) * blocks;

    ScalesInLds<kMost> exponents;
    exponents.request(of_group, half, of_group + int64_t(beyond_first<F>(args, kWaveColumns / 2)) * blocks,
                      columns * blocks);
    OfA exponents_a;
    start_exponents_of_a(exponents_a, of_tile, of_a);
    exponents_a.request(0);
    Weights<F, depth> weights;
    weights.start(args, place.tile.group, place.column);
    RowsInRegisters<F, depth> rows;
    rows.start(of_tile);
    const auto request = [&](int slot, int step) {
        weights.request(slot, step);
        rows.request(slot, step);
        // Loads stay in this order, before the loop and in it: waits count them.
        __builtin_amdgcn_sched_barrier(0);
    };
#pragma unroll
    for (int slot = 0; slot < depth; ++slot) request(slot, slot);
    exponents.store(of_b);
    uint32_t first[kSubN];
#pragma unroll
    for (int c = 0; c < kSubN; ++c) {
        const int own = own_column<F>(args, c);
        first[c] = (own < columns ? own : columns - 1) * blocks;
    }

    Sums<F, 1> sums;
    sums.clear();
    const auto multiply = [&](int begin, int end) {
        for (int step = begin; step < end; step += depth) {
#pragma unroll
            for (int slot = 0; slot < depth; ++slot) {
                // Behind the last step are zeros. Where they were not multiplied, loads would meet others on their way; the
                // compiler sees to that without a gate.
                if (F::scaled || F::gated || step + slot < end) {
                    const int block = block_of(step + slot, blocks);
                    uint32_t scale[kSubN];
#pragma unroll
                    for (int c = 0; c < kSubN; ++c) scale[c] = of_b[place_of_exponent(first[c] + block)];
                    sums.multiply(
                        weights.of(slot), scale,
                        typename RowsInRegisters<F, depth>::Step{rows, slot, exponents_a.of(own_row(), block)});
                }
                request(slot, step + slot + depth);
            }
        }
    };
    if constexpr (F::blocks_a) {
        for (int window = 0; window * kWindowSteps < steps; ++window) {
            exponents_a.put(window);
            // The wave's other lanes read them.
            meet_lanes();
            exponents_a.request(window + 1);
            __builtin_amdgcn_sched_barrier(0);
            const int begin = window * kWindowSteps, end = begin + kWindowSteps;
            multiply(begin, end < steps ? end : steps);
        }
    } else {
        multiply(0, steps);
    }
    constexpr bool by_row = F::fp8_a && !blocks_a;
    if constexpr (gated) sums.template store_gated<by_row>(launch, place.tile, place.row, place.column);
    else sums.template store<by_row>(launch, place.tile, place.row, place.column);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm::hip
