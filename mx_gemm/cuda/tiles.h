// MXFP4 weights beside rows in bfloat16, or FP8 with a scale a row, on Hopper: wgmma with weights from registers.
//
//     HBM, L2 --> order: rows, sorted and in bfloat16, each 128 k in the order in which lanes hold codes --> memory
//     HBM, L2 --> TMA: 256 k of 64 or 128 columns of codes, and of kRows rows --> ring
//             --> a lane: 32 codes, a block, of each of two columns --> bfloat16, scaled --> wgmma, beside rows of the ring
//             --> sums of the four parts of K, added in their order --> scale of the row, bias, rounding
//
// A weight times its block's scale, by 2^-3, is a bfloat16 for every exponent, if subnormal: nothing is lost. So sums run
// over a part of K. Up to 32 rows a tile four warpgroups take a part each, so that a CTA reads from four places at once.
// With more rows two warpgroups take 64 columns each, and the parts one after the other. All forms give the same bits.
// Bound: bytes of weights with few rows; with many the matrix units' rate, where decoding (17 instructions for eight codes
// of a lane) is hidden: from 64 rows a tile.
//
// Steps and figures: docs/journal/mx_gemm.md.
#pragma once

#include "../../common/cuda/pdl.h"
#include "../../common/cuda/shared_memory.h"
#include "../../common/cuda/tensor_map.h"
#include "../../common/cuda/tma.h"
#include "../../common/cuda/wgmma.h"
#include "../../common/gemm/cuda/ring.h"
#include "../../grouped_gemm/cuda/row_tiles.h"
#include "../gpu.h"

namespace rocm_fp8::mx_gemm {
namespace {

namespace grouped = grouped_gemm::cuda;

constexpr int kOrdered = 128, kTileStep = 2 * kOrdered,
              kParts = 4;  // k that are permuted at once; of a stage; parts of K
constexpr int kSixtyFour = 64, kRowOfStage = 128, kBoxes = kTileStep / kSixtyFour, kStagedRow = kSixtyFour + 4;
constexpr int kOrderThreads = 256;
constexpr float kLifted = 8;  // weights are by 2^-3

template <int kHeight>
struct Form {
    static constexpr int kRows = kHeight;
    static constexpr bool kPartEach = kHeight <= 32;  // a warpgroup has a part of K; else 64 columns
    static constexpr int kWarpgroups = kPartEach ? kParts : 2, kHalves = kPartEach ? 1 : 2,
                         kColumns = kHalves * kSixtyFour, kRings = kPartEach ? kParts : 1,
                         kStages = kHeight == 16   ? 3
                                   : kHeight == 64 ? 4
                                                   : 2,
                         kThreads = (1 + kWarpgroups) * kWarpgroup, kStored = kPartEach ? 16 : 32,
                         kGroups = kHeight / 8;
    // Together what the launch has: 96 and 168 for each thread. More would wait for ever.
    static constexpr int kFewRegisters = 40, kManyRegisters = kPartEach ? 104 : 232;
    static_assert(kFewRegisters + kWarpgroups * kManyRegisters <= (1 + kWarpgroups) * (kPartEach ? 96 : 168));

