// The kernel for FP8 caches, queries of bfloat16 and many rows (Hopper): all is multiplied as FP8, codes as they are.
//
//     scores  [64 rows, 64 tokens]   = (larger + smaller terms of q) [64, 576] * codes [64, 576]^T   both from shared memory
//     sums    [256 columns, 64 rows] += codes^T [256, 64] * (larger + smaller terms of p) [64, 64]^T    a warpgroup's half
//
// FP8 is multiplied at twice the rate of 16 bits, so two terms take as long as one number of 16 bits, and no code is
// decoded. Codes are the second multiplication's wide operand, from registers, as in fp8_attend.h: the instruction takes
// FP8 operands by k alone, and tokens are not neighbours in shared memory.
//
// Tiles belong to the warpgroups by turns, and all sums need p of all tiles:
//
//     warpgroup 0   | keys 0 | p 0  | values 0 | keys 2 | values 1 | p 2  | values 2 | keys 4 ...
//     warpgroup 1   |        | keys 1 | values 0 | p 1  | values 1 | keys 3 | values 2 | p 3  ...
//
// So one makes scores while the other takes exponentials. References pass from tile to tile as in attend.h. Both
// warpgroups run the same code: that of two does not fit into the instruction cache (batch 128, 512 tokens: 96 us, not 61).
#pragma once

#include "codes.h"
#include "terms_feed.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

