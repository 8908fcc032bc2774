// MXFP4 weights beside rows in bfloat16, or FP8 with a scale a row, on Hopper: wgmma with weights from registers.
//
//     HBM, L2 --> order: rows, sorted and in bfloat16, each 128 k in the order in which lanes hold codes --> memory
//     HBM, L2 --> TMA: 256 k of up to 256 columns of codes, and of kRows rows --> ring
//             --> a lane: 32 codes, a block, of each of two columns --> bfloat16, scaled --> wgmma, beside rows of the ring
//             --> scale of the row, bias, gate, rounding --> the result, from registers
//
// A warpgroup has 64 columns, half of them from each of a stage's two boxes: a lane has the same column of both, which may
// be a gate and its up. A weight times its block's scale, by 2^-3, is a bfloat16 for every exponent, if subnormal:
// nothing is lost, and one sum runs over K. All forms give the same bits.
// Bound: bytes of weights with few rows; with many the matrix units' rate. Decoding takes 17 instructions for eight codes of
// a lane; other warpgroups' multiplications go on meanwhile.
//
// Steps and figures: docs/journal/mx_gemm.md.
#pragma once

#include <cmath>

#include "../../common/cuda/pdl.h"
#include "../../common/cuda/shared_memory.h"
#include "../../common/cuda/tensor_map.h"
#include "../../common/cuda/tma.h"
#include "../../common/cuda/wgmma.h"
#include "../../common/gemm/cuda/ring.h"
#include "../../grouped_gemm/cuda/row_tiles.h"
#include "stream.h"

namespace rocm_fp8::mx_gemm {
namespace {

namespace grouped = grouped_gemm::cuda;

constexpr int kOrdered = 128, kTileStep = 2 * kOrdered;  // k that are permuted at once; of a stage
constexpr int kSixtyFour = 64, kRowOfStage = 128, kBoxes = kTileStep / kSixtyFour, kOrderThreads = 256;
constexpr int kMostWarpgroups = 4;
constexpr float kLifted = 8;  // weights are by 2^-3

// kTogether: warpgroups that share a stage's rows. Others of the multiprocessor have rings of their own and wait for nobody
// else, which is faster where rows are few.
template <int kHeight, int kTogether>
struct Form {
    static constexpr int kRows = kHeight, kGroups = kHeight / 8, kWarpgroups = kTogether,
                         kColumns = kWarpgroups * kSixtyFour, kBox = kColumns / 2,
                         kThreads = (1 + kWarpgroups) * kWarpgroup, kPerUnit = kMostWarpgroups / kWarpgroups;
    static constexpr bool kGates = kHeight <= 64;  // so many rows' gates would take longer than a launch of their own

