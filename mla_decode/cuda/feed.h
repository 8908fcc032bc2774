// What fills shared memory: the queries' rows, then tiles of tokens. Half of a warpgroup fills a buffer.
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

// A row's 16 bytes of each panel are an eighth of a warp's lanes' business: eight lanes have a row, at eight places.
constexpr int kRowLanes = 8, kRowsAtOnce = kWarp / kRowLanes;

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

// Rows of a tile that a thread has a share of.
constexpr int kOwnRows = kTileTokens / (kFeeders / kRowLanes);

struct Entries {
    int32_t of[kOwnRows];
};

// own: which of its buffer's feeders the thread is.
__device__ inline int own_row(int own, int i) { return own / kRowLanes + i * (kFeeders / kRowLanes); }

__device__ inline Entries entries_at(const attention::PagedRows& rows, int own, int first, int end) {
    Entries e;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) e.of[i] = rows.entry_of(min(first + own_row(own, i), end - 1));
    return e;
}

__device__ inline void feed_wide(Tile& to, const attention::PagedRows& rows, const Entries& entries, int own, int first,
                                 int end) {
    const int place = own % kRowLanes;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
        const int row = own_row(own, i), token = min(first + row, end - 1);
        const void* const from = offset(rows.row_of(token, entries.of[i]), place * 16);
        const int bytes = first + row < end ? 16 : 0;
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel)
            copy_vector_async(&to[panel][swizzled(row, place)], offset(from, panel * kPanelRow), bytes);
    }
}

// Sixteen numbers from column 16 `sixteen` on.
__device__ inline void put_sixteen(Tile& to, int row, int sixteen, const Sixteen& v) {
    uint8_t* const panel = to[sixteen / 4];
    *reinterpret_cast<uint4*>(panel + swizzled(row, sixteen % 4 * 2)) = v.first;
    *reinterpret_cast<uint4*>(panel + swizzled(row, sixteen % 4 * 2 + 1)) = v.second;
}

// Codes of 16 bytes: 36 a row with one scale, or 32 with four of their own.
template <Format format, DType type>
__device__ inline void feed_codes(Tile& to, const attention::PagedRows& rows, const Entries& entries, int own,
                                  int first, int end) {
    constexpr bool kMixed = format == Format::mixed;
    constexpr int kSixteens = (kMixed ? kLatent : kWidth) / 16, kEach = (kSixteens + kRowLanes - 1) / kRowLanes;
    constexpr int kTogether = 2;  // rows whose loads are in flight together
    const int place = own % kRowLanes;
#pragma unroll 1
    for (int i = 0; i < kOwnRows; i += kTogether) {
        uint4 codes[kTogether][kEach], rope[kTogether];
        float scales[kTogether][kLatent / kScaleGroup];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const int token = first + own_row(own, i + j);
            int32_t entry = entries.of[0];
#pragma unroll
            for (int n = 1; n < kOwnRows; ++n) entry = n == i + j ? entries.of[n] : entry;
            const uint8_t* const from = rows.row_of(min(token, end - 1), entry);
#pragma unroll
            for (int n = 0; n < kEach; ++n) {
                const int sixteen = place + n * kRowLanes;
                codes[j][n] = token < end && sixteen < kSixteens ? load(from + sixteen * 16) : uint4{0, 0, 0, 0};
            }
            if constexpr (kMixed) {
                const uint4 s = token < end ? load(from + kScalesAt) : uint4{0, 0, 0, 0};
#pragma unroll
                for (int n = 0; n < kLatent / kScaleGroup; ++n) scales[j][n] = bits_float(word(s, n));
                rope[j] = token < end ? load(from + kRopeAt + place * 16) : uint4{0, 0, 0, 0};
            }
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const int row = own_row(own, i + j);
#pragma unroll
            for (int n = 0; n < kEach; ++n) {
                const int sixteen = place + n * kRowLanes;
                if (sixteen >= kSixteens) continue;
                // Eight times 16 codes are a group.
                if constexpr (kMixed) put_sixteen(to, row, sixteen, decoded<type, true>(codes[j][n], scales[j][n]));
                else put_sixteen(to, row, sixteen, decoded<type, false>(codes[j][n], 1.0f));
            }
            if constexpr (kMixed)
                *reinterpret_cast<uint4*>(&to[kRopePanel][swizzled(row, place)]) = from_bf16<type>(rope[j]);
        }
    }
}

// Tiles of one buffer: every second one of the CTA's.
template <Format format, DType type>
__device__ inline void feed(Memory& shared, const Launch& l, const Work& w) {
    const int own = threadIdx.x % kFeeders, buffer = threadIdx.x % kWarpgroup / kFeeders;
    const attention::PagedRows rows = rows_of(l, w.b);
    int first = w.begin + buffer * kTileTokens;
    if (first >= w.end) return;
    Entries entries = entries_at(rows, own, first, w.end);
    Tile& to = shared.keys[buffer];
    for (uint32_t parity = 1; first < w.end; first += kBuffers * kTileTokens, parity ^= 1) {
        // Closes: the multiplications of the tile before have read the buffer. The first time it is empty.
        wait_for(&shared.empty[buffer], parity);
        if constexpr (format == Format::wide) feed_wide(to, rows, entries, own, first, w.end);
        else feed_codes<format, type>(to, rows, entries, own, first, w.end);
        const int next = first + kBuffers * kTileTokens;
        if (next < w.end) entries = entries_at(rows, own, next, w.end);
        if constexpr (format == Format::wide) {
            commit_copies();
            wait_for_copies<0>();
        }
        publish_to_multiplications();
        arrive(&shared.full[buffer]);
    }
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
