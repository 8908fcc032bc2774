// The kernel of caches of FP8 codes (Hopper): tokens and columns are the wide operand, rows (queries * heads) the
// narrow one. So codes go from shared memory to registers, become float16 there, and are multiplied: nothing decoded
// is stored, and 16 rows cost no more than 16 rows.
//
//     scores  [64 tokens, rows]    = codes [64, 576] * q^T      a lane reads 16 codes of a token: four of each step's k
//     sums    [512 columns, rows] += codes^T [512, 64] * p^T    transposing reads of pairs of codes; one permutation
//                                                               makes neighbours of the same column of two tokens
//
// k is taken in the order in which lanes have codes; the queries are stored in that order (fp8_feed.h). Of two columns
// 2 g and 2 g + 1 lane g has rows g and g + 8 of the multiplication.
#pragma once

#include "fp8_feed.h"
#include "fp8_rows.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

__device__ inline uint4 read_codes(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

template <Format format, DType type, int kRows>
class Fp8Attend : Fp8Rows<format, type, kRows> {
    using Base = Fp8Rows<format, type, kRows>;
    using Base::kGroups;
    using Base::kMath;
    using Base::kMixed;
    using Base::l;
    using Base::member;
    using Base::pair;
    using Base::shared;
    using Base::team;
    using Base::token;
    using Base::w;
    using Base::warp;
    using typename Base::Memory;
    using typename Base::Roles;
    static constexpr int kSteps = 4;  // of a panel of queries, and of a tile's tokens
    static constexpr int kBlocks = kLatent / kWgmmaRows / Roles::kTeam;  // of 64 columns
    using Operand = uint32_t[kSteps][4];

  public:
    __device__ Fp8Attend(Memory& shared, const Launch& l, const Work& w) : Base(shared, l, w) {
#pragma unroll
        for (auto& block : sums)
            for (auto& group : block)
                for (float& v : group) v = 0;
    }

    __device__ void all_tiles() {
        const int tiles = (w.end - w.begin + kTileTokens - 1) / kTileTokens;
        for (int tile = team() * Roles::kTeam; tile < tiles; tile += Roles::kWarpgroups) team_tiles(tile, tiles);
    }

    __device__ void finish() {
        float by[kGroups][2];
        this->meet_sums(by);
#pragma unroll
        for (auto& block : sums) scale_columns(block, by);
        static_assert((Roles::kTeams - 1) * sizeof(sums) * kWarpgroup <= sizeof(shared.codes));
        float4* const others = reinterpret_cast<float4*>(shared.codes) + threadIdx.x % kWarpgroup;
        constexpr int kVectors = kBlocks * kGroups;
        if constexpr (Roles::kTeams > 1) {
            if (team() > 0) {
#pragma unroll
                for (int i = 0; i < kVectors; ++i) {
                    const float (&v)[4] = sums[i / kGroups][i % kGroups];
                    others[((team() - 1) * kVectors + i) * kWarpgroup] = {v[0], v[1], v[2], v[3]};
                }
            }
            // Barrier: all teams' sums are there.
            warpgroups_meet(kAllMeet, Roles::kMultiplying);
            if (team() > 0) return;
#pragma unroll
            for (int other = 0; other < Roles::kTeams - 1; ++other) {
#pragma unroll
                for (int i = 0; i < kVectors; ++i) {
                    const float4 add = others[(other * kVectors + i) * kWarpgroup];
                    float (&v)[4] = sums[i / kGroups][i % kGroups];
                    v[0] += add.x, v[1] += add.y, v[2] += add.z, v[3] += add.w;
                }
            }
        }
        store();
    }

  private:
    __device__ static int stage_of(int tile) { return tile % Roles::kStages; }
    __device__ void wait_for_tile(int tile) const {
        wait_for(&shared.full[tile % Roles::kArrivals], tile / Roles::kArrivals & 1);
    }

    // Tiles `first` and, with two warpgroups, the next one.
    __device__ void team_tiles(int first, int tiles) {
        const int mine = first + member();
        if (mine < tiles) {
            const int begin = w.begin + mine * kTileTokens;
            wait_for_tile(mine);
            if (begin + kTileTokens > w.end) clear_behind(mine, w.end - begin);
            float scores[kGroups][4];
            multiply_keys(scores, stage_of(mine));
            this->scale_and_mask(scores, begin);
            // Barrier: largest scores are there.
            this->team_meets();
            take_largest(tiles - first);
            this->put_exponentials(scores);
        } else {
            // Barrier: the same.
            this->team_meets();
            take_largest(tiles - first);
        }
        publish_to_multiplications();
        // Barrier: p is there, and what lay behind the end is gone. The largest scores have been read.
        this->team_meets();
#pragma unroll
        for (int i = 0; i < Roles::kTeam; ++i) {
            const int tile = first + i;
            if (tile >= tiles) break;
            if (i != member()) wait_for_tile(tile);
            multiply_values(tile, shared.p[team() * Roles::kTeam + i]);
        }
    }

    __device__ void take_largest(int tiles) {
        float by[kGroups][2];
        if (!Base::take_largest(tiles, by)) return;
#pragma unroll
        for (auto& block : sums) scale_columns(block, by);
    }

    // Columns of tokens behind the end are multiplied by p = 0, and may be NaN. A warp clears the tokens whose scores it
    // makes; other warps read them as values, behind the team's barrier.
    __device__ void clear_behind(int tile, int tokens) {
        const int stage = stage_of(tile), lane = threadIdx.x % kWarp;
        for (int row = max(tokens, warp * 16) + lane / kRowLanes; row < warp * 16 + 16; row += kWarp / kRowLanes) {
#pragma unroll
            for (int panel = 0; panel < kRopeCodes; ++panel)
                reinterpret_cast<uint4*>(shared.codes[stage][panel] + row * kPanelRow)[lane % kRowLanes] = {0, 0, 0, 0};
            if (kMixed && lane % kRowLanes == 0) *reinterpret_cast<uint4*>(shared.scales[stage][row]) = {0, 0, 0, 0};
        }
        __syncwarp();
    }

    __device__ static void multiply(float (&d)[kGroups][4], const uint32_t (&a)[4], uint32_t b, bool add) {
        if constexpr (kMath == DType::bf16) multiply_bf16_async(d, a, b, add);
        else multiply_f16_async(d, a, b, add);
    }

    // Panel n of the queries by the numbers that go with it. Lane `pair` has 16 of tokens `token` and token + 8.
    __device__ void multiply_keys(float (&scores)[kGroups][4], int stage) {
        const uint32_t row = warp * 16 + token, q = swizzled_rows(shared.q);
        const uint32_t rows = shared_address(shared.codes[stage]) + row * kPanelRow;
        const auto read = [&](int n, int half) {
            const int sixteen = n >= kRopePanel && !kMixed ? pair : 2 * pair + n % 2;
            return read_codes(rows + half * 8 * kPanelRow + n / 2 * kPanelBytes + ((sixteen ^ token) << 4));
        };
        uint4 held[2] = {read(0, 0), read(0, 1)};
        Operand a[2];
#pragma unroll
        for (int n = 0; n < kPanels; ++n) {
            // Barrier: the multiplications before the last ones have read these registers.
            if (n >= 2) wait_for_multiplications<1>();
            Operand& now = a[n % 2];
            if (kMixed && n == kRopePanel) {
                // Numbers of 16 bits: twice the bytes.
                const uint4 more[2] = {read(n + 1, 0), read(n + 1, 1)};
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint4 first = from_bf16<type>(held[half]), second = from_bf16<type>(more[half]);
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        now[i / 2][i % 2 * 2 + half] = word(first, i),
                                               now[2 + i / 2][i % 2 * 2 + half] = word(second, i);
                }
            } else {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float scale = kMixed ? shared.scales[stage][row + 8 * half][n / 2] : 1.0f;
#pragma unroll
                    for (int s = 0; s < kSteps; ++s) {
                        const uint2 four = decoded<kMath, kMixed>(word(held[half], s), scale);
                        now[s][half] = four.x, now[s][2 + half] = four.y;
                    }
                }
            }
            if (n + 1 < kPanels) held[0] = read(n + 1, 0), held[1] = read(n + 1, 1);
            begin_multiplications();
#pragma unroll
            for (int s = 0; s < kSteps; ++s)
                multiply(scores, now[s], further(q, n * int(sizeof(shared.q[0])) + s * 32), n + s > 0);
            commit_multiplications();
        }
        wait_for_multiplications<0>();
    }

    // 64 tokens' codes of 16 columns a warp, block after block.
    __device__ void multiply_values(int tile, const uint8_t* p) {
        const int lane = threadIdx.x % kWarp;
        const uint32_t rows = shared_address(shared.codes[stage_of(tile)]) + lane * kPanelRow;
        const uint32_t p_rows = swizzled_rows(p);
        const auto panel_of = [&](int block) { return (member() * kBlocks + block) / 2; };
        const auto place = [&](int block) {
            return rows + panel_of(block) * kPanelBytes + ((block % 2 * 4 + warp ^ (lane & 7)) << 4);
        };
        const float* const scales = kMixed ? shared.scales[stage_of(tile)][2 * pair] : nullptr;
        uint32_t held[2][4];
        read_transposed(held[0], place(0));
        read_transposed(held[1], place(0) + kWarp * kPanelRow);
        Operand a[2];
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            // Barrier: the multiplications before the last ones have read these registers.
            if (block >= 2) wait_for_multiplications<1>();
            Operand& now = a[block % 2];
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    // Of columns c, c + 1 and tokens t, t + 1: c of both, then c + 1 of both.
                    Four both = widen(__byte_perm(held[s / 2][s % 2 * 2 + i], 0, 0x3120));
                    if constexpr (kMixed) {
                        const float* const scale = scales + (s * 16 + i * 8) * kScaleGroups + panel_of(block);
                        const float2 of_tokens = {scale[0], scale[kScaleGroups]};
                        both = {scaled_pair<kMath>(both.low, of_tokens), scaled_pair<kMath>(both.high, of_tokens)};
                    }
                    now[s][2 * i] = both.low, now[s][2 * i + 1] = both.high;
                }
            }
            if (block + 1 < kBlocks) {
                read_transposed(held[0], place(block + 1));
                read_transposed(held[1], place(block + 1) + kWarp * kPanelRow);
            }
            begin_multiplications();
