// What fills shared memory: the queries' rows, then halves of tiles of tokens, which have warps of their own.
//
// Tokens of 16 bits pass through no register (cp.async); codes are made 16-bit numbers on their way. Rows behind the end
// become zeros: p is 0 there, and 0 times what lies behind a sequence's tokens could be NaN.
#pragma once

#include "../../common/cuda/async_copy.h"
#include "codes.h"
#include "shape.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

// Closes: what threads have written becomes visible to the multiplications, which read by another way.
__device__ inline void publish_to_multiplications() { ROCM_FP8_HOPPER("fence.proxy.async.shared::cta;" :: : "memory"); }

// Eight lanes have a row: 16 bytes each of a panel's 128.
constexpr int kRowLanes = 8, kRowsAtOnce = kWarp / kRowLanes;

template <int kThreads>
__device__ inline void feed_queries(Memory& shared, const Launch& l, const Work& w) {
    const Args& a = l.args;
    const int place = threadIdx.x % kRowLanes;
    for (int row = threadIdx.x / kRowLanes; row < kTileRows; row += kThreads / kRowLanes) {
        const bool is = w.row + row < a.rows();
        const uint32_t r = is ? w.row + row : 0, query = divide(r, l.heads), head = r - query * l.heads.divisor;
        const int64_t at = w.b * a.q_batch_stride + query * a.q_query_stride + head * a.q_head_stride;
        const void* const from = offset(a.q, at * 2 + place * 16);
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
struct Hand {
    int buffer, half;
    __device__ Hand() {
        const int warp = __shfl_sync(kWholeWarp, int(threadIdx.x / kWarp), 0);
        buffer = warp % kBuffers, half = warp / kBuffers;
    }
    __device__ bool has_rope() const { return half == last_half(buffer); }
    __device__ static int own_row(int i) { return int(threadIdx.x) % kWarp / kRowLanes + i * kRowsAtOnce; }
};

__device__ inline void feed_wide(Tile& to, const attention::PagedRows& rows, const Entries& entries, const Hand& mine,
                                 int first, int end) {
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

// Sixteen numbers from column 16 `sixteen` on.
__device__ inline void put_sixteen(Tile& to, int row, int sixteen, const Sixteen& v) {
    uint8_t* const panel = to[sixteen / 4];
    *reinterpret_cast<uint4*>(panel + swizzled(row, sixteen % 4 * 2)) = v.first;
    *reinterpret_cast<uint4*>(panel + swizzled(row, sixteen % 4 * 2 + 1)) = v.second;
}

// What a lane has loaded of a row's half: codes of 16 bytes, 16 a row and half; rotated numbers, 4 such, or 8 times 16 bytes
// as they are.
template <Format format, DType type>
class Codes {
    static constexpr bool kMixed = format == Format::mixed;
    static constexpr int kHalfSixteens = kLatent / kHalves / 16, kEach = kHalfSixteens / kRowLanes;

    __device__ static int place() { return threadIdx.x % kRowLanes; }
    __device__ static int sixteen(const Hand& mine, int n) {
        return mine.half * kHalfSixteens + place() + n * kRowLanes;
    }
    __device__ static bool has_rope(const Hand& mine) { return mine.has_rope() && (kMixed || place() < kRope / 16); }

    uint4 codes[kEach], rope;
    float scales[kEach];

  public:
    // Row i of the lane's, of the tile at `first`.
    __device__ void load_row(const attention::PagedRows& rows, const Entries& entries, const Hand& mine, int first,
                             int end, int i) {
        constexpr uint4 kZeros{0, 0, 0, 0};
        const int row = mine.own_row(i), token = first + row;
        const uint8_t* const from = rows.row_of(min(token, end - 1), entries.of(row));
#pragma unroll
        for (int n = 0; n < kEach; ++n) {
            codes[n] = token < end ? load(from + sixteen(mine, n) * 16) : kZeros;
            // Eight times 16 codes have a scale.
            scales[n] = 1.0f;
            if (kMixed && token < end) scales[n] = load_float(from + kScalesAt + sixteen(mine, n) / kRowLanes * 4);
        }
        rope = kZeros;
        if (has_rope(mine) && token < end) rope = load(from + (kMixed ? kRopeAt : kLatent) + place() * 16);
    }
    __device__ void put_row(Tile& to, const Hand& mine, int i) const {
        const int row = mine.own_row(i);
#pragma unroll
        for (int n = 0; n < kEach; ++n)
            put_sixteen(to, row, sixteen(mine, n), decoded<type, kMixed>(codes[n], scales[n]));
        if (!has_rope(mine)) return;
        if constexpr (kMixed)
            *reinterpret_cast<uint4*>(&to[kRopePanel][swizzled(row, place())]) = from_bf16<type>(rope);
        else put_sixteen(to, row, kLatent / 16 + place(), decoded<type, false>(rope, 1.0f));
    }
};

// Each feeds a half of every second tile of the CTA's. Tokens of 16 bits:
__device__ inline void feed_copies(Memory& shared, const Launch& l, const Work& w, const Hand& mine, int first) {
    const attention::PagedRows rows = rows_of(l, w.b);
    Entries entries(rows, first, w.end);
    Tile& to = shared.keys[mine.buffer];
    for (uint32_t parity = 1; first < w.end; first += kBuffers * kTileTokens, parity ^= 1) {
        // Closes: the tile before has been read there. The first time it is empty.
        wait_for(&shared.empty[mine.buffer][mine.half], parity);
        feed_wide(to, rows, entries, mine, first, w.end);
        const int next = first + kBuffers * kTileTokens;
        if (next < w.end) entries = Entries(rows, next, w.end);
        commit_copies();
        wait_for_copies<0>();
        publish_to_multiplications();
        arrive(&shared.full[mine.buffer][mine.half]);
    }
}

// Codes: loads are kAhead rows ahead of what is put, into the next tile, too.
template <Format format, DType type>
__device__ inline void feed_codes(Memory& shared, const Launch& l, const Work& w, const Hand& mine, int first) {
    constexpr int kAhead = 4, kRows = kTileTokens / kRowsAtOnce;
    const attention::PagedRows rows = rows_of(l, w.b);
    Entries entries(rows, first, w.end);
    Codes<format, type> held[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) held[i].load_row(rows, entries, mine, first, w.end, i);
    Tile& to = shared.keys[mine.buffer];
    for (uint32_t parity = 1; first < w.end; parity ^= 1) {
        const int next = first + kBuffers * kTileTokens;
        const bool more = next < w.end;
        const Entries following(rows, more ? next : first, w.end);
        // Closes: the tile before has been read there. The first time it is empty.
        wait_for(&shared.empty[mine.buffer][mine.half], parity);
#pragma unroll 1
        for (int i = 0; i < kRows; i += kAhead) {
            const bool last = i + kAhead == kRows;
            if (last) entries = following, first = next;
#pragma unroll
            for (int n = 0; n < kAhead; ++n) {
                held[n].put_row(to, mine, i + n);
                if (!last || more) held[n].load_row(rows, entries, mine, first, w.end, last ? n : i + kAhead + n);
            }
        }
        publish_to_multiplications();
        arrive(&shared.full[mine.buffer][mine.half]);
    }
}

template <Format format, DType type>
__device__ inline void feed(Memory& shared, const Launch& l, const Work& w) {
    const Hand mine;
    const int first = w.begin + mine.buffer * kTileTokens;
    if (first >= w.end) return;
    if constexpr (format == Format::wide) feed_copies(shared, l, w, mine, first);
    else feed_codes<format, type>(shared, l, w, mine, first);
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