__device__ inline void store_word(uint32_t at, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

// What reads or writes these registers stays on its side of the next multiplication's begin.
template <class T>
__device__ inline void settle(T& groups) {
#pragma unroll
    for (auto& group : groups) {
#pragma unroll
        for (auto& v : group) {
            if constexpr (std::is_same_v<std::remove_reference_t<decltype(v)>, float>)
                asm volatile("" : "+f"(v)::"memory");
            else asm volatile("" : "+r"(v)::"memory");
        }
    }
}

class TermsAttend {
    // p is at most 2^(kLift + kSlack): e4m3 ends at 448.
    static constexpr float kSlack = 2.8, kLift = 6;
    static constexpr int kBlocks = kLatent / 2 / kWgmmaRows, kSteps = kTileTokens / kWgmmaK, kGroups = kTileRows / 8;
    static constexpr int kRowHalves = 2, kHalfGroups = kGroups / kRowHalves;  // of a block's rows
    static constexpr int kOwnMeets = 5;                                       // barriers of one warpgroup
    using Product = float[kGroups][4];

  public:
    // own: the warpgroup. Its thread has rows `row` and row + 8 of scores.
    __device__ TermsAttend(TermsMemory& shared, const Launch& l, const Work& w, int own)
        : shared(shared), own(own), row(threadIdx.x / kWarp % kWarpsOfWarpgroup * 16 + threadIdx.x % kWarp / 4) {
        least_seen = l.args.causal ? max(0, w.length - l.args.queries + 1) : w.length;
#pragma unroll
        for (auto& block : sums)
            for (auto& group : block)
                for (float& v : group) v = 0;
    }

    // base: tiles of the CTA's work before.
    __device__ void all_tiles(const Launch& l, const Work& w, uint32_t base) {
        const int tiles = (w.end - w.begin + kTileTokens - 1) / kTileTokens;
#pragma unroll 1
        for (int tile = own; tile <= tiles; tile += kBuffers) {
            const bool has = tile < tiles;
            Product scores;
            float largest[2];
            if (has) {
                const int begin = w.begin + tile * kTileTokens;
                multiply_keys(scores, base + tile);
                if (begin + kTileTokens > w.end) clear_behind(base + tile, w.end - begin);
                scale_and_mask(scores, begin, largest, l, w);
            }
            // Values of the tile before, the other warpgroup's; then p and values of the own one.
#pragma unroll 1
            for (int step = tile == 0; step < 1 + has; ++step) {
                if (step == 0) {
                    // Barrier: the other warpgroup's p is there.
                    warpgroups_meet(kOfFirst + 1 - own, kMultiplyingThreads);
                    follow();
                } else {
                    take_exponentials(scores, largest);
                }
                multiply_values((tile - 1 + step) % kBuffers, base + tile - 1 + step);
            }
        }
    }

    // Both warpgroups' sums of p, then the result or its part. turn: of the CTA's pieces of work, 0 and 1.
    __device__ void finish(const Launch& l, const Work& w, uint32_t turn) {
        const Args& a = l.args;
        float (&totals)[kBuffers][kTileRows] = shared.totals[turn];
        const int pair = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float total = sum_of_row(rows[i].sum);
            if (pair == 0) totals[own][row + 8 * i] = total;
        }
        // Barrier: the other warpgroup's sums are there.
        warpgroups_meet(kTotalsMeet, kMultiplyingThreads);
        // Rows of the tile follow each other in the result, or in a split's part.
        const bool split = l.partial.splits > 1;
        const int64_t place = split ? l.partial.row(w.b, w.split, a.rows(), w.row) : w.b * a.rows() + w.row;
        const int inside = a.rows() - w.row;
        float* const lse = split ? l.partial.lse : a.lse;
        if (own == 0 && pair == 0 && lse) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float all = totals[0][row + 8 * i] + totals[1][row + 8 * i];
                if (row + 8 * i < inside)
                    lse[place + row + 8 * i] = all == 0 ? kNoScore : (rows[i].reference - kLift) * kLn2 + __logf(all);
            }
        }
        const float scale = load_float(a.cache.scale);
        const int64_t to = (place + 2 * pair) * kLatent + own * kLatent / 2 + warp() * 16 + threadIdx.x % kWarp / 4 * 2;
        if (split) {
            store(inside, totals, scale,
                  [&](int at, float2 v) { *reinterpret_cast<float2*>(l.partial.out + to + at) = v; });
        } else {
            store(inside, totals, scale, [&](int at, float2 v) {
                static_cast<uint32_t*>(a.out)[(to + at) / 2] = Pairs<DType::bf16>::round(v);
            });
        }
    }

  private:
    __device__ static int warp() { return threadIdx.x / kWarp % kWarpsOfWarpgroup; }
    __device__ static int stage_of(uint32_t tile) { return tile % kTermsStages; }

    // The instruction keeps 13 bits of what it adds up: so the smaller terms are first, and panels have sums of their own,
    // which are added while the next panels are multiplied.
    __device__ void multiply_keys(Product& scores, uint32_t tile) {
        const uint32_t q = swizzled_rows(shared.q), codes = swizzled_rows(shared.codes[stage_of(tile)]);
        Product products[2];
        wait_for(&shared.full[stage_of(tile)], tile / kTermsStages & 1);
        multiply_panel(scores, q, codes, 0);
#pragma unroll
        for (int panel = 1; panel < kCodePanels; ++panel) {
            multiply_panel(products[panel % 2], q, codes, panel);
            if (panel == 1) continue;
            wait_for_multiplications<1>();
            add(scores, products[(panel - 1) % 2]);
        }
        wait_for_multiplications<0>();
        add(scores, products[(kCodePanels - 1) % 2]);
    }
    __device__ static void multiply_panel(Product& product, uint32_t q, uint32_t codes, int panel) {
        const bool rope = panel == kLargerPanels;
        const int larger = (rope ? kQueryPanels - 1 : panel) * kPanelBytes;
        const int smaller = rope ? larger + kSmallerAt : larger + kLargerPanels * kPanelBytes;
        const int bytes = rope ? kSmallerAt : kPanelRow;
        begin_multiplications();
#pragma unroll
        for (int k = 0; k < bytes; k += kWgmmaK)
            multiply_async(product, further(q, smaller + k), further(codes, panel * kPanelBytes + k), k > 0);
#pragma unroll
        for (int k = 0; k < bytes; k += kWgmmaK)
            multiply_async(product, further(q, larger + k), further(codes, panel * kPanelBytes + k), true);
        commit_multiplications();
    }
    __device__ static void add(Product& scores, Product& product) {
        settle(product);
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) scores[n][e] += product[n][e];
        }
        settle(scores);
    }

    // Columns of tokens behind the end are multiplied by p = 0, and may be NaN.
    __device__ void clear_behind(uint32_t tile, int tokens) {
        const int thread = threadIdx.x % kWarpgroup;
        CodeTile& codes = shared.codes[stage_of(tile)];
        // Barrier: all four warps' multiplications have read them.
        warpgroup_meets(kOwnMeets + own);
        for (int token = tokens + thread / kRowLanes; token < kTileTokens; token += kWarpgroup / kRowLanes) {
#pragma unroll
            for (int panel = 0; panel < kRopeCodes; ++panel)
                reinterpret_cast<uint4*>(codes[panel] + token * kPanelRow)[thread % kRowLanes] = {0, 0, 0, 0};
        }
    }

    // largest: of the thread's rows.
    __device__ void scale_and_mask(Product& scores, int first, float (&largest)[2], const Launch& l, const Work& w) {
        const float factors[2] = {shared.of_scores[row], shared.of_scores[row + 8]};
#pragma unroll
        for (auto& group : scores) {
#pragma unroll
            for (int e = 0; e < 4; ++e) group[e] *= factors[e / 2];
        }
        if (first + kTileTokens > least_seen) mask(scores, first, l, w);
        largest[0] = largest[1] = kNoScore;
#pragma unroll
        for (const auto& group : scores) {
#pragma unroll
            for (int e = 0; e < 4; ++e) largest[e / 2] = fmaxf(largest[e / 2], group[e]);
        }
#pragma unroll
        for (float& v : largest) v = max_of_row(v);
    }
    __device__ void mask(Product& scores, int first, const Launch& l, const Work& w) const {
        int own_row = w.row + row;
        asm volatile("" : "+r"(own_row));  // what follows from it is rare, and no loop's constant
        const int column = first + 2 * (threadIdx.x % 4);
        const int seen[2] = {seen_by_row(l, w, own_row), seen_by_row(l, w, own_row + 8)};
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (column + 8 * n + e % 2 >= seen[e / 2]) scores[n][e] = kNoScore;
        }
    }

    // Scores of the own tile become p, for both warpgroups. Of each 16 tokens a lane has two and the two that are 8 further
    // on: in this order they are k of the multiplication, and codes come in the same order.
    __device__ void take_exponentials(const Product& scores, const float (&largest)[2]) {
        bool changes = false;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float factor = rows[i].refer_to(largest[i], kSlack);
            changes |= factor != 1.0f;
            if (threadIdx.x % 4 == 0) {
                shared.reference[own][row + 8 * i] = rows[i].reference;
                shared.factors[own][row + 8 * i] = factor;
            }
        }
        changes = __any_sync(kWholeWarp, changes);
        if (threadIdx.x % kWarp == 0) shared.changed[own][warp()] = changes;
        uint32_t place = shared_address(shared.p[own]) + swizzled(row, 0) + threadIdx.x % 4 * 4;
        asm volatile("" : "+r"(place));  // else each store has its address in a register of its own
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float base = base_of(rows[i].reference, kLift);
#pragma unroll
            for (int sixteen = 0; sixteen < kTileTokens / 16; ++sixteen) {
                Terms eight[2];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float (&s)[4] = scores[2 * sixteen + h];
                    const float2 e = {exp2_of(s[2 * i] - base), exp2_of(s[2 * i + 1] - base)};
                    rows[i].sum += e.x + e.y;
                    eight[h] = terms_of_p(e);
                }
                const uint32_t at = place ^ sixteen << 4;
                store_word(at + 8 * i * kPanelRow, eight[0].larger | eight[1].larger << 16);
                store_word((at ^ kSmallerAt) + 8 * i * kPanelRow, eight[0].smaller | eight[1].smaller << 16);
            }
        }
        publish_to_multiplications();
        // Barrier: p is there, of all four warps.
        warpgroup_meets(kOwnMeets + own);
        warpgroup_arrives(kOfFirst + own, kMultiplyingThreads);
    }

    // The other warpgroup's references.
    __device__ void follow() {
#pragma unroll
        for (int i = 0; i < 2; ++i) rows[i].refer_to(shared.reference[1 - own][row + 8 * i], 0);
    }

    // p of warpgroup `of` times the values of its tile, of the own columns: blocks of 64 by halves of 32 rows. A half's
    // products are added to the sums while the next half is multiplied.
    __device__ void multiply_values(int of, uint32_t tile) {
        rescale(of);
        const uint32_t p = swizzled_rows(shared.p[of]);
        uint32_t codes[2][kSteps][4], held[kSteps][4];
        float products[2][kHalfGroups][4];
        read_values(held, tile, 0);
        gather(codes[0], held);
#pragma unroll
        for (int i = 0; i <= kBlocks * kRowHalves; ++i) {
            const int block = i / kRowHalves;
            const bool more = i % kRowHalves == 0 && block + 1 < kBlocks;
            if (i < kBlocks * kRowHalves) {
                auto& product = products[i % 2];
                const auto& a = codes[block % 2];
                const uint32_t rows = further(p, i % kRowHalves * kPanelBytes / kRowHalves);
                begin_multiplications();
#pragma unroll
                for (int s = 0; s < kSteps; ++s)
                    multiply_e5m2_async(product, a[s], further(rows, kSmallerAt + s * kWgmmaK), s > 0);
#pragma unroll
                for (int s = 0; s < kSteps; ++s) multiply_async(product, a[s], further(rows, s * kWgmmaK), true);
                commit_multiplications();
                if (more) read_values(held, tile, block + 1);
            }
            if (i == kBlocks * kRowHalves) wait_for_multiplications<0>();
            else if (i > 0) wait_for_multiplications<1>();
            // Barrier: the multiplications of the block before have read these registers.
            if (more) gather(codes[(block + 1) % 2], held);
            if (i > 0) add_half(products[(i - 1) % 2], i - 1);
        }
        // Barrier: the warp has read the tile.
        __syncwarp();
        arrive_if(threadIdx.x % kWarp == 0, &shared.empty[stage_of(tile)]);
    }
    __device__ void add_half(float (&product)[kHalfGroups][4], int i) {
        auto& block = sums[i / kRowHalves];
        settle(product);
#pragma unroll
        for (int n = 0; n < kHalfGroups; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) block[i % kRowHalves * kHalfGroups + n][e] += product[n][e];
        }
        settle(block);
    }

    // 16 columns a warp of a block of 64, of all tokens.
    __device__ void read_values(uint32_t (&held)[kSteps][4], uint32_t tile, int block) const {
        const int lane = threadIdx.x % kWarp;
        const uint32_t panel = shared_address(shared.codes[stage_of(tile)][own * 2 + block / 2]);
        const uint32_t at = panel + lane * kPanelRow + ((block % 2 * 4 + warp() ^ (lane & 7)) << 4);
        read_transposed(held[0], at), read_transposed(held[1], at + kWarp * kPanelRow);
    }
    // Of columns c, c + 1 and tokens t, t + 1: c of four tokens, then c + 1 of them.
    __device__ static void gather(uint32_t (&codes)[kSteps][4], const uint32_t (&held)[kSteps][4]) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                codes[s][i] = __byte_perm(held[s][i], held[s][i + 1], 0x6420);
                codes[s][i + 1] = __byte_perm(held[s][i], held[s][i + 1], 0x7531);
            }
        }
        settle(codes);
    }

    // Sums so far, where warpgroup `of` has raised a reference.
    __device__ void rescale(int of) {
        const uint4 changed = *reinterpret_cast<const uint4*>(shared.changed[of]);
        if (!(changed.x | changed.y | changed.z | changed.w)) return;
#pragma unroll
        for (int i = 0; i < kWarpsOfWarpgroup; ++i) {
            if (word(changed, i) == 0) continue;
#pragma unroll
            for (int n = 2 * i; n < 2 * i + 2; ++n) {
                const float2 by = *reinterpret_cast<const float2*>(&shared.factors[of][8 * n + threadIdx.x % 4 * 2]);
#pragma unroll
                for (auto& block : sums)
                    block[n][0] *= by.x, block[n][1] *= by.y, block[n][2] *= by.x, block[n][3] *= by.y;
            }
        }
    }

    // A lane has rows 8 n + 2 (lane % 4) and + 1 of sums, columns 2 (lane / 4) and + 1 of each 16. inside: rows that there
    // are.
    template <class Put>
    __device__ void store(int inside, const float (&totals)[kBuffers][kTileRows], float scale, const Put& put) const {
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int of_tile = 8 * n + threadIdx.x % 4 * 2 + c;
                const float all = totals[0][of_tile] + totals[1][of_tile];
                const float by = all == 0 ? 0.0f : __fdividef(scale, all);
                if (of_tile >= inside) continue;
#pragma unroll
                for (int block = 0; block < kBlocks; ++block)
                    put((8 * n + c) * kLatent + block * kWgmmaRows,
                        {sums[block][n][c] * by, sums[block][n][c + 2] * by});
            }
        }
    }

    TermsMemory& shared;
    const int own, row;
    int least_seen;
    RowState rows[2];
    float sums[kBlocks][kGroups][4];
};

