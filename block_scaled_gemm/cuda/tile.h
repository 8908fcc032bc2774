// The kernel for Hopper: the multiplying warpgroups, split-K's reduction, and the whole. See block_scaled_gemm.cu.
#pragma once

#include "../../common/cuda/half_pairs.h"
#include "../../common/cuda/shared_memory.h"
#include "feed.h"
#include "store.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

// Scales of a thread's two wide rows: of rows that multiply narrow rows with own scales, or times the scale of either
// block of narrow rows in which the tile lies.
template <class S>
struct ThreadScales {
    float of[S::kTwoBlocks ? 2 : 1][2];

    __device__ void read(const typename S::Factors& f, int row) {
        of[0][0] = f.wide[row], of[0][1] = f.wide[row + 8];
        if constexpr (!S::kSwapped) {
            const float2 blocks = *reinterpret_cast<const float2*>(f.narrow);
            if constexpr (S::kTwoBlocks) of[1][0] = of[0][0] * blocks.y, of[1][1] = of[0][1] * blocks.y;
            of[0][0] *= blocks.x, of[0][1] *= blocks.x;
        }
    }
};

// sums += scales * block, of one tile of 64 wide rows. Groups from kBeyond on lie in the next block of narrow rows.
template <class S, int kBeyond>
__device__ inline void add_scaled(float (&sums)[S::kGroups][4], const float (&block)[S::kGroups][4],
                                  const ThreadScales<S>& s, const float* narrow, int t) {
#pragma unroll
    for (int i = 0; i < S::kGroups; ++i) {
        const float (&v)[2] = s.of[S::kTwoBlocks && i >= kBeyond];
        float scale[4] = {v[0], v[0], v[1], v[1]};
        if constexpr (S::kSwapped) {
            const float2 own = *reinterpret_cast<const float2*>(narrow + 8 * i + 2 * t);
            scale[0] *= own.x, scale[1] *= own.y, scale[2] *= own.x, scale[3] *= own.y;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][e] = __fmaf_rn(scale[e], block[i][e], sums[i][e]);
    }
}

// Where a multiplying warpgroup is in the ring: with the descriptors of its operands, which to compute anew for each
// block would delay the multiplications.
template <class S>
struct Reading {
    Position<S::kStages> at;
    uint32_t wide, narrow;
    int row;  // of the tile: the thread's first

    __device__ explicit Reading(typename S::Memory& shared) {
        const int thread = threadIdx.x - kWarpgroup, lane = thread % kWarp;
        // The compiler keeps what is the same in all lanes, and with it descriptors, in uniform registers.
        const int first = __shfl_sync(kWholeWarp, thread / kWarpgroup, 0) * S::kTiles * kWgmmaRows;
        wide = swizzled_rows(shared.stages[0].wide[first]);
        narrow = swizzled_rows(shared.stages[0].narrow);
        row = first + thread / kWarp % 4 * 16 + lane / 4;
    }
    __device__ void advance() {
        at.advance();
        constexpr uint32_t kStep = further(0, sizeof(typename S::Stage)), kBack = 0u - (S::kStages - 1) * kStep;
        const uint32_t step = at.stage == 0 ? kBack : kStep;
        wide += step;
        narrow += step;
    }
};

// A tile's sums over this CTA's part of K.
template <class S, int kBeyond>
__device__ inline void multiply_tile(typename S::Memory& shared, const Part& part, Reading<S>& reading,
                                     float (&sums)[S::kTiles][S::kGroups][4]) {
    const int lane = threadIdx.x % kWarp, t = lane % 4;
#pragma unroll
    for (auto& tile : sums)
        for (auto& group : tile)
            for (float& v : group) v = 0;
    const Position<S::kStages>& at = reading.at;
    bool filled = completed(&shared.full[at.stage], at.parity);
    for (int step = 0; step < part.count; ++step) {
        if (!filled) wait_for(&shared.full[at.stage], at.parity);
        const typename S::Factors& factors = shared.factors[at.stage];
        const uint32_t narrow = reading.narrow, wide = reading.wide;
        Barrier* const empty = &shared.empty[at.stage];
        reading.advance();
        // Read before the multiplications begin: the compiler would read them between two of these.
        ThreadScales<S> scales[S::kTiles];
#pragma unroll
        for (int i = 0; i < S::kTiles; ++i) scales[i].read(factors, reading.row + i * kWgmmaRows);
#pragma unroll
        for (int i = 0; i < S::kTiles; ++i) {
            float block[S::kGroups][4];
            begin_multiplications();
#pragma unroll
            for (int k = 0; k < kBlock; k += kWgmmaK) {
                multiply_async(block, further(wide, i * kWgmmaRows * kBlock + k), further(narrow, k), k > 0);
            }
            commit_multiplications();
            wait_for_multiplications<0>();
            if (i + 1 == S::kTiles) {
                if (!S::kSwapped) {
                    // Closes: all lanes have read their scales, and the warp's multiplications have read the operands.
                    __syncwarp();
                    arrive_if(lane == 0, empty);
                }
                // Asked for while the sums are added. After the last block it is about the next tile's first.
                filled = completed(&shared.full[at.stage], at.parity);
            }
            add_scaled<S, kBeyond>(sums[i], block, scales[i], factors.narrow, t);
        }
        if (S::kSwapped) {
            // Closes: the same, of the narrow rows' scales.
            __syncwarp();
            arrive_if(lane == 0, empty);
        }
    }
}

