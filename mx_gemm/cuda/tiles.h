// MXFP4 weights beside rows in bfloat16, or FP8 with a scale a row, on Hopper: wgmma with weights from registers.
//
//     HBM, L2 --> order: rows, sorted and in bfloat16, each 128 k in the order in which lanes hold codes --> memory
//     HBM, L2 --> TMA: 256 k of up to 192 columns of codes, and of kRows rows --> ring
//             --> a lane: 32 codes, a block, of each of two columns --> bfloat16, scaled --> wgmma, beside rows of the ring
//             --> epilogue.h: scale of the row, bias, gate, rounding --> the result, from registers
//
// Few rows of one matrix: a cluster's CTAs share out K, and add their sums through DSMEM, in their order.
//
// A warpgroup has 64 columns. A weight times its block's scale, by 2^-3, is a bfloat16 for every exponent, if subnormal:
// nothing is lost, and one sum runs over a CTA's K. Forms that share out K alike give the same bits.
// Bound: bytes of weights with few rows; with many the matrix units' rate (82 % on an H200). Decoding takes 17 instructions
// for eight codes of a lane; other warpgroups' multiplications go on meanwhile.
//
// Steps and figures: docs/journal/mx_gemm.md.
#pragma once

#include <cmath>

#include "../../common/cuda/shared_memory.h"
#include "../../common/cuda/tensor_map.h"
#include "../../common/cuda/tma.h"
#include "../../common/cuda/wgmma.h"
#include "../../common/gemm/cuda/cluster_sum.h"
#include "epilogue.h"
#include "order.h"

namespace rocm_fp8::mx_gemm {
namespace {

constexpr int kTileStep = 2 * kOrdered;  // k of a stage
constexpr int kRowOfStage = 128, kBoxes = kTileStep * 2 / kRowOfStage;
constexpr int kMostWarpgroups = 4, kMostParts = 8;
constexpr int kMostShared = 256, kMostOfTile = 64;  // rows whose K is shared out, of a tile then

// kTogether: warpgroups that share a stage's rows. Others of the multiprocessor have rings of their own and wait for nobody
// else, which is faster where rows are few.
template <int kHeight, int kTogether>
struct Form : tiles::ClusterSums<kHeight / 8, kTogether * kWarpgroup> {
    static constexpr bool kSumsApart = false, kShares = kTogether <= 2;
    static constexpr int kTiles = 1, kRows = kHeight, kGroups = kHeight / 8, kWarpgroups = kTogether,
                         kColumns = kWarpgroups * kSixtyFour, kBox = kColumns / 2,
                         kThreads = (1 + kWarpgroups) * kWarpgroup, kPerUnit = kMostWarpgroups / kWarpgroups;
    // Many rows: warpgroups multiply in turn, so that they decode in turn; a group's last rows may be half of a tile.
    static constexpr bool kMany = kHeight > kMostOfTile;
    static constexpr int kFewGroups = kMany ? kGroups / 2 : kGroups;

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
        Barrier sums_full;  // of the cluster's other CTAs
        grouped::RowTiles row_tiles;
    };
    static_assert((sizeof(Memory) + 1024) * kPerUnit <= 227 * 1024);
    static_assert(!kShares || (kGroups + kMostParts) * kTogether * kWarpgroup * 16 <= kStages * int(sizeof(Stage)));
    // Registers of a thread, in eights: what the launch has, what a loading warp leaves, what the others then take. More
    // would wait for ever.
    static constexpr int kOfLaunch = 65536 / (kThreads * kPerUnit) / 8 * 8, kFewRegisters = 24,
                         kManyRegisters = ((1 + kWarpgroups) * kOfLaunch - kFewRegisters) / kWarpgroups / 8 * 8;
};

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

// --- a tile ---

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

// A lane's 32 codes of each of two columns, by their blocks' scales: a code word's are pairs (i, i + 4).
__device__ inline void decode(const uint4 (&codes)[2], const uint32_t (&exponents)[2], uint32_t (&pairs)[4][2][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w}, by = first_factor(exponents[i]);
#pragma unroll
        for (int p = 0; p < 16; ++p) pairs[p / 4][i][p % 4] = times(bf16_bits(words[p / 4], p % 4), by);
    }
    if (!__any_sync(kWholeWarp, max(exponents[0], exponents[1]) > kFirstAlone)) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t by = second_factor(exponents[i]);
#pragma unroll
        for (int p = 0; p < 16; ++p) pairs[p / 4][i][p % 4] = times(pairs[p / 4][i][p % 4], by);
    }
}

