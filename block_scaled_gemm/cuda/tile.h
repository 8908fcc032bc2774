// The kernel for Hopper: TMA fills a ring in shared memory, warpgroups multiply with wgmma. See block_scaled_gemm.cu.
#pragma once

#include "../../common/cuda/half_pairs.h"
#include "../../common/cuda/pdl.h"
#include "../../common/cuda/shared_memory.h"
#include "../../common/cuda/tma.h"
#include "../../common/cuda/wgmma.h"
#include "forms.h"
#include "store.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

// How a launch is cut into tiles: `pieces` even parts of the wide rows, and whole tiles of narrow rows.
struct Cut {
    int64_t wide_rows;
    int pieces, height;  // rows of a piece at most, a multiple of 8: what TMA copies
    int narrow_tiles;
    int splits;      // parts of K: CTAs of a cluster
    int neighbours;  // pieces whose tiles follow each other, so that they share narrow rows in L2

    __device__ int tiles() const { return pieces * narrow_tiles; }
    __device__ int64_t first_row(int piece) const { return (wide_rows + 7) / 8 * piece / pieces * 8; }
    // Column by column within `neighbours` pieces.
    __device__ void locate(int tile, int* piece, int* narrow) const {
        const int band = tile / (neighbours * narrow_tiles), within = tile - band * neighbours * narrow_tiles;
        const int left = pieces - band * neighbours, height_of_band = left < neighbours ? left : neighbours;
        *narrow = within / height_of_band;
        *piece = band * neighbours + within % height_of_band;
    }
};

template <int index>
struct Shape {
    static constexpr Form form = kForms[index];
    static constexpr bool kSwapped = form.swapped;
    static constexpr int kTiles = form.tiles, kWarpgroups = form.warpgroups, kStages = form.stages();
    static constexpr int kWide = form.wide(), kNarrow = form.narrow, kGroups = kNarrow / 8;
    static constexpr int kConsumers = kWarpgroups * kWarpgroup, kThreads = kConsumers + kWarpgroup;
    // A tile of narrow rows may lie in two of their blocks of 128.
    static constexpr bool kTwoBlocks = !kSwapped && kBlock % kNarrow != 0;
    static_assert(kStages >= 3);

    struct Stage {
        uint8_t wide[kWide][kBlock], narrow[kNarrow][kBlock];
    };
    struct Shared {
        alignas(1024) Stage stages[kStages];
        alignas(16) char staging[form.staging_bytes()];
        alignas(16) float narrow_scales[kSwapped ? kStages : 1][kNarrow];
        Barrier full[kStages], empty[kStages];
        Barrier sums_full;  // of the cluster's other CTAs
    };
    // Of the reduction over a cluster, in place of the ring: float4 [part][group of columns][thread].
    static constexpr int kAllGroups = kTiles * kGroups;
    // Bytes that a CTA receives: of the groups that it finishes.
    ROCM_FP8_HD static constexpr int received_bytes(int part, int splits) {
        return (kAllGroups * (part + 1) / splits - kAllGroups * part / splits) * (splits - 1) * kConsumers * 16;
    }
    ROCM_FP8_HD static constexpr int most_sent(int splits) { return (kAllGroups + splits - 1) / splits; }
    static constexpr bool sums_fit(int splits = kMostSplits) {
        return splits == 1 ||
               (splits * most_sent(splits) * kConsumers * 16 <= kStages * int(sizeof(Stage)) && sums_fit(splits - 1));
    }
};

// A stage's number and the parity of its round.
template <int kStages>
struct Position {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        if (++stage == kStages) stage = 0, parity ^= 1;
    }
};

// The part of K of this CTA, in blocks.
struct Part {
    int first, count;
    __device__ Part(int64_t k, int part, int splits) {
        const int blocks = int(blocks_of(k));
        first = blocks * part / splits;
        count = blocks * (part + 1) / splits - first;
    }
};

// --- the loading warps ---