    struct Stage {
        uint8_t rows[kBoxes][kRows][kRowOfStage];
        uint8_t weights[2][kBox][kRowOfStage];
    };
    static constexpr int kBytes = 227 * 1024 / kPerUnit - 2048,
                         kFit = (kBytes - int(sizeof(grouped::RowTiles))) / int(sizeof(Stage)),
                         kStages = kFit < 6 ? kFit : 6;
    static_assert(kStages >= 2);
    struct Memory {
        alignas(1024) Stage stages[kStages];
        Barrier full[kStages], empty[kStages];
        grouped::RowTiles row_tiles;
    };
    static_assert((sizeof(Memory) + 1024) * kPerUnit <= 227 * 1024);
    // Registers of a thread, in eights: what the launch has, what a loading warp leaves, what the others then take. More
    // would wait for ever.
    static constexpr int kOfLaunch = 65536 / (kThreads * kPerUnit) / 8 * 8, kFewRegisters = 24,
                         kManyRegisters = ((1 + kWarpgroups) * kOfLaunch - kFewRegisters) / kWarpgroups / 8 * 8;
};

// Of B, a box's first column.
template <class F>
__device__ inline int first_column(const Args& a, int piece, int box) {
    return of_halves(a) ? piece * F::kBox + box * int(a.n / 2) : (2 * piece + box) * F::kBox;
}

// --- rows as the tiles take them ---

// Where 128 k of a row lie. Lane t of four has block t of a column. A word w of it has the pairs (i, i + 4), i = 0 to 3.
// Each pair is numbers 2 t and 2 t + 1 of eight k of an instruction's 16: two pairs fill one instruction.
// Here a lane has the same word of the same block of a row. It gives each of the four lanes of that word a pair.
template <bool bytes, bool aligned>
__global__ __launch_bounds__(kOrderThreads) void mx_gemm_order(Args a, uint8_t* to, int64_t stride) {
    constexpr int kLanesOf = kOrdered / 8, kRowsOfCta = kOrderThreads / kLanesOf, kAtOnce = 4;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int lane = int(threadIdx.x) % kLanesOf, t = lane / 4, w = lane % 4;
    const uint32_t across = uint32_t((a.k + kOrdered - 1) / kOrdered), group = blockIdx.x % across;
    const int64_t live = first_row(a, int(a.groups)), k = int64_t(group) * kOrdered + lane * 8,
                  step = int64_t(gridDim.x / across) * kRowsOfCta;
    // All lanes of a warp go on together. Several rows are on their way at once.
    for (int64_t first = int64_t(blockIdx.x / across) * kRowsOfCta; first < live; first += step * kAtOnce) {
        RowPart parts[kAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int64_t row = first + i * step + threadIdx.x / kLanesOf;
            if (row < live && k < a.k) {
                parts[i] =
                    load_row<bytes, aligned>(a.a.data + source_of(a, int(row)) * a.a.row_stride + k * (bytes ? 1 : 2));
            }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int64_t row = first + i * step + threadIdx.x / kLanesOf;
            uint32_t pairs[4], turned[4];
            put_in_pairs<bytes>(parts[i], pairs);
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int other = t ^ r;
                const uint32_t given =
                    other < 2 ? (other == 0 ? pairs[0] : pairs[1]) : (other == 2 ? pairs[2] : pairs[3]);
                const uint32_t taken = __shfl_xor_sync(kWholeWarp, given, r * 4);
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (other == j) turned[j] = taken;
            }
            if (row < live) {
                *reinterpret_cast<uint4*>(to + row * stride + int64_t(group) * kOrdered * 2 + w * 64 + t * 16) = {
                    turned[0], turned[1], turned[2], turned[3]};
            }
        }
    }
}

// --- weights ---

// Factors of a column's block, as pairs of bfloat16: a code's bits become its number times 2^-3 times the scale by them.
// Beyond 2^4 it takes two.
constexpr uint32_t kFirstAlone = 131;
__device__ inline uint32_t first_factor(uint32_t exponent) { return min(exponent + 123u, 254u) * 0x00800080u; }
__device__ inline uint32_t second_factor(uint32_t exponent) {
    constexpr uint32_t kOne = 127, kNan = 255;
    return exponent == kNan         ? 0x7FC07FC0u
           : exponent > kFirstAlone ? (exponent - kFirstAlone + kOne) * 0x00800080u
                                    : kOne * 0x00800080u;
}

// Eight codes as pairs (i, i + 4).
template <bool large>
__device__ inline void decode_scaled(uint32_t codes, uint32_t first, uint32_t second, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        pairs[i] = times(bf16_bits(codes, i), first);
        if (large) pairs[i] = times(pairs[i], second);
    }
}

// --- a tile ---

// A lane's two columns, of a warpgroup's in both boxes. Where gates and ups are neighbours, so are they.
template <class F>
struct Columns {
    const bool beside;
    const int first;  // where the first one lies in the boxes

    __device__ Columns(const Args& a, int warpgroup)
        : beside(a.gated && a.gate.interleaved),
          first((warpgroup * kSixtyFour / 2 + int(threadIdx.x) / kWarp % 4 * 8 + int(threadIdx.x) % kWarp / 4) *
                (beside ? 2 : 1)) {}
    __device__ int place(int i) const { return first + i * (beside ? 1 : F::kBox); }
    // Of B.
    __device__ int64_t column(const Args& a, int piece, int i) const {
        return first_column<F>(a, piece, beside ? 0 : i) + first + (beside ? i : 0);
    }
    // Of hidden values.
    __device__ int64_t hidden(int piece) const { return piece * F::kBox + (beside ? first / 2 : first); }
};

// What a lane reads of a step: exponents of blocks t of both 128 k of its two columns.
struct Exponents {
    const uint8_t* columns[2];