// Many rows: a warpgroup multiplies behind the one before it, so that they do not all decode at once. Barriers.
struct Turns {
    int own, next;
    __device__ void wait() const { warpgroups_meet(own, 2 * kWarpgroup); }
    __device__ void pass() const { warpgroup_arrives(next, 2 * kWarpgroup); }
};

// Adds 128 k to the first `live` groups of rows. All warps of the warpgroup take the same branches to it: wgmma asks for it.
template <class F, int live>
__device__ inline void multiply(const typename F::Stage& stage, int half, const uint32_t (&pairs)[4][2][4], bool add,
                                const Turns& turns, float (&all)[F::kGroups][4]) {
    auto& sums = reinterpret_cast<float (&)[live][4]>(all);
    if (F::kMany) turns.wait();
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
    if (F::kMany) turns.pass();
    wait_for_multiplications<0>();
}

// A CTA's steps of K, as one of a cluster's `parts`; the tiles that the cluster makes.
struct Share {
    int parts, part, first, end, tile, tiles_on;

    __device__ Share(const Args& a, int parts) : parts(parts), part(parts > 1 ? int(rank_in_cluster()) : 0) {
        const int steps = int((a.k + kTileStep - 1) / kTileStep);
        first = steps * part / parts, end = steps * (part + 1) / parts;
        tile = int(blockIdx.x) / parts, tiles_on = int(gridDim.x) / parts;
    }
};

template <class F>
__device__ inline void make_tiles(typename F::Memory& memory, const Args& a, const Share& share, int pieces, int tiles,
                                  int warpgroup) {
    const int groups = int(a.groups), last = int(a.k / kMxBlock) - 1, lane = int(threadIdx.x) % kWarp;
    const uint32_t block_stride = uint32_t(a.scale_b.block_stride);
    int t = share.tile;
    if (t >= tiles) return;
    const Columns<F> of_lane(a, warpgroup);
    tiles::Position<F::kStages> at;
    grouped::Tile tile = grouped::tile_at<F::kRows>(memory.row_tiles, groups, pieces, t);
    Exponents own(a, tile, of_lane);
    const Turns turns{1 + warpgroup, 1 + (warpgroup + 1) % F::kWarpgroups};
    if (F::kMany && turns.next == 1) turns.pass();
    uint32_t exponents[2][2];
    own.read(share.first, last, block_stride, exponents);
    for (; t < tiles; t += share.tiles_on) {
        const grouped::Tile made = tile;
        if (t + share.tiles_on < tiles)
            tile = grouped::tile_at<F::kRows>(memory.row_tiles, groups, pieces, t + share.tiles_on);
        Exponents next(a, tile, of_lane);
        // Here, not in each step: the compiler would compute it there.
        asm volatile("" : "+l"(next.columns[0]), "+l"(next.columns[1]));
        float sums[1][F::kGroups][4];
        const bool few = made.end - made.row <= F::kFewGroups * 8;
        for (int step = share.first; step < share.end; ++step) {
            const uint32_t current[2][2] = {{exponents[0][0], exponents[0][1]}, {exponents[1][0], exponents[1][1]}};
            // The next step's, or the next tile's first.
            if (step + 1 == share.end) own = next;
            own.read(step + 1 < share.end ? step + 1 : share.first, last, block_stride, exponents);
            wait_for(&memory.full[at.stage], at.parity);
            const auto& stage = memory.stages[at.stage];
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
                // The multiplications before it have ended: ptxas would wait for each one whose registers it writes.
                uint32_t pairs[4][2][4];
                decode(codes, current[half], pairs);
                const bool add = step > share.first;
                if (F::kMany && few) multiply<F, F::kFewGroups>(stage, half, pairs, add, turns, sums[0]);
                else multiply<F, F::kGroups>(stage, half, pairs, add, turns, sums[0]);
            }
            // The warpgroup's multiplications have read the stage.
            arrive_if(lane == 0, &memory.empty[at.stage]);
            at.advance();
        }
        int from = 0, to = F::kGroups;
        if (F::kShares && share.parts > 1) {
            tiles::add_over_cluster<F>(memory, share.part, share.parts, sums);
            from = tiles::first_group<F>(share.part, share.parts);
            to = tiles::first_group<F>(share.part + 1, share.parts);
        }
        store<F>(a, made, of_lane, from, to, sums[0]);
    }
    if (F::kMany && turns.own == 1) turns.wait();  // for the last one's pass
}

