// What fills shared memory: the queries' rows, then halves of tiles of tokens, which have warps of their own.
//
// Tokens of 16 bits pass through no register: whole tiles come by TMA, boxes of up to 64 rows of a page; else rows one
// by one (cp.async). Codes are made 16-bit numbers on their way. Rows behind the end become zeros: p is 0 there, and 0
// times what lies behind a sequence's tokens could be NaN.
#pragma once

#include "../../common/cuda/async_copy.h"
#include "../../common/cuda/tma.h"
#include "codes.h"
#include "shape.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

// Closes: what threads have written becomes visible to the multiplications, which read by another way.
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

// A row's bfloat16 numbers as float16, lifted. Eight lanes have the row, each 16 bytes of every panel.
__device__ inline void lift_row(Memory& shared, const void* from, bool is, int row, int place) {
    constexpr uint32_t kHighest = 250, kTarget = 268;  // exponents, as float32 has them: 268 - e becomes 2^14
    uint4 held[kPanels];
    uint32_t largest = 0;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
        held[panel] = is ? load(offset(from, panel * kPanelRow)) : uint4{0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = max_halves(largest, word(held[panel], i) & 0x7FFF7FFFu);
    }
    largest = max(largest & 0xFFFFu, largest >> 16);
#pragma unroll
    for (int distance = 1; distance < kRowLanes; distance *= 2)
        largest = max(largest, __shfl_xor_sync(kWholeWarp, largest, distance));
    const uint32_t exponent = min(kTarget - (largest >> 7), kHighest);
    const float by = bits_float(exponent << 23);
    if (place == 0) shared.lifted[row] = bits_float((254 - exponent) << 23);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            set_word(held[panel], i, Pairs<DType::f16>::round(Pairs<DType::bf16>::widen(word(held[panel], i)) * by));
        *reinterpret_cast<uint4*>(&shared.q[panel][swizzled(row, place)]) = held[panel];
    }
}

// thread: of kThreads.
template <int kThreads, bool lifts>
__device__ inline void feed_queries(Memory& shared, const Launch& l, const Work& w, int thread) {
    const int place = thread % kRowLanes;
    for (int row = thread / kRowLanes; row < kTileRows; row += kThreads / kRowLanes) {
        const bool is = w.row + row < l.args.rows();
        const void* const from = offset(query_at(l, w, row), place * 16);
        if constexpr (lifts) {
            lift_row(shared, from, is, row, place);
        } else {
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel)
                copy_vector_async(&shared.q[panel][swizzled(row, place)], offset(from, panel * kPanelRow), is ? 16 : 0);
        }
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

// Codes: a lane has two rows of the tile, so that where a row lies is computed once. A window is eight times 16 bytes,
// all in flight; while one is decoded, the next one's come. Windows of a half: two of each row's 256 codes; then the
// rotated numbers, four times 16 codes of both rows, or eight times 16 bytes of each.
template <Format format, DType type>
class Codes {
    static constexpr bool kMixed = format == Format::mixed;
    static constexpr int kWindow = 8, kRows = kTileTokens / kWarp, kMain = kRows * kLatent / kHalves / 16 / kWindow;
    static constexpr int kSixteens = kLatent / 16, kOfHalf = kSixteens / kHalves;

  public:
    __device__ Codes(const Hand& mine) : mine(mine), windows(kMain + (!kMixed && mine.has_rope())) {}

    // The first window of the tile at `first`.
    __device__ void begin(const attention::PagedRows& rows, int first, int end) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int token = first + int(threadIdx.x) % kWarp + r * kWarp, inside = min(token, end - 1);
            from[r] = rows.row_of(inside, rows.entry_of(inside));
            live[r] = token < end;
        }
        if constexpr (kMixed) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int at = kScalesAt + (mine.half * 2 + i) * 4;
                    scales[r][i] = live[r] ? load_float(from[r] + at) : 0.0f;
                }
            }
        }
        load_window(0);
    }
    __device__ void put(Tile& to) {
#pragma unroll 1
        for (int window = 0; window < windows; ++window) {
#pragma unroll
            for (int n = 0; n < kWindow; ++n) {
                put_one(to, window, n);
                if (window + 1 < windows) load_one(window + 1, n);
            }
        }
        if (!kMixed || !mine.has_rope()) return;
#pragma unroll 1
        for (int r = 0; r < kRows; ++r) {
            const int row = int(threadIdx.x) % kWarp + r * kWarp;
            const uint8_t* const rope = (r ? from[1] : from[0]) + kRopeAt;
            const bool is = r ? live[1] : live[0];
#pragma unroll
            for (int n = 0; n < kWindow; ++n) held[n] = is ? load(rope + n * 16) : uint4{0, 0, 0, 0};
#pragma unroll
            for (int n = 0; n < kWindow; ++n)
                *reinterpret_cast<uint4*>(&to[kRopePanel][swizzled(row, n)]) = from_bf16<type>(held[n]);
        }
    }

  private:
    __device__ static bool is_main(int window) { return kMixed || window < kMain; }
    __device__ static int row_of(int window, int n) {
        return is_main(window) ? window / (kMain / kRows) : n / (kWindow / kRows);
    }
    // Which 16 numbers of the 576.
    __device__ int sixteen(int window, int n) const {
        if (is_main(window)) return mine.half * kOfHalf + window % (kMain / kRows) * kWindow + n;
        return kSixteens + n % (kWindow / kRows);
    }
    __device__ void load_one(int window, int n) {
        const int r = row_of(window, n);
        const int at = sixteen(window, n) * 16;
        const uint8_t* const row = r ? from[1] : from[0];
        held[n] = (r ? live[1] : live[0]) ? load(row + at) : uint4{0, 0, 0, 0};
    }
    __device__ void load_window(int window) {
#pragma unroll
        for (int n = 0; n < kWindow; ++n) load_one(window, n);
    }
    __device__ void put_one(Tile& to, int window, int n) const {
        const int r = row_of(window, n), row = int(threadIdx.x) % kWarp + r * kWarp;
        if constexpr (kMixed) {
            // A window is of one scale.
            const bool second = window % (kMain / kRows);
            const float scale = r ? (second ? scales[1][1] : scales[1][0]) : second ? scales[0][1] : scales[0][0];
            put_sixteen(to, row, sixteen(window, n), decoded<type, true>(held[n], scale));
        } else {
            put_sixteen(to, row, sixteen(window, n), decoded<type, false>(held[n], 1.0f));
        }
    }

    const Hand& mine;
    const int windows;
    const uint8_t* from[kRows];
    bool live[kRows];
    float scales[kRows][2];
    uint4 held[kWindow];
};