    struct Stage {
        uint8_t rows[kBoxes][kRows][kRowOfStage];
        uint8_t weights[kColumns][kRowOfStage];
    };
    struct Memory {
        alignas(1024) Stage stages[kRings][kStages];
        alignas(16) float staged[kWarpgroups][kStored][kStagedRow];
        Barrier full[kRings][kStages], empty[kRings][kStages];
        grouped::RowTiles row_tiles;
    };
    static_assert(sizeof(Memory) + 1024 <= 227 * 1024);
};

// --- rows as the tiles take them ---

// Where 128 k of a row lie: lane t of four has block t. Of its word w the pairs (i, i + 4), i = 0 to 3, are numbers 2 t and
// 2 t + 1 of the first or second eight of one of 16, two pairs after the other.
template <bool bytes>
__global__ __launch_bounds__(kOrderThreads) void mx_gemm_order(Args a, uint8_t* to, int64_t stride) {
    constexpr int kEach = 4;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int lane = int(threadIdx.x) % kWarp, word = lane / 8, pair = lane / 4 % 2 * 2 + lane % 4 / 2,
              block = lane % 2 * 2;
    const uint32_t across = uint32_t((a.k + kOrdered - 1) / kOrdered), k_group = blockIdx.x % across;
    const int64_t live = first_row(a, int(a.groups)), k0 = int64_t(k_group) * kOrdered + word * 8 + pair,
                  step = int64_t(gridDim.x / across) * (kOrderThreads / kWarp);
    for (int64_t row = int64_t(blockIdx.x / across) * (kOrderThreads / kWarp) + threadIdx.x / kWarp; row < live;
         row += step) {
        const uint8_t* const from = a.a.data + source_of(a, int(row)) * a.a.row_stride;
        uint32_t numbers[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int64_t k = k0 + (block + i / 2) * kMxBlock + i % 2 * 4;
            numbers[i] = 0;
            if (k >= a.k) continue;
            if constexpr (bytes) numbers[i] = Pairs<DType::bf16>::round(Pairs<DType::f16>::widen(widen(from[k]).low));
            else numbers[i] = reinterpret_cast<const uint16_t*>(from)[k];
        }
        auto* const own = reinterpret_cast<uint2*>(to + row * stride + int64_t(k_group) * kOrdered * 2) + lane;
        *own = {(numbers[0] & 0xFFFFu) | numbers[1] << 16, (numbers[2] & 0xFFFFu) | numbers[3] << 16};
    }
}

// --- weights ---

// Factors of a column's block, as pairs of bfloat16: a code's bits become its number times 2^-3 times the scale by them.
// Beyond 2^4 it takes two.
__device__ inline uint32_t first_factor(uint32_t exponent) { return min(exponent + 123u, 254u) * 0x00800080u; }
__device__ inline uint32_t second_factor(uint32_t exponent) {
    constexpr uint32_t kFirstAlone = 131, kOne = 127, kNan = 255;
    return exponent == kNan         ? 0x7FC07FC0u
           : exponent > kFirstAlone ? (exponent - kFirstAlone + kOne) * 0x00800080u
                                    : kOne * 0x00800080u;
}
__device__ inline uint32_t times(uint32_t pair, uint32_t factor) {
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(factor), "r"(0x80008000u));  // -0
    return pair;
}

// Eight codes as pairs (i, i + 4). One multiplication of integers is two shifts: it puts magnitudes and signs where they
// belong, and copies beside them.
template <bool large>
__device__ inline void decode_scaled(uint32_t codes, uint32_t first, uint32_t second, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int at = i % 2 * 4;
        const uint32_t moved = i < 2 ? codes : codes >> 8;
        pairs[i] = times((moved & 0x000F000Fu << at) * ((1u << 6 | 1u << 12) >> at) & 0x81C081C0u, first);
        if (large) pairs[i] = times(pairs[i], second);
    }
}

// --- a tile ---

template <class F>
struct Sums {
    float of[F::kGroups][4];
};

// What a lane reads of a step: exponents of blocks t of both 128 k of its two columns.
struct Exponents {
    const uint8_t* columns[2];
    int last;  // block of the matrix

    __device__ Exponents(const Args& a, const grouped::Tile& tile, int64_t column) : last(int(a.k / kMxBlock) - 1) {
        const uint8_t* const first =
            static_cast<const uint8_t*>(a.scale_b.data) + int64_t(tile.expert) * a.scale_b.group_stride;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int64_t n = column + 8 * i;
            columns[i] = first + (n < a.n ? n : a.n - 1) * a.scale_b.row_stride;
        }
    }
    __device__ void read(const Args& a, int step, uint32_t (&to)[2][2]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int block = (2 * step + half) * (kOrdered / kMxBlock) + int(threadIdx.x) % 4;
#pragma unroll
            for (int i = 0; i < 2; ++i)
                to[half][i] = columns[i][(block < last ? block : last) * a.scale_b.block_stride];
        }
    }
};

template <class F>
class Multiplier {
    typename F::Memory& memory;
    const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp % 4;
    const int warpgroup, ring;
    tiles::Position<F::kStages> at;

  public:
    __device__ Multiplier(typename F::Memory& memory, int warpgroup)
        : memory(memory), warpgroup(warpgroup), ring(F::kPartEach ? warpgroup : 0) {}

    // The lane's first column in a tile.
    __device__ int column() const { return (F::kPartEach ? 0 : warpgroup * kSixtyFour) + warp * 16 + lane / 4; }