    template <class F>
    __device__ Exponents(const Args& a, const grouped::Tile& tile, const Columns<F>& own) {
        const uint8_t* const first =
            static_cast<const uint8_t*>(a.scale_b.data) + int64_t(tile.expert) * a.scale_b.group_stride;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int64_t n = own.column(a, tile.piece, i);
            columns[i] = first + (n < a.n ? n : a.n - 1) * a.scale_b.row_stride;
        }
    }
    // Beyond K the last one's: codes are zero there.
    __device__ void read(int step, int last, uint32_t block_stride, uint32_t (&to)[2][2]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int block = (2 * step + half) * (kOrdered / kMxBlock) + int(threadIdx.x) % 4;
            const uint32_t at = uint32_t(block < last ? block : last) * block_stride;
#pragma unroll
            for (int i = 0; i < 2; ++i) to[half][i] = columns[i][at];
        }
    }
};

// Decoding waits for the multiplications before it. (Registers that are written beside multiplications make ptxas wait for
// each one.)
template <class F, bool large>
__device__ inline void multiply_half(const typename F::Stage& stage, int half, const uint4 (&codes)[2],
                                     const uint32_t (&exponents)[2], bool add, float (&sums)[F::kGroups][4]) {
    uint32_t pairs[4][2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t first = first_factor(exponents[i]), second = second_factor(exponents[i]);
        const uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) decode_scaled<large>(words[w], first, second, pairs[w][i]);
    }
    begin_multiplications();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const auto& of = pairs[i / 2];
        const int p = i % 2 * 2;
        const uint32_t weights[4] = {of[0][p], of[1][p], of[0][p + 1], of[1][p + 1]};
        const uint32_t rows = further(swizzled_rows(&stage.rows[half * 2 + i / 4]), i % 4 * kWgmmaK);
        multiply_bf16_async(sums, weights, rows, add || half + i > 0);
    }
    commit_multiplications();
    wait_for_multiplications<0>();
}

// From registers: eight lanes have neighbours of a row.
template <class F>
__device__ inline void store(const Args& a, const grouped::Tile& tile, const Columns<F>& own,
                             const float (&sums)[F::kGroups][4]) {
    const int t = int(threadIdx.x) % 4;
    gemm::Bias bias = a.bias;
    if (bias.data)
        bias.data = offset(bias.data, tile.expert * a.bias_group_stride * (bias.dtype == DType::f32 ? 4 : 2));
    const int64_t hidden = own.hidden(tile.piece),
                  columns[2] = {own.column(a, tile.piece, 0), own.column(a, tile.piece, 1)};
    const bool inside[2] = {columns[0] < a.n, columns[1] < a.n};
    float added[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i)
        if (bias.data && inside[i]) added[i] = gemm::bias_at(bias, columns[i]);
#pragma unroll
    for (int group = 0; group < F::kGroups; ++group) {
        if (tile.row + group * 8 >= tile.end) break;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = tile.row + group * 8 + 2 * t + r;
            if (row >= tile.end) continue;
            const float scale = a.scale_a.data ? gemm::scale_at(a.scale_a, source_of(a, row)) : 1.0f;
            float v[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                v[i] = sums[group][2 * i + r] * kLifted * scale;
                if (bias.data) v[i] += added[i];  // without one, -0 stays -0
            }
            const int64_t at = row * a.out.row_stride;
            if (F::kGates && a.gated) {
                if (hidden < a.n / 2) gemm::put(a.out, at + hidden, moe_gate::gated(a.gate, v[0], v[1]));
                continue;
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (inside[i]) gemm::put(a.out, at + columns[i], v[i]);
        }
    }
}