// A whole tile. All lanes arrive at `full`, which waits for the bytes as well.
__device__ inline void feed_boxes(Tile& to, const attention::PagedRows& rows, const Entries& entries, const Hand& mine,
                                  int first, int box_rows, const CUtensorMap* map, Barrier* full) {
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

// Each feeds a half of every second tile of the CTA's. Tokens of 16 bits:
__device__ inline void feed_copies(Memory& shared, const Launch& l, const CUtensorMap* map, const Work& w,
                                   const Hand& mine, int first) {
    const attention::PagedRows rows = rows_of(l, w.b);
    Entries entries(rows, first, w.end);
    Tile& to = shared.keys[mine.buffer];
    for (uint32_t parity = 1; first < w.end; first += kBuffers * kTileTokens, parity ^= 1) {
        // Closes: the tile before has been read there. The first time it is empty.
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

template <Format format, DType type>
__device__ inline void feed_codes(Memory& shared, const Launch& l, const Work& w, const Hand& mine, int first) {
    const attention::PagedRows rows = rows_of(l, w.b);
    Codes<format, kMath<format, type>> codes(mine);
    codes.begin(rows, first, w.end);
    for (uint32_t parity = 1; first < w.end; parity ^= 1) {
        // Closes: the tile before has been read there. The first time it is empty.
        wait_for(&shared.empty[mine.buffer][mine.half], parity);
        codes.put(shared.keys[mine.buffer]);
        publish_to_multiplications();
        arrive(&shared.full[mine.buffer][mine.half]);
        first += kBuffers * kTileTokens;
        if (first < w.end) codes.begin(rows, first, w.end);
    }
}

template <Format format, DType type>
__device__ inline void feed(Memory& shared, const Launch& l, const CUtensorMap* map, const Work& w) {
    const Hand mine;
    const int first = w.begin + mine.buffer * kTileTokens;
    if (first >= w.end) return;
    if constexpr (format == Format::wide) feed_copies(shared, l, map, w, mine, first);
    else feed_codes<format, type>(shared, l, w, mine, first);
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