// The same where the boundary between blocks of narrow rows is known at run time: a copy of the loop for each.
template <class S, int kBeyond = S::kGroups>
__device__ inline void multiply_tile_at(int beyond, typename S::Memory& shared, const Part& part, Reading<S>& reading,
                                        float (&sums)[S::kTiles][S::kGroups][4]) {
    constexpr int kStep = S::kTwoBlocks ? (S::kNarrow & -S::kNarrow) / 8 : S::kGroups;
    if constexpr (kBeyond > kStep) {
        if (beyond < kBeyond) return multiply_tile_at<S, kBeyond - kStep>(beyond, shared, part, reading, sums);
    }
    multiply_tile<S, kBeyond>(shared, part, reading, sums);
}

// Which CTA of the cluster finishes a group of columns, and where among those that this CTA finishes.
template <class S>
__device__ inline int owner_of(int group, int splits) {
    return ((group + 1) * splits - 1) / S::kAllGroups;
}
template <class S>
__device__ inline int first_group(int part, int splits) {
    return S::kAllGroups * part / splits;
}

// Sums of the cluster's CTAs, in their order: each CTA gets those of the groups that it owns.
template <class S>
__device__ inline void add_over_cluster(typename S::Memory& shared, int part, int splits,
                                        float (&sums)[S::kTiles][S::kGroups][4]) {
    const int thread = threadIdx.x - kWarpgroup, most = S::most_sent(splits);
    auto* received = reinterpret_cast<float4*>(shared.stages);
    // Closes: the sums overwrite a ring that its CTA may still be reading.
    arrive_at_cluster_start();
    wait_for_cluster_start();
#pragma unroll
    for (int i = 0; i < S::kAllGroups; ++i) {
        const int owner = owner_of<S>(i, splits), place = i - first_group<S>(owner, splits);
        if (owner == part) continue;
        const float (&v)[4] = sums[i / S::kGroups][i % S::kGroups];
        send_in_cluster(address_in_cta(received + (part * most + place) * S::kConsumers + thread, owner),
                        float4{v[0], v[1], v[2], v[3]}, address_in_cta(&shared.sums_full, owner));
    }
    // All threads wait, also those that finish nothing: a CTA must not end before all data sent to it has arrived.
    wait_for(&shared.sums_full, 0);
#pragma unroll
    for (int i = 0; i < S::kAllGroups; ++i) {
        if (owner_of<S>(i, splits) != part) continue;
        const int place = i - first_group<S>(part, splits);
        float (&own)[4] = sums[i / S::kGroups][i % S::kGroups];
        float4 total = {0, 0, 0, 0};
        for (int from = 0; from < splits; ++from) {
            const float4 v = from == part ? float4{own[0], own[1], own[2], own[3]}
                                          : received[(from * most + place) * S::kConsumers + thread];
            if (from == 0) total = v;
            else total = {total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w};
        }
        own[0] = total.x, own[1] = total.y, own[2] = total.z, own[3] = total.w;
    }
}

template <int index>
__global__ __launch_bounds__(Shape<index>::kThreads, Shape<index>::form.slots) void block_scaled_gemm_tiles(
    Args a, const __grid_constant__ CUtensorMap wide, const __grid_constant__ CUtensorMap narrow, Cut cut) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = Shape<index>;
    auto& shared = dynamic_shared<typename S::Memory>();
    const int warp = threadIdx.x / kWarp;
    const int index_of_part = cut.splits > 1 ? rank_in_cluster() : 0;
    const Part part(a.k, index_of_part, cut.splits);
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::kStages; ++s) {
            make_barrier(&shared.full[s], S::kFillers);
            make_barrier(&shared.empty[s], S::kConsumers / kWarp);
        }
        if (cut.splits > 1) make_barrier(&shared.sums_full, 1);
        publish_barriers();
        if (cut.splits > 1) arrive_expecting(&shared.sums_full, S::received_bytes(index_of_part, cut.splits));
        fetch_map(&wide);
        fetch_map(&narrow);
    }
    // Closes: mbarriers are used below by threads that did not initialise them.
    __syncthreads();
    let_next_kernel_start();

    if (warp < kWarpgroup / kWarp) {
        if constexpr (S::kManyRegisters > 0) leave_registers<S::kFewRegisters>();
        if (warp == 0) {
            if (elected()) feed<S>(shared, a, &wide, &narrow, cut, part);
        } else {
            wait_for_previous_kernel();
            feed_scales<S>(shared, a, cut, part);
        }
    } else {
        if constexpr (S::kManyRegisters > 0) take_registers<S::kManyRegisters>();
        wait_for_previous_kernel();
        Reading<S> reading(shared);
        for (Tiles tiles(cut); tiles.left(); tiles.advance()) {
            int piece, of_narrow;
            cut.locate(tiles.next, &piece, &of_narrow);
            const int64_t first = cut.first_row(piece), next = cut.first_row(piece + 1);
            const int64_t end = next < cut.wide_rows ? next : cut.wide_rows;
            float sums[S::kTiles][S::kGroups][4];
            // Narrow groups from there on lie in the next block of 128 columns.
            const int beyond = (kBlock - of_narrow * S::kNarrow % kBlock) / 8;
            multiply_tile_at<S>(beyond, shared, part, reading, sums);
            int from = 0, to = S::kAllGroups;
            if constexpr (S::kSplits) {
                if (cut.splits > 1) {
                    add_over_cluster<S>(shared, index_of_part, cut.splits, sums);
                    from = first_group<S>(index_of_part, cut.splits);
                    to = first_group<S>(index_of_part + 1, cut.splits);
                }
            }
            store_tile<S>(shared.staging, a, sums, first, end, int64_t(of_narrow) * S::kNarrow, from, to);
        }
    }
#endif
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
