// MXFP4 and MXFP8 weights beside rows of any type, on Hopper: wgmma with weights from registers.
//
//     HBM, L2 --> order: rows, sorted and in bfloat16, each 128 k in the order in which lanes hold codes --> memory
//     HBM, L2 --> TMA: 128 bytes of up to 192 columns of codes, and as many k of kRows rows --> ring
//             --> a lane: 32 codes, a block, of each of two columns --> bfloat16, scaled --> wgmma, beside rows of the ring
//             --> epilogue.h: scale of the row, bias, gate, rounding --> the result, from registers
//
// Few rows of one matrix: a cluster's CTAs share out K, and add their sums through DSMEM, in their order.
//
// A warpgroup has 64 columns. A weight times its block's scale, by 2^-3, is a bfloat16 for every exponent, if subnormal:
// nothing is lost, and one sum runs over a CTA's K. FP8's range is wider than bfloat16's: by 2^-8 the largest fits, and
// magnitudes below 2^-125 are rounded to a multiple of it. Forms that share out K alike give the same bits.
// Bound: bytes of weights with few rows; with many the matrix units' rate (82 % on an H200). Decoding takes 17 instructions
// for eight codes of a lane, 22 of FP8; other warpgroups' multiplications go on meanwhile.
//
// Steps and figures: docs/journal/mx_gemm.md.
#pragma once

#include "../../common/cuda/shared_memory.h"
#include "../../common/cuda/tensor_map.h"
#include "../../common/cuda/tma.h"
#include "../../common/cuda/wgmma.h"
#include "../../common/gemm/cuda/cluster_sum.h"
#include "epilogue.h"
#include "order.h"

namespace rocm_fp8::mx_gemm {
namespace {

constexpr int kRowOfStage = 128;
constexpr int kMostWarpgroups = 4, kMostParts = 8;
constexpr int kMostShared = 256, kMostOfTile = 64;  // rows whose K is shared out, of a tile then

// kTogether: warpgroups that share a stage's rows. Others of the multiprocessor have rings of their own and wait for nobody
// else, which is faster where rows are few.
template <int kHeight, int kTogether, DType kWeights>
struct Form : tiles::ClusterSums<kHeight / 8, kTogether * kWarpgroup> {
    static constexpr bool kSumsApart = false, kShares = kTogether <= 2, kFp8 = is_fp8(kWeights);
    // k of a stage, and of its rows the boxes of 128 bytes.
    static constexpr int kStep = kFp8 ? kRowOfStage : 2 * kRowOfStage, kHalves = kStep / kOrdered,
                         kBoxes = kStep * 2 / kRowOfStage;
    static constexpr float kLifted = Weights<kFp8>::kLifted;
    static constexpr int kTiles = 1, kRows = kHeight, kGroups = kHeight / 8, kWarpgroups = kTogether,
                         kColumns = kWarpgroups * kSixtyFour, kBox = kColumns / 2,
                         kThreads = (1 + kWarpgroups) * kWarpgroup, kPerUnit = kMostWarpgroups / kWarpgroups;
    // Many rows: warpgroups multiply in turn, so that they decode in turn.
    static constexpr bool kMany = kHeight > kMostOfTile;
    // Rows of a box: a group's last ones may be a quarter or half of a tile, and no others are loaded and multiplied.
    static constexpr int kLeast = kRows > 32 ? kRows / 4 : 8;
    // Of a tile whose group has `left` rows from its first on.
    static __device__ int held(int left) {
        return left <= kLeast ? kLeast : left <= 2 * kLeast && 2 * kLeast < kRows ? 2 * kLeast : kRows;
    }

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

// --- a tile ---

// What a lane reads of a step: exponents of blocks t of each 128 k of its two columns.
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
    template <int kHalves>
    __device__ void read(int step, int last, uint32_t block_stride, uint32_t (&to)[kHalves][2]) const {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            const int block = (kHalves * step + half) * (kOrdered / kMxBlock) + int(threadIdx.x) % 4;
            const uint32_t at = uint32_t(block < last ? block : last) * block_stride;
#pragma unroll
            for (int i = 0; i < 2; ++i) to[half][i] = columns[i][at];
        }
    }
};

// A lane's 32 codes of each of two columns in a stage's `half`, by their blocks' scales.
template <class F>
__device__ inline void decode(const typename F::Stage& stage, const Columns<F>& own, int half,
                              const uint32_t (&exponents)[2], uint32_t (&pairs)[4][2][4]) {
    using Of = Weights<F::kFp8>;
    const int lane_of_four = int(threadIdx.x) % 4;
    const auto read = [&](int i, uint32_t (&words)[Of::kWords]) {
        const int row = own.place(i);
#pragma unroll
        for (int w = 0; w < Of::kWords; w += 4) {
            const int chunk = ((half * 4 + lane_of_four) * Of::kWords / 4 + w / 4) ^ row % 8;  // TMA's swizzle
            const uint4 four = *reinterpret_cast<const uint4*>(&stage.weights[0][row][chunk * 16]);
            words[w] = four.x, words[w + 1] = four.y, words[w + 2] = four.z, words[w + 3] = four.w;
        }
    };
    bool more = max(exponents[0], exponents[1]) > Of::kFirstAlone;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint32_t words[Of::kWords];
        read(i, words);
        const uint32_t by = Of::first_factor(exponents[i]);
#pragma unroll
        for (int p = 0; p < 16; ++p) pairs[p / 4][i][p % 4] = times(Of::bits(words, p), by);
        more |= Of::nans(words) != 0;
    }
    if (!__any_sync(kWholeWarp, more)) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint32_t words[Of::kWords];
        read(i, words);  // again: registers are few
        const uint32_t by = Of::second_factor(exponents[i]);
#pragma unroll
        for (int p = 0; p < 16; ++p) {
            uint32_t& pair = pairs[p / 4][i][p % 4];
            pair = times(pair, by) | Of::nans_of(words, p);
        }
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