// By one thread: keeps the ring full.
template <class S>
__device__ inline void feed(typename S::Shared& shared, const Args& a, const CUtensorMap* wide,
                            const CUtensorMap* narrow, const Cut& cut, const Part& part) {
    const auto copy_wide = [&](int stage, int step, int piece) {
        copy_tile(shared.stages[stage].wide, wide, (part.first + step) * kBlock, int(cut.first_row(piece)),
                  &shared.full[stage]);
    };
    const auto copy_narrow = [&](int stage, int step, int tile) {
        copy_tile(shared.stages[stage].narrow, narrow, (part.first + step) * kBlock, tile * S::kNarrow,
                  &shared.full[stage]);
    };
    const auto copy = [&](bool weights, int stage, int step, int piece, int tile) {
        if (weights == S::kSwapped) copy_wide(stage, step, piece);
        else copy_narrow(stage, step, tile);
    };
    const uint32_t bytes = uint32_t(cut.height + S::kNarrow) * kBlock;
    const int parts = gridDim.x / cut.splits;
    int tile = blockIdx.x / cut.splits, piece, of_narrow, begun = 0;
    if (tile >= cut.tiles()) return;
    cut.locate(tile, &piece, &of_narrow);
    // The first round: the weights before the wait for the previous kernel, where they are constant.
    const int round = part.count < S::kStages ? part.count : S::kStages;
    if (!a.constant_b) wait_for_previous_kernel();
    for (int s = 0; s < round; ++s) {
        arrive_expecting(&shared.full[s], bytes);
        copy(true, s, s, piece, of_narrow);
    }
    if (a.constant_b) wait_for_previous_kernel();
    for (int s = 0; s < round; ++s) copy(false, s, s, piece, of_narrow);
    begun = round;

    Position<S::kStages> at;
    at.stage = begun % S::kStages;
    at.parity = begun / S::kStages;
    bool refills = begun == S::kStages;
    for (; tile < cut.tiles(); tile += parts, begun = 0) {
        cut.locate(tile, &piece, &of_narrow);
        for (int step = begun; step < part.count; ++step) {
            // Closes: the stage is filled again after its readers have left it.
            if (refills) wait_for(&shared.empty[at.stage], at.parity ^ 1);
            arrive_expecting(&shared.full[at.stage], bytes);
            copy_wide(at.stage, step, piece);
            copy_narrow(at.stage, step, of_narrow);
            at.advance();
            refills |= at.stage == 0;
        }
    }
}

// By a warp: the scales of the narrow rows, where these differ.
template <class S>
__device__ inline void feed_scales(typename S::Shared& shared, const Scales& scales, int64_t rows, const Cut& cut,
                                   const Part& part, int lane) {
    constexpr int kEach = (S::kNarrow + kWarp - 1) / kWarp;
    Position<S::kStages> at;
    bool refills = false;
    for (int tile = blockIdx.x / cut.splits; tile < cut.tiles(); tile += gridDim.x / cut.splits) {
        int piece, of_narrow;
        cut.locate(tile, &piece, &of_narrow);
        BlockScales from(scales, part.first);
        int64_t place[kEach];
        float next[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int64_t row = int64_t(of_narrow) * S::kNarrow + i * kWarp + lane;
            place[i] = from.place(row < rows ? row : rows - 1);
            next[i] = from.at(place[i]);
        }
        for (int step = 0; step < part.count; ++step) {
            if (refills) wait_for(&shared.empty[at.stage], at.parity ^ 1);
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                if (i * kWarp + lane < S::kNarrow) shared.narrow_scales[at.stage][i * kWarp + lane] = next[i];
            }
            // Closes: all lanes' scales are stored before one of them says so.
            __syncwarp();
            if (lane == 0) arrive(&shared.full[at.stage]);
            at.advance();
            refills |= at.stage == 0;
            // On their way while the stage after this one is awaited.
            from.advance();
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                if (step + 1 < part.count) next[i] = from.at(place[i]);
            }
        }
    }
}

// --- the multiplying warpgroups ---

// sums += scale * block, of one tile of 64 wide rows; s: of the thread's two wide rows.
template <class S>
__device__ inline void add_scaled(float (&sums)[S::kGroups][4], const float (&block)[S::kGroups][4],
                                  const float (&s)[2], const float (&s_beyond)[2], int beyond,
                                  const float* narrow_scales, int t) {
#pragma unroll
    for (int i = 0; i < S::kGroups; ++i) {
        if constexpr (S::kSwapped) {
            const float2 of_narrow = *reinterpret_cast<const float2*>(narrow_scales + 8 * i + 2 * t);
            sums[i][0] = __fmaf_rn(s[0] * of_narrow.x, block[i][0], sums[i][0]);
            sums[i][1] = __fmaf_rn(s[0] * of_narrow.y, block[i][1], sums[i][1]);
            sums[i][2] = __fmaf_rn(s[1] * of_narrow.x, block[i][2], sums[i][2]);
            sums[i][3] = __fmaf_rn(s[1] * of_narrow.y, block[i][3], sums[i][3]);
        } else {
            const bool second = S::kTwoBlocks && i >= beyond;
            const float first = second ? s_beyond[0] : s[0], last = second ? s_beyond[1] : s[1];
            sums[i][0] = __fmaf_rn(first, block[i][0], sums[i][0]);
            sums[i][1] = __fmaf_rn(first, block[i][1], sums[i][1]);
            sums[i][2] = __fmaf_rn(last, block[i][2], sums[i][2]);
            sums[i][3] = __fmaf_rn(last, block[i][3], sums[i][3]);
        }
    }
}

// A tile's sums over this CTA's part of K.
template <class S>
__device__ inline void multiply_tile(typename S::Shared& shared, const Args& a, const Part& part, int64_t first_row,
                                     int64_t rows, int first_narrow, Position<S::kStages>& at,
                                     float (&sums)[S::kTiles][S::kGroups][4]) {
    const int thread = threadIdx.x - kWarpgroup, warpgroup = thread / kWarpgroup;
    const int lane = thread % kWarp, warp = thread / kWarp % 4, g = lane / 4, t = lane % 4;
    const Scales& of_wide = S::kSwapped ? a.scale_b : a.scale_a;
    BlockScales wide(of_wide, part.first), columns(a.scale_b, part.first);
    int64_t place[S::kTiles][2], place_of_columns[2] = {0, 0};
    float next[S::kTiles][2], next_of_columns[2] = {1, 1};
    const bool of_channels = at_the_end(a.scale_b);
    // The scales of one block.
    const auto take = [&] {
#pragma unroll
        for (int i = 0; i < S::kTiles; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                next[i][half] = S::kSwapped && of_channels ? 1.0f : wide.at(place[i][half]);
            }
        }
        wide.advance();
        if (S::kSwapped || of_channels) return;
        next_of_columns[0] = columns.at(place_of_columns[0]);
        if (S::kTwoBlocks) next_of_columns[1] = columns.at(place_of_columns[1]);
        columns.advance();
    };