    // Steps [begin, end) of K. exponents: of the first, then of `next`'s step `following`.
    __device__ void multiply(const Args& a, int begin, int end, const Exponents& own, const Exponents& next,
                             int following, uint32_t (&exponents)[2][2], float (&sums)[F::kGroups][4]) {
        for (int step = begin; step < end; ++step) {
            uint32_t current[2][2] = {{exponents[0][0], exponents[0][1]}, {exponents[1][0], exponents[1][1]}};
            if (step + 1 < end) own.read(a, step + 1, exponents);
            else next.read(a, following, exponents);
            wait_for(&memory.full[ring][at.stage], at.parity);
            const auto& stage = memory.stages[ring][at.stage];
            const bool large =
                __any_sync(kWholeWarp, max(max(current[0][0], current[0][1]), max(current[1][0], current[1][1])) > 131);
            uint4 codes[2][2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int row = column() + 8 * i, chunk = (half * 4 + lane % 4) ^ row % 8;  // TMA's swizzle
                    codes[half][i] = *reinterpret_cast<const uint4*>(&stage.weights[row][chunk * 16]);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (large) multiply_half<true>(stage, half, codes[half], current[half], step > begin, sums);
                else multiply_half<false>(stage, half, codes[half], current[half], step > begin, sums);
            }
            // The warpgroup's multiplications have read the stage.
            arrive_if(lane == 0, &memory.empty[ring][at.stage]);
            at.advance();
        }
    }

  private:
    // Decoding waits for the multiplications before it: the other warpgroups' go on meanwhile. (Registers that are written
    // beside multiplications make ptxas wait for each one.)
    template <bool large>
    static __device__ void multiply_half(const typename F::Stage& stage, int half, const uint4 (&codes)[2],
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
};

// By the warp that loads: parts in turn.
template <class F>
__device__ inline void feed_tiles(typename F::Memory& memory, const Args& a, const CUtensorMap* weights,
                                  const CUtensorMap* rows, int pieces, int tiles) {
    const int steps = int((a.k + kTileStep - 1) / kTileStep);
    tiles::Position<F::kStages> at[F::kRings];
    bool refills[F::kRings] = {};
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
        const grouped::Tile tile = grouped::tile_at<F::kRows>(memory.row_tiles, int(a.groups), pieces, t);
        const int most = F::kRings == 1 ? steps : (steps + F::kRings - 1) / F::kRings;
        // The same lane at each election.
        if (elected()) {
            for (int i = 0; i < most; ++i) {
#pragma unroll
                for (int ring = 0; ring < F::kRings; ++ring) {
                    const int step = steps * ring / F::kRings + i;
                    if (step >= steps * (ring + 1) / F::kRings) continue;
                    auto& place = at[ring];
                    auto& stage = memory.stages[ring][place.stage];
                    Barrier* const full = &memory.full[ring][place.stage];
                    // Barrier: the stage is filled again after its readers have left it.
                    if (refills[ring]) wait_for(&memory.empty[ring][place.stage], place.parity ^ 1);
                    arrive_expecting(full, sizeof(stage));
                    copy_tile_of(tile.expert, stage.weights, weights, step * (kTileStep / 2), tile.piece * F::kColumns,
                                 full);
#pragma unroll
                    for (int box = 0; box < kBoxes; ++box)
                        copy_tile(stage.rows[box], rows, step * kTileStep * 2 + box * kRowOfStage, tile.row, full);
                    place.advance();
                    refills[ring] |= place.stage == 0;
                }
            }
        }
        __syncwarp();
    }
}

// staged: sums of kStored rows, by one warpgroup or one for each part of K. By `threads` threads.
template <class F>
__device__ inline void store_rows(const Args& a, const grouped::Tile& tile, const float* staged, int first,
                                  int64_t column, int thread, int threads) {
    gemm::Bias bias = a.bias;
    if (bias.data)
        bias.data = offset(bias.data, tile.expert * a.bias_group_stride * (bias.dtype == DType::f32 ? 4 : 2));
    for (int i = thread; i < F::kStored * kSixtyFour; i += threads) {
        const int in_part = i / kSixtyFour, of = i % kSixtyFour, m = tile.row + first + in_part;
        const int64_t n = column + of;
        if (m >= tile.end || n >= a.n) continue;
        float v = 0;
#pragma unroll
        for (int part = 0; part < (F::kPartEach ? kParts : 1); ++part)
            v += staged[(part * F::kStored + in_part) * kStagedRow + of];
        v *= kLifted;
        if (a.scale_a.data) v *= gemm::scale_at(a.scale_a, source_of(a, m));
        if (bias.data) v += gemm::bias_at(bias, n);  // without one, -0 stays -0
        gemm::put(a.out, m * a.out.row_stride + n, v);
    }
}