    __device__ Share(const Args& a, int k_of_step, int parts)
        : parts(parts), part(parts > 1 ? int(rank_in_cluster()) : 0) {
        const int steps = int((a.k + k_of_step - 1) / k_of_step);
        first = steps * part / parts, end = steps * (part + 1) / parts;
        tile = int(blockIdx.x) / parts, tiles_on = int(gridDim.x) / parts;
    }
};

// add.operator()<n>(), where of the tile's rows the first n are loaded and multiplied.
template <class F, class Add>
__device__ inline void with_held(const grouped::Tile& tile, const Add& add) {
    const int held = F::held(tile.end - tile.row);
    if constexpr (F::kLeast < F::kRows) {
        if (held == F::kLeast) return add.template operator()<F::kLeast>();
    }
    if constexpr (2 * F::kLeast < F::kRows) {
        if (held == 2 * F::kLeast) return add.template operator()<2 * F::kLeast>();
    }
    add.template operator()<F::kRows>();
}

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
    constexpr int kHalves = F::kHalves;
    uint32_t exponents[kHalves][2];
    own.read(share.first, last, block_stride, exponents);
    for (; t < tiles; t += share.tiles_on) {
        const grouped::Tile made = tile;
        if (t + share.tiles_on < tiles)
            tile = grouped::tile_at<F::kRows>(memory.row_tiles, groups, pieces, t + share.tiles_on);
        Exponents next(a, tile, of_lane);
        // Here, not in each step: the compiler would compute it there.
        asm volatile("" : "+l"(next.columns[0]), "+l"(next.columns[1]));
        float sums[1][F::kGroups][4];
        // A loop for each number of rows: in one loop branches cost 2 to 7 % (H200).
        const auto add_steps = [&]<int live>() __attribute__((always_inline)) {
            for (int step = share.first; step < share.end; ++step) {
                uint32_t current[kHalves][2];
#pragma unroll
                for (int i = 0; i < 2 * kHalves; ++i) current[i / 2][i % 2] = exponents[i / 2][i % 2];
                // The next step's, or the next tile's first.
                if (step + 1 == share.end) own = next;
                own.read(step + 1 < share.end ? step + 1 : share.first, last, block_stride, exponents);
                wait_for(&memory.full[at.stage], at.parity);
                const auto& stage = memory.stages[at.stage];
#pragma unroll
                for (int half = 0; half < kHalves; ++half) {
                    // K may end within a step.
                    if (half > 0 && step * F::kStep + kOrdered >= int(a.k)) break;
                    // The multiplications before it have ended: ptxas would wait for each one whose registers it writes.
                    uint32_t pairs[4][2][4];
                    decode<F>(stage, of_lane, half, current[half], pairs);
                    multiply<F, live / 8>(stage, half, pairs, step > share.first, turns, sums[0]);
                }
                // The warpgroup's multiplications have read the stage.
                arrive_if(lane == 0, &memory.empty[at.stage]);
                at.advance();
            }
        };
        with_held<F>(made, add_steps);
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
        const int held = F::held(tile.end - tile.row);
        const uint32_t bytes = sizeof(F::Stage::weights) + uint32_t(held) * F::kBoxes * kRowOfStage;
        // The same lane at each election.
        if (elected()) {
            for (int step = share.first; step < share.end; ++step) {
                auto& stage = memory.stages[at.stage];
                Barrier* const full = &memory.full[at.stage];
                // Barrier: the stage is filled again after its readers have left it.
                if (refills) wait_for(&memory.empty[at.stage], at.parity ^ 1);
                arrive_expecting(full, bytes);
#pragma unroll
                for (int box = 0; box < 2; ++box)
                    copy_tile_of(tile.expert, stage.weights[box], weights, step * kRowOfStage,
                                 first_column<F>(a, tile.piece, box), full);
#pragma unroll
                for (int row = 0; row < F::kRows; row += F::kLeast) {
                    if (row >= held) break;
#pragma unroll
                    for (int box = 0; box < F::kBoxes; ++box)
                        copy_tile(&stage.rows[box][row], rows, (step * F::kBoxes + box) * kRowOfStage, tile.row + row,
                                  full);
                }
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
    const Share share(a, F::kStep, parts);
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
    return chip.capability == 90 &&
           tma_takes({a.b.data, a.n, a.bytes_of(a.format_b), a.b.row_stride, 0, 0, a.groups, a.b.group_stride}) &&
           a.k < int64_t(1) << 30 && a.m * rows_of(a.format_a) < int64_t(1) << 31 &&
           a.k / kMxBlock * a.scale_b.block_stride < int64_t(1) << 31;
}

// Of one matrix, into how many parts K is shared out: the CTAs of a cluster, as many as fill the chip. Powers of two: others
// leave places empty. A row's bits depend on it, so numbers of rows have classes.
inline int parts_of(const Args& a, const Chip& chip) {
    if (a.offsets || a.m > kMostShared) return 1;
    constexpr int kColumns = 2 * kSixtyFour, kPerUnit = kMostWarpgroups * kSixtyFour / kColumns, kLeast = 256;
    const int down = a.m <= kMostOfTile ? 1 : a.m <= 2 * kMostOfTile ? 2 : 4;
    const int64_t fill = int64_t(chip.multiprocessors) * kPerUnit / (ceil_div(a.n, kColumns) * down),
                  most = ceil_div(a.k, kLeast) / (down > 1 ? 8 : 4);
    int parts = 1;
    while (parts < kMostParts && 2 * parts <= fill && 2 * parts <= most) parts *= 2;
    return parts;
}

template <class F>
Status launch_form(const Args& a, const void* ordered, int64_t stride, const Chip& chip, const Executor& on) {
    static AllowedDevices allowed;
    constexpr int kBytes = int(sizeof(typename F::Memory));
    CUtensorMap weights, rows;
    const int64_t bytes = a.bytes_of(a.format_b), apart = a.groups > 1 ? a.b.group_stride : 0;
    const ByteMatrix of_weights{a.b.data, a.n, bytes, a.b.row_stride, kRowOfStage, F::kBox, a.groups, apart};
    if (!describe(&weights, of_weights) || !describe(&rows, {ordered, a.m, stride, stride, kRowOfStage, F::kLeast}))
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

inline Status launch_tiles(const Args& given, const Chip& chip, const Executor& on) {
    const int of_row = rows_of(given.format_a);
    const int64_t across = ceil_div(given.k, kOrdered), stride = across * kOrdered * 2,
                  bytes = given.m * of_row * stride,
                  of_offsets = of_row > 1 && given.offsets ? (given.groups + 1) * int64_t(sizeof(int32_t)) : 0;
    auto* const ordered = static_cast<uint8_t*>(on.scratch(on.context, bytes + of_offsets));
    if (!ordered) return {"no memory for the ordered rows"};
    auto* const offsets = of_offsets ? reinterpret_cast<int32_t*>(ordered + bytes) : nullptr;
    Args a = given;  // of the ordered rows
    a.m *= of_row, a.expected *= of_row;
    if (offsets) a.offsets = offsets;
    constexpr int kPerUnit = 8, kRowsOfCta = kOrderThreads / (kOrdered / 8);
    const int64_t down = ceil_div(given.m, kRowsOfCta),
                  most = ceil_div(int64_t(chip.multiprocessors) * kPerUnit, across);
    const bool aligned = rows_aligned(a.a.data, a.a.row_stride, int(a.bytes_of(a.format_a) * 8 / a.k));
    const auto of = [&]<DType type>() { return aligned ? mx_gemm_order<type, true> : mx_gemm_order<type, false>; };
    const auto order = a.format_a == DType::bf16   ? of.template operator()<DType::bf16>()
                       : a.format_a == DType::f16  ? of.template operator()<DType::f16>()
                       : a.format_a == DType::e2m1 ? of.template operator()<DType::e2m1>()
                                                   : of.template operator()<DType::e4m3fn>();
    const int64_t ctas = across * (down < most ? down : most);
    if (const Status s = launch_kernel(order, chip, {ctas, kOrderThreads}, on, given, ordered, stride, offsets);
        !s.ok())
        return s;
    const auto start = [&]<int height, int together>() {
        const auto launch = a.format_b == DType::e2m1 ? launch_form<Form<height, together, DType::e2m1>>
                                                      : launch_form<Form<height, together, DType::e4m3fn>>;
        return launch(a, ordered, stride, chip, on);
    };
    const auto many = [&] { return start.template operator()<128, 3>(); };
    const auto few = [&](int64_t rows) {
        return rows <= 8    ? start.template operator()<8, 1>()
               : rows <= 32 ? start.template operator()<32, 2>()
                            : start.template operator()<64, 2>();
    };
    if (!a.offsets) return a.m <= kMostOfTile || parts_of(a, chip) > 1 ? few(a.m) : many();
    // Some groups have several times the mean, so tiles are higher than it: rows beyond a group's last one cost little. 8 rows
    // are quickest where nearly all groups have fewer.
    const int64_t rows = a.expected;
    return rows <= 2 ? few(8) : rows <= 16 ? few(32) : rows <= 48 ? few(64) : many();
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