template <class F>
__device__ inline void make_tiles(typename F::Memory& memory, const Args& a, int pieces, int tiles, int warpgroup) {
    const int steps = int((a.k + kTileStep - 1) / kTileStep), groups = int(a.groups), last = int(a.k / kMxBlock) - 1,
              lane = int(threadIdx.x) % kWarp;
    const uint32_t block_stride = uint32_t(a.scale_b.block_stride);
    int t = blockIdx.x;
    if (t >= tiles) return;
    const Columns<F> of_lane(a, warpgroup);
    tiles::Position<F::kStages> at;
    grouped::Tile tile = grouped::tile_at<F::kRows>(memory.row_tiles, groups, pieces, t);
    Exponents own(a, tile, of_lane);
    uint32_t exponents[2][2];
    own.read(0, last, block_stride, exponents);
    for (; t < tiles; t += gridDim.x) {
        const grouped::Tile made = tile;
        if (t + int(gridDim.x) < tiles)
            tile = grouped::tile_at<F::kRows>(memory.row_tiles, groups, pieces, t + gridDim.x);
        Exponents next(a, tile, of_lane);
        // Here, not in each step: the compiler would compute it there.
        asm volatile("" : "+l"(next.columns[0]), "+l"(next.columns[1]));
        float sums[F::kGroups][4];
        for (int step = 0; step < steps; ++step) {
            const uint32_t current[2][2] = {{exponents[0][0], exponents[0][1]}, {exponents[1][0], exponents[1][1]}};
            // The next step's, or the next tile's first.
            if (step + 1 == steps) own = next;
            own.read(step + 1 < steps ? step + 1 : 0, last, block_stride, exponents);
            wait_for(&memory.full[at.stage], at.parity);
            const auto& stage = memory.stages[at.stage];
            const bool large = __any_sync(
                kWholeWarp, max(max(current[0][0], current[0][1]), max(current[1][0], current[1][1])) > kFirstAlone);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                // K may end within a step.
                if (half > 0 && step * kTileStep + kOrdered >= int(a.k)) break;
                uint4 codes[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int row = of_lane.place(i), chunk = (half * 4 + lane % 4) ^ row % 8;  // TMA's swizzle
                    codes[i] = *reinterpret_cast<const uint4*>(&stage.weights[0][row][chunk * 16]);
                }
                if (large) multiply_half<F, true>(stage, half, codes, current[half], step > 0, sums);
                else multiply_half<F, false>(stage, half, codes, current[half], step > 0, sums);
            }
            // The warpgroup's multiplications have read the stage.
            arrive_if(lane == 0, &memory.empty[at.stage]);
            at.advance();
        }
        store<F>(a, made, of_lane, sums);
    }
}

// By the warp that loads.
template <class F>
__device__ inline void feed_tiles(typename F::Memory& memory, const Args& a, const CUtensorMap* weights,
                                  const CUtensorMap* rows, int pieces, int tiles) {
    const int steps = int((a.k + kTileStep - 1) / kTileStep);
    tiles::Position<F::kStages> at;
    bool refills = false;
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
        const grouped::Tile tile = grouped::tile_at<F::kRows>(memory.row_tiles, int(a.groups), pieces, t);
        // The same lane at each election.
        if (elected()) {
            for (int step = 0; step < steps; ++step) {
                auto& stage = memory.stages[at.stage];
                Barrier* const full = &memory.full[at.stage];
                // Barrier: the stage is filled again after its readers have left it.
                if (refills) wait_for(&memory.empty[at.stage], at.parity ^ 1);
                arrive_expecting(full, sizeof(stage));
#pragma unroll
                for (int box = 0; box < 2; ++box)
                    copy_tile_of(tile.expert, stage.weights[box], weights, step * (kTileStep / 2),
                                 first_column<F>(a, tile.piece, box), full);
#pragma unroll
                for (int box = 0; box < kBoxes; ++box)
                    copy_tile(stage.rows[box], rows, step * kTileStep * 2 + box * kRowOfStage, tile.row, full);
                at.advance();
                refills |= at.stage == 0;
            }
        }
        __syncwarp();
    }
}

template <class F>
__global__ __launch_bounds__(F::kThreads, F::kPerUnit) void mx_gemm_tiles(Args a,
                                                                          const __grid_constant__ CUtensorMap weights,
                                                                          const __grid_constant__ CUtensorMap rows,
                                                                          int pieces) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    auto& memory = dynamic_shared<typename F::Memory>();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < F::kStages; ++stage) {
            make_barrier(&memory.full[stage], 1);
            make_barrier(&memory.empty[stage], F::kWarpgroups * (kWarpgroup / kWarp));
        }
        publish_barriers();
        fetch_map(&weights);
        fetch_map(&rows);
    }
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may write what this one reads
    // Its barriers close: mbarriers are used below by threads that did not initialise them.
    grouped::make_row_tiles<F::kRows>(memory.row_tiles, a);
    const int tiles = grouped::tiles_of(memory.row_tiles, int(a.groups), pieces), warp = threadIdx.x / kWarp;
    if (warp < kWarpgroup / kWarp) {
        leave_registers<F::kFewRegisters>();
        if (warp == 0) feed_tiles<F>(memory, a, &weights, &rows, pieces, tiles);
    } else {
        take_registers<F::kManyRegisters>();
        make_tiles<F>(memory, a, pieces, tiles, grouped::known_uniform(warp / (kWarpgroup / kWarp)) - 1);
    }
