// What fills shared memory: the queries' rows, then halves of tiles of tokens, which have warps of their own. They run
// ahead of the multiplications, into the CTA's next piece of work.
//
// Tokens of 16 bits pass through no register: whole tiles come by TMA, boxes of up to 64 rows of a page; else rows one
// by one (cp.async). Rows behind the end become zeros: p is 0 there, and 0 times what lies behind a sequence's tokens
// could be NaN.
#pragma once

#include "../../common/cuda/async_copy.h"
#include "../../common/cuda/tma.h"
#include "shape.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

// Barrier: what threads have written becomes visible to the multiplications, which read by another way.
__device__ inline void publish_to_multiplications() { ROCM_FP8_HOPPER("fence.proxy.async.shared::cta;" :: : "memory"); }

// Eight lanes have a row: 16 bytes each of a panel's 128.
constexpr int kRowLanes = 8, kRowsAtOnce = kWarp / kRowLanes;

// Where row `row` of the tile begins; of one behind the last, another.
__device__ inline const void* query_at(const Launch& l, const Work& w, int row) {
    const Args& a = l.args;
    const uint32_t r = w.row + row < a.rows() ? w.row + row : 0, query = divide(r, l.heads);
    const uint32_t head = r - query * l.heads.divisor;
    return offset(a.q, (w.b * a.q_batch_stride + query * a.q_query_stride + head * a.q_head_stride) * 2);
}

// thread: of kThreads.
template <int kThreads>
__device__ inline void feed_queries(Memory& shared, const Launch& l, const Work& w, int thread) {
    const int place = thread % kRowLanes;
    for (int row = thread / kRowLanes; row < kTileRows; row += kThreads / kRowLanes) {
        const bool is = w.row + row < l.args.rows();
        const void* const from = offset(query_at(l, w, row), place * 16);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel)
            copy_vector_async(&shared.q[panel][swizzled(row, place)], offset(from, panel * kPanelRow), is ? 16 : 0);
    }
    commit_copies();
    wait_for_copies<0>();
    publish_to_multiplications();
}

// The table's entries of a tile's tokens, two a lane.
class Entries {
  public:
    __device__ Entries(const attention::PagedRows& rows, int first, int end) {
        const int lane = threadIdx.x % kWarp;
        even = rows.entry_of(min(first + 2 * lane, end - 1));
        odd = rows.entry_of(min(first + 2 * lane + 1, end - 1));
    }
    // Of a row that may differ between lanes. All lanes call it together.
    __device__ int32_t of(int row) const {
        const int32_t of_even = __shfl_sync(kWholeWarp, even, row / 2), of_odd = __shfl_sync(kWholeWarp, odd, row / 2);
        return row % 2 ? of_odd : of_even;
    }

  private:
    int32_t even, odd;
};

// What a warp fills: a half of a buffer.
struct OwnHalf {
    int buffer, half;
    __device__ OwnHalf() {
        const int warp = __shfl_sync(kWholeWarp, int(threadIdx.x / kWarp), 0);
        buffer = warp % kBuffers, half = warp / kBuffers;
    }
    __device__ bool has_rope() const { return half == last_half(buffer); }
    __device__ static int own_row(int i) { return int(threadIdx.x) % kWarp / kRowLanes + i * kRowsAtOnce; }
};

__device__ inline void feed_wide(Tile& to, const attention::PagedRows& rows, const Entries& entries,
                                 const OwnHalf& mine, int first, int end) {
    const int place = threadIdx.x % kRowLanes, panel = mine.half * kHalfPanels;
#pragma unroll 4
    for (int i = 0; i < kTileTokens / kRowsAtOnce; ++i) {
        const int row = mine.own_row(i), token = min(first + row, end - 1);
        const void* const from = offset(rows.row_of(token, entries.of(row)), place * 16);
        const int bytes = first + row < end ? 16 : 0, at = swizzled(row, place);
#pragma unroll
        for (int p = 0; p < kHalfPanels; ++p)
            copy_vector_async(&to[panel + p][at], offset(from, (panel + p) * kPanelRow), bytes);
        if (mine.has_rope()) copy_vector_async(&to[kRopePanel][at], offset(from, kRopePanel * kPanelRow), bytes);
    }
}

// A whole tile. All lanes arrive at `full`, which waits for the bytes as well.
__device__ inline void feed_boxes(Tile& to, const attention::PagedRows& rows, const Entries& entries,
                                  const OwnHalf& mine, int first, int box_rows, const CUtensorMap* map, Barrier* full) {
    const int panels = kHalfPanels + mine.has_rope();
    if (elected()) arrive_expecting(full, panels * kPanelBytes);
    else arrive(full);
    __syncwarp();
    for (int row = 0; row < kTileTokens; row += box_rows) {
        const auto at = rows.place_of(first + row, entries.of(row));
        if (elected()) {
#pragma unroll
            for (int p = 0; p < kHalfPanels; ++p) {
                const int panel = mine.half * kHalfPanels + p;
                copy_tile_of(int(at.page), &to[panel][row * kPanelRow], map, panel * kPanelRow, int(at.row), full);
            }
            if (mine.has_rope())
                copy_tile_of(int(at.page), &to[kRopePanel][row * kPanelRow], map, kRopePanel * kPanelRow, int(at.row),
                             full);
        }
        __syncwarp();
    }
}

// A half of every second tile of a piece of work. `parity`: of the next wait for the half's place.
__device__ inline void feed_copies(Memory& shared, const Launch& l, const CUtensorMap* map, const Work& w,
                                   const OwnHalf& mine, uint32_t& parity) {
    int first = w.begin + mine.buffer * kTileTokens;
    if (first >= w.end) return;
    const attention::PagedRows rows = rows_of(l, w.b);
    Entries entries(rows, first, w.end);
    Tile& to = shared.keys[mine.buffer];
    for (; first < w.end; first += kBuffers * kTileTokens, parity ^= 1) {
        // Barrier: the tile before has been read there. The first time it is empty.
        wait_for(&shared.empty[mine.buffer][mine.half], parity);
        Barrier* const full = &shared.full[mine.buffer][mine.half];
        const int next = first + kBuffers * kTileTokens;
        if (l.box_rows > 0 && first + kTileTokens <= w.end) {
            feed_boxes(to, rows, entries, mine, first, l.box_rows, map, full);
            if (next < w.end) entries = Entries(rows, next, w.end);
            continue;
        }
        feed_wide(to, rows, entries, mine, first, w.end);
        if (next < w.end) entries = Entries(rows, next, w.end);
        commit_copies();
        wait_for_copies<0>();
        publish_to_multiplications();
        arrive(full);
    }
}

// Queries and tiles of all the CTA's work. The first queries the multiplying warpgroups load: they have nothing to do.
__device__ inline void feed(Memory& shared, const Launch& l, const CUtensorMap* map) {
    const OwnHalf mine;
    uint32_t parity = 1, q_parity = 0;
    bool loads_queries = false;
    for (uint32_t item = blockIdx.x; item < l.items; item += gridDim.x) {
        const Work w = work_of<kTileTokens>(l, kTileRows, item);
        if (w.begin >= w.end) continue;
        if (loads_queries) {
            // Barrier: the queries before have been multiplied for the last time.
            wait_for(&shared.q_empty, q_parity);
            q_parity ^= 1;
            feed_queries<kFeeders>(shared, l, w, threadIdx.x);
            arrive(&shared.q_full);
        }
        loads_queries = true;
        feed_copies(shared, l, map, w, mine, parity);
    }
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