// By the warp that loads.
template <class F>
__device__ inline void feed_tiles(typename F::Memory& memory, const Args& a, const CUtensorMap* weights,
                                  const CUtensorMap* rows, const Share& share, int pieces, int tiles) {
    tiles::Position<F::kStages> at;
    bool refills = false;
    for (int t = share.tile; t < tiles; t += share.tiles_on) {
        const grouped::Tile tile = grouped::tile_at<F::kRows>(memory.row_tiles, int(a.groups), pieces, t);
        // The same lane at each election.
        if (elected()) {
            for (int step = share.first; step < share.end; ++step) {
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
                                                                          int pieces, int parts) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    auto& memory = dynamic_shared<typename F::Memory>();
    const Share share(a, parts);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < F::kStages; ++stage) {
            make_barrier(&memory.full[stage], 1);
            make_barrier(&memory.empty[stage], F::kWarpgroups * (kWarpgroup / kWarp));
        }
        if (parts > 1) make_barrier(&memory.sums_full, 1);
        publish_barriers();
        if (parts > 1) arrive_expecting(&memory.sums_full, F::received_bytes(share.part, parts));
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
        if (warp == 0) feed_tiles<F>(memory, a, &weights, &rows, share, pieces, tiles);
        if (parts > 1) {
            // Every warp of a cluster arrives at its barrier, and waits before it ends.
            __syncwarp();
            arrive_at_cluster_start();
            wait_for_cluster_start();
        }
    } else {
        take_registers<F::kManyRegisters>();
        make_tiles<F>(memory, a, share, pieces, tiles, grouped::known_uniform(warp / (kWarpgroup / kWarp)) - 1);
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

// Of one matrix, into how many parts K is shared out: the CTAs of a cluster, as many as fill the chip. Powers of two: others
// leave places empty. A row's bits depend on it, so numbers of rows have classes.
inline int parts_of(const Args& a, const Chip& chip) {
    if (a.offsets || a.m > kMostShared) return 1;
    constexpr int kColumns = 2 * kSixtyFour, kPerUnit = kMostWarpgroups * kSixtyFour / kColumns;
    const int down = a.m <= kMostOfTile ? 1 : a.m <= 2 * kMostOfTile ? 2 : 4;
    const int64_t fill = int64_t(chip.multiprocessors) * kPerUnit / (ceil_div(a.n, kColumns) * down),
                  most = ceil_div(a.k, kTileStep) / (down > 1 ? 8 : 4);
    int parts = 1;
    while (parts < kMostParts && 2 * parts <= fill && 2 * parts <= most) parts *= 2;
    return parts;
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
    const int parts = parts_of(a, chip);
    // A cluster makes one tile: its sums take the ring's place.
    const int64_t most = int64_t(chip.multiprocessors) * F::kPerUnit, ctas = parts > 1      ? tiles * parts
                                                                             : tiles < most ? tiles
                                                                                            : most;
    return launch_kernel(mx_gemm_tiles<F>, chip, {ctas, F::kThreads, parts, kBytes}, on, a, weights, rows, int(pieces),
                         parts);
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
    const Divider slots = divider_by(a.rows ? uint32_t(a.slots) : 1);
    if (const Status s = launch_kernel(order, chip, {ctas, kOrderThreads}, on, a, slots, ordered, stride); !s.ok())
        return s;
    const auto start = [&](auto launch) { return launch(a, ordered, stride, chip, on); };
    const auto many = [&] { return start(launch_form<Form<128, 3>>); };
    const auto few = [&](double rows) {
        return start(rows <= 8    ? launch_form<Form<8, 1>>
                     : rows <= 16 ? launch_form<Form<16, 2>>
                     : rows <= 32 ? launch_form<Form<32, 2>>
                                  : launch_form<Form<64, 2>>);
    };
    if (!a.offsets) return a.m <= kMostOfTile || parts_of(a, chip) > 1 ? few(double(a.m)) : many();
    // With as many again as their root few groups have a second tile.
    const double likely = double(a.expected) + std::sqrt(double(a.expected));
    return likely <= kMostOfTile ? few(likely) : many();
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