template <class F>
__device__ inline void make_tiles(typename F::Memory& memory, const Args& a, int pieces, int tiles, int warpgroup) {
    const int steps = int((a.k + kTileStep - 1) / kTileStep), groups = int(a.groups);
    const int first_part = F::kPartEach ? warpgroup : 0, end_part = F::kPartEach ? warpgroup + 1 : kParts;
    const auto begin_of = [&](int part) { return steps * part / kParts; };
    // Parts may be empty.
    const int first_step = begin_of(first_part), lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp % 4;
    Multiplier<F> multiplier(memory, warpgroup);
    uint32_t exponents[2][2];
    int t = blockIdx.x;
    if (t >= tiles) return;
    grouped::Tile tile = grouped::tile_at<F::kRows>(memory.row_tiles, groups, pieces, t);
    const auto exponents_of = [&](const grouped::Tile& of) {
        return Exponents(a, of, int64_t(of.piece) * F::kColumns + multiplier.column());
    };
    Exponents own = exponents_of(tile);
    own.read(a, first_step, exponents);
    for (; t < tiles; t += gridDim.x) {
        const grouped::Tile following =
            t + int(gridDim.x) < tiles ? grouped::tile_at<F::kRows>(memory.row_tiles, groups, pieces, t + gridDim.x)
                                       : tile;
        const Exponents next = exponents_of(following);
        float sums[F::kGroups][4] = {}, total[F::kGroups][4] = {};
        for (int part = first_part; part < end_part; ++part) {
            const int begin = begin_of(part), end = begin_of(part + 1);
            if (begin == end) continue;
            const bool last = part + 1 == end_part;
            Exponents then = own;
            if (last) then = next;
            multiplier.multiply(a, begin, end, own, then, last ? first_step : end, exponents, sums);
            if constexpr (!F::kPartEach) {
#pragma unroll
                for (int i = 0; i < F::kGroups; ++i)
                    for (int e = 0; e < 4; ++e) total[i][e] += sums[i][e];
            }
        }
        const int64_t column = int64_t(tile.piece) * F::kColumns + (F::kPartEach ? 0 : warpgroup * kSixtyFour);
        float* const staged = &memory.staged[F::kPartEach ? 0 : warpgroup][0][0];
        const int live = tile.end - tile.row;
        const auto meet = [&] {
            if constexpr (F::kPartEach) warpgroups_meet<F::kWarpgroups * kWarpgroup>(1);
            else warpgroup_meets(1 + warpgroup);
        };
#pragma unroll
        for (int first = 0; first < F::kRows; first += F::kStored) {
            if (first >= live) break;
            // Barrier: what was staged before has been read.
            meet();
            float* const mine = F::kPartEach ? staged + warpgroup * F::kStored * kStagedRow : staged;
#pragma unroll
            for (int i = 0; i < F::kStored / 8; ++i) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float v = F::kPartEach ? sums[first / 8 + i][e] : total[first / 8 + i][e];
                    mine[(8 * i + lane % 4 * 2 + e % 2) * kStagedRow + warp * 16 + lane / 4 + e / 2 * 8] = v;
                }
            }
            // Barrier: other threads read it.
            meet();
            const int threads = F::kPartEach ? F::kWarpgroups * kWarpgroup : kWarpgroup;
            const int thread = int(threadIdx.x) - kWarpgroup - (F::kPartEach ? 0 : warpgroup * kWarpgroup);
            store_rows<F>(a, tile, staged, first, column, thread, threads);
        }
        tile = following, own = next;
    }
}