#endif
}

// --- the launch ---

// Whether it is for these operands, on this chip.
inline bool tiles_fit(const Args& a, const Chip& chip) {
    return chip.capability == 90 && a.format_b == DType::e2m1 && !of_blocks(a.scale_a) &&
           (a.format_a == DType::bf16 || is_fp8(a.format_a)) &&
           tma_takes({a.b.data, a.n, a.k / 2, a.b.row_stride, 0, 0, a.groups, a.b.group_stride}) &&
           a.k < int64_t(1) << 30 && a.m < int64_t(1) << 31 &&
           a.k / kMxBlock * a.scale_b.block_stride < int64_t(1) << 31;
}

template <class F>
Status launch_form(const Args& a, const void* ordered, int64_t stride, const Chip& chip, const Executor& on) {
    static AllowedDevices allowed;
    constexpr int kBytes = int(sizeof(typename F::Memory));
    CUtensorMap weights, rows;
    const ByteMatrix of_weights{a.b.data,    a.n,     a.k / 2,  a.b.row_stride,
                                kRowOfStage, F::kBox, a.groups, a.groups > 1 ? a.b.group_stride : 0};
    if (!describe(&weights, of_weights) || !describe(&rows, {ordered, a.m, stride, stride, kRowOfStage, F::kRows}))
        return {"TMA does not take the operands"};
    const int64_t pieces = ceil_div(a.n, F::kColumns), tiles = most_row_tiles(a, F::kRows) * pieces;
    if (tiles > kMaxCtas / grouped::kBand) return {"a and b have more rows than one launch takes"};
    if (const Status s = allow_shared_bytes(mx_gemm_tiles<F>, kBytes, chip, &allowed); !s.ok()) return s;
    const int64_t most = int64_t(chip.multiprocessors) * F::kPerUnit, ctas = tiles < most ? tiles : most;
    return launch_kernel(mx_gemm_tiles<F>, chip, {ctas, F::kThreads, 1, kBytes}, on, a, weights, rows, int(pieces));
}

inline Status launch_tiles(const Args& a, const Chip& chip, const Executor& on) {
    const int64_t across = ceil_div(a.k, kOrdered), stride = across * kOrdered * 2;
    auto* const ordered = static_cast<uint8_t*>(on.scratch(on.context, a.m * stride));
    if (!ordered) return {"no memory for the ordered rows"};
    constexpr int kPerUnit = 8, kRowsOfCta = kOrderThreads / (kOrdered / 8);
    const int64_t down = ceil_div(a.m, kRowsOfCta), most = ceil_div(int64_t(chip.multiprocessors) * kPerUnit, across);
    const bool bytes = is_fp8(a.format_a), aligned = rows_aligned(a.a.data, a.a.row_stride, bytes ? 8 : 16);
    const auto order = bytes ? (aligned ? mx_gemm_order<true, true> : mx_gemm_order<true, false>)
                             : (aligned ? mx_gemm_order<false, true> : mx_gemm_order<false, false>);
    const int64_t ctas = across * (down < most ? down : most);
    if (const Status s = launch_kernel(order, chip, {ctas, kOrderThreads}, on, a, ordered, stride); !s.ok()) return s;
    // With as many again as their root few groups have a second tile.
    const double likely = double(a.expected) + std::sqrt(double(a.expected));
    const auto start = [&](auto launch) { return launch(a, ordered, stride, chip, on); };
    return start(likely <= 8    ? launch_form<Form<8, 1>>
                 : likely <= 16 ? launch_form<Form<16, 2>>
                 : likely <= 32 ? launch_form<Form<32, 2>>
                 : likely <= 64 ? launch_form<Form<64, 2>>
                 : a.gated      ? launch_form<Form<64, 4>>
                                : launch_form<Form<128, 3>>);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