#pragma unroll
            for (int s = 0; s < kSteps; ++s) multiply(sums[block], now[s], further(p_rows, s * 32), true);
            commit_multiplications();
        }
        // Barrier: the warp has read the tile.
        __syncwarp();
        arrive_if(lane == 0, &shared.empty[stage_of(tile)]);
        wait_for_multiplications<0>();
    }

    __device__ static void scale_columns(float (&block)[kGroups][4], const float (&by)[kGroups][2]) {
#pragma unroll
        for (int n = 0; n < kGroups; ++n)
            block[n][0] *= by[n][0], block[n][1] *= by[n][1], block[n][2] *= by[n][0], block[n][3] *= by[n][1];
    }

    // The result or a split's part. A lane has columns 2 `token` and 2 `token` + 1 of each 16.
    __device__ void store() const {
        const bool split = l.partial.splits > 1;
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int64_t at = this->place_of(this->row_of(n, c));
                if (at < 0) continue;
                const int64_t column = at * kLatent + member() * kBlocks * kWgmmaRows + warp * 16 + 2 * token;
#pragma unroll
                for (int block = 0; block < kBlocks; ++block) {
                    const float2 v = {sums[block][n][c], sums[block][n][c + 2]};
                    const int64_t to = column + block * kWgmmaRows;
                    if (split) *reinterpret_cast<float2*>(l.partial.out + to) = v;
                    else static_cast<uint32_t*>(l.args.out)[to / 2] = Pairs<type>::round(v);
                }
            }
        }
    }

    float sums[kBlocks][kGroups][4];
};