template <int kRows>
__global__ __launch_bounds__(Form<kRows>::kThreads, 1) void mx_gemm_tiles(Args a,
                                                                          const __grid_constant__ CUtensorMap weights,
                                                                          const __grid_constant__ CUtensorMap rows,
                                                                          int pieces) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using F = Form<kRows>;
    auto& memory = dynamic_shared<typename F::Memory>();
    if (threadIdx.x == 0) {
        for (int ring = 0; ring < F::kRings; ++ring) {
            for (int stage = 0; stage < F::kStages; ++stage) {
                make_barrier(&memory.full[ring][stage], 1);
                make_barrier(&memory.empty[ring][stage], F::kWarpgroups / F::kRings * (kWarpgroup / kWarp));
            }
        }
        publish_barriers();
        fetch_map(&weights);
        fetch_map(&rows);
    }
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may write what this one reads
    // Its barriers close: mbarriers are used below by threads that did not initialise them.
    grouped::make_row_tiles<kRows>(memory.row_tiles, a);
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

inline bool tma_takes(const Args& a) {
    const auto fits = [](int64_t stride) { return stride % 16 == 0 && stride < int64_t(1) << 40; };
    return reinterpret_cast<uintptr_t>(a.b.data) % 16 == 0 &&
           (a.n == 1 || (fits(a.b.row_stride) && a.b.row_stride >= a.k / 2)) &&
           (a.groups == 1 || (fits(a.b.group_stride) && a.b.group_stride >= a.k / 2)) && a.n < int64_t(1) << 31 &&
           a.k < int64_t(1) << 30 && a.m < int64_t(1) << 31;
}

// Whether it is for these operands, on this chip.
inline bool tiles_fit(const Args& a, const Chip& chip) {
    constexpr int64_t kMostGroupsOfOrder = 65535;
    return chip.capability == 90 && a.format_b == DType::e2m1 && !of_blocks(a.scale_a) &&
           (a.format_a == DType::bf16 || is_fp8(a.format_a)) && tma_takes(a) &&
           ceil_div(a.k, kOrdered) <= kMostGroupsOfOrder;
}

template <int kRows>
Status launch_form(const Args& a, const CUtensorMap& weights, const CUtensorMap& rows, const Chip& chip,
                   const Executor& on) {
    using F = Form<kRows>;
    static AllowedDevices allowed;
    constexpr int kBytes = int(sizeof(typename F::Memory));
    const int64_t pieces = ceil_div(a.n, F::kColumns), tiles = most_row_tiles(a, kRows) * pieces;
    if (tiles > kMaxCtas / grouped::kBand) return {"a and b have more rows than one launch takes"};
    if (const Status s = allow_shared_bytes(mx_gemm_tiles<kRows>, kBytes, chip, &allowed); !s.ok()) return s;
    const int64_t ctas = tiles < chip.multiprocessors ? tiles : chip.multiprocessors;
    return launch_kernel(mx_gemm_tiles<kRows>, chip, {ctas, F::kThreads, 1, kBytes}, on, a, weights, rows, int(pieces));
}

inline Status launch_tiles(const Args& a, const Chip& chip, const Executor& on) {
    const int64_t across = ceil_div(a.k, kOrdered), stride = across * kOrdered * 2;
    auto* const ordered = static_cast<uint8_t*>(on.scratch(on.context, a.m * stride));
    if (!ordered) return {"no memory for the ordered rows"};
    const int height = a.expected <= 16 ? 16 : a.expected <= 32 ? 32 : a.expected <= 64 ? 64 : 128;
    CUtensorMap weights, rows;
    const ByteMatrix of_weights{a.b.data,    a.n,
                                a.k / 2,     a.b.row_stride,
                                kRowOfStage, height <= 32 ? 64 : 128,
                                a.groups,    a.groups > 1 ? a.b.group_stride : 0};
    if (!describe(&weights, of_weights) || !describe(&rows, {ordered, a.m, stride, stride, kRowOfStage, height}))
        return {"TMA does not take the operands"};
    constexpr int kPerUnit = 8, kWarpsOfOrder = kOrderThreads / kWarp;
    const int64_t down = ceil_div(a.m, kWarpsOfOrder), most = int64_t(chip.multiprocessors) * kPerUnit / across;
    const int64_t ctas = across * (down <= most ? down : most > 0 ? most : 1);
    const auto order = is_fp8(a.format_a) ? mx_gemm_order<true> : mx_gemm_order<false>;
    if (const Status s = launch_kernel(order, chip, {ctas, kOrderThreads}, on, a, ordered, stride); !s.ok()) return s;
    const auto start = [&](auto launch) { return launch(a, weights, rows, chip, on); };
    return start(height == 16   ? launch_form<16>
                 : height == 32 ? launch_form<32>
                 : height == 64 ? launch_form<64>
                                : launch_form<128>);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