// All the CTA's work. As feed.h has it: splits without tokens are left out, and are known as such by the merge.
__device__ inline void attend_by_terms(TermsMemory& shared, const Launch& l) {
    const int own = __shfl_sync(kWholeWarp, int(threadIdx.x) / kWarpgroup, 0) - 1;
    uint32_t tiles = 0, turn = 0;
    for (uint32_t item = blockIdx.x; item < l.items; item += gridDim.x, turn ^= 1) {
        const Work w = work_of<kTileTokens>(l, kTileRows, item);
        if (w.begin >= w.end && l.partial.splits > 1) continue;
        // The queries before have been multiplied: both warpgroups have met since then.
        feed_terms(shared, l, w, threadIdx.x - kFeeders);
        // Barrier: the queries are there.
        warpgroups_meet(kQueriesMeet, kMultiplyingThreads);
        TermsAttend attend(shared, l, w, own);
        attend.all_tiles(l, w, tiles);
        attend.finish(l, w, turn);
        tiles += (w.end - w.begin + kTileTokens - 1) / kTileTokens;
    }
}

__global__ __launch_bounds__(kTilesThreads, 1) void mla_decode_terms(const __grid_constant__ Launch l,
                                                                     const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    auto& shared = dynamic_shared<TermsMemory>();
    if (threadIdx.x == 0) {
        for (Barrier& full : shared.full) make_barrier(&full, arrivals<Format::fp8>(l));
        for (Barrier& empty : shared.empty) make_barrier(&empty, kBuffers * kWarpsOfWarpgroup);
        publish_barriers();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    // Barrier: mbarriers are used below by threads that did not initialise them.
    __syncthreads();
    // The warpgroups that load are the first.
    if (threadIdx.x < kFeeders) {
        leave_registers<kTermsFewRegisters>();
        if (threadIdx.x < kWarp) feed_all_tiles(shared, l, &map);
    } else {
        take_registers<kTermsManyRegisters>();
        attend_by_terms(shared, l);
    }
#endif
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