#pragma unroll
    for (int i = 0; i < S::kTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t row = first_row + (warpgroup * S::kTiles + i) * kWgmmaRows + 16 * warp + g + 8 * half;
            place[i][half] = wide.place(row < rows ? row : rows - 1);
        }
    }
    // Narrow groups from `beyond` on lie in the next block of 128 columns.
    int beyond = S::kGroups;
    if constexpr (!S::kSwapped) {
        const int64_t n = (first_narrow / kBlock + 1) * int64_t(kBlock);
        if (S::kTwoBlocks && n < first_narrow + S::kNarrow) beyond = int(n - first_narrow) / 8;
        place_of_columns[0] = columns.place(first_narrow);
        place_of_columns[1] = columns.place(beyond < S::kGroups && n < a.n ? n : first_narrow);
    }
    take();

#pragma unroll
    for (auto& tile : sums)
        for (auto& group : tile)
            for (float& v : group) v = 0;
    for (int step = 0; step < part.count; ++step, at.advance()) {
        float s[S::kTiles][2], s_beyond[S::kTiles][2];
#pragma unroll
        for (int i = 0; i < S::kTiles; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                s[i][half] = next[i][half] * next_of_columns[0];
                s_beyond[i][half] = next[i][half] * next_of_columns[1];
            }
        }
        if (step + 1 < part.count) take();
        wait_for(&shared.full[at.stage], at.parity);
        const typename S::Stage& stage = shared.stages[at.stage];
        const uint64_t narrow = swizzled_rows(stage.narrow);
#pragma unroll
        for (int i = 0; i < S::kTiles; ++i) {
            const uint64_t rows_of_tile = swizzled_rows(stage.wide[(warpgroup * S::kTiles + i) * kWgmmaRows]);
            float block[S::kGroups][4];
            begin_multiplications();
#pragma unroll
            for (int k = 0; k < kBlock; k += kWgmmaK) {
                multiply_async(block, further(rows_of_tile, k), further(narrow, k), k > 0);
            }
            commit_multiplications();
            wait_for_multiplications<0>();
            if (i + 1 == S::kTiles && !S::kSwapped && lane == 0) arrive(&shared.empty[at.stage]);
            add_scaled<S>(sums[i], block, s[i], s_beyond[i], beyond,
                          S::kSwapped ? shared.narrow_scales[at.stage] : nullptr, t);
        }
        if (S::kSwapped) {
            // Closes: all lanes have read the scales.
            __syncwarp();
            if (lane == 0) arrive(&shared.empty[at.stage]);
        }
    }
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
__device__ inline void add_over_cluster(typename S::Shared& shared, int part, int splits,
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
    auto& shared = dynamic_shared<typename S::Shared>();
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int index_of_part = cut.splits > 1 ? rank_in_cluster() : 0;
    const Part part(a.k, index_of_part, cut.splits);
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::kStages; ++s) {
            make_barrier(&shared.full[s], S::kSwapped ? 2 : 1);
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
        if constexpr (S::kWarpgroups > 1) leave_registers<40>();
        if (warp == 0 && elected()) feed<S>(shared, a, &wide, &narrow, cut, part);
        if (S::kSwapped && warp == 1) {
            wait_for_previous_kernel();
            feed_scales<S>(shared, a.scale_a, a.m, cut, part, lane);
        }
        return;
    }
    if constexpr (S::kWarpgroups > 1) take_registers<232>();
    wait_for_previous_kernel();
    Position<S::kStages> at;
    for (int tile = blockIdx.x / cut.splits; tile < cut.tiles(); tile += gridDim.x / cut.splits) {
        int piece, of_narrow;
        cut.locate(tile, &piece, &of_narrow);
        const int64_t first = cut.first_row(piece), next = cut.first_row(piece + 1);
        const int64_t end = next < cut.wide_rows ? next : cut.wide_rows;
        float sums[S::kTiles][S::kGroups][4];
        multiply_tile<S>(shared, a, part, first, cut.wide_rows, of_narrow * S::kNarrow, at, sums);
        int from = 0, to = S::kAllGroups;
        if (cut.splits > 1) {
            add_over_cluster<S>(shared, index_of_part, cut.splits, sums);
            from = first_group<S>(index_of_part, cut.splits);
            to = first_group<S>(index_of_part + 1, cut.splits);
        }
        store_tile<S>(shared.staging, a, sums, first, end, int64_t(of_narrow) * S::kNarrow, from, to);
    }
#endif
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