template <Format format, DType type, int kRows>
__global__ __launch_bounds__(Fp8Roles<format, kRows>::kThreads, 1) void mla_decode_fp8(
    const __grid_constant__ Launch l, const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Roles = Fp8Roles<format, kRows>;
    auto& shared = dynamic_shared<Fp8Memory<format, kRows>>();
    if (threadIdx.x == 0) {
        for (Barrier& full : shared.full) make_barrier(&full, arrivals<format>(l));
        for (Barrier& empty : shared.empty) make_barrier(&empty, Roles::kTeam * kWarpsOfWarpgroup);
        publish_barriers();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    const Work w = work_of<kTileTokens>(l, kRows, blockIdx.x);
    // The merge knows that this one has left nothing.
    if (l.partial.splits > 1 && w.begin >= w.end) return;
    // Barrier: mbarriers are used below by threads that did not initialise them.
    __syncthreads();
    if (threadIdx.x >= Roles::kMultiplying) {
        leave_registers<Roles::kFewRegisters>();
        if (threadIdx.x < Roles::kMultiplying + kWarp) feed_tiles(shared, l, &map, w);
        return;
    }
    take_registers<Roles::kManyRegisters>();
    feed_narrow_queries<type, Roles::kMultiplying>(shared, l, w, threadIdx.x);
    // Barrier: the queries are there.
    warpgroups_meet(kAllMeet, Roles::kMultiplying);
    Fp8Attend<format, type, kRows> attend(shared, l, w);
    attend.all_tiles();
    attend.finish();
#endif
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
