// What fills shared memory in the kernel for FP8 caches: the queries' rows, and tiles of codes, which a warp loads.
#pragma once

#include "feed.h"
#include "fp8_shape.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

// Where the pair of query numbers from `column` on stands in shared memory. The multiplications' k are the order in
// which fp8_attend.h's lanes read codes: 16 at once of a token, of which each step takes four.
__device__ inline uint8_t* pair_place(uint8_t* panels, int panel_bytes, int row, int column) {
    const bool rope = column >= kLatent;
    const int in_panel = column % kCodePanelColumns, sixteen = in_panel / 16;
    const int lane = rope ? sixteen : sixteen / 2;
    const int panel = rope ? kRopePanel : column / kCodePanelColumns * 2 + sixteen % 2;
    return panels + panel * panel_bytes + swizzled(row, in_panel % 16 / 2) + lane * 4;
}

// Of a row's bfloat16 numbers, as float32 has it. Eight lanes have the row, each 16 bytes of every panel.
__device__ inline uint32_t largest_exponent(const uint4 (&held)[kPanels]) {
    uint32_t largest = 0;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = max_halves(largest, word(held[panel], i) & 0x7FFF7FFFu);
    }
    largest = max(largest & 0xFFFFu, largest >> 16);
#pragma unroll
    for (int distance = 1; distance < kRowLanes; distance *= 2)
        largest = max(largest, __shfl_xor_sync(kWholeWarp, largest, distance));
    return largest >> 7;
}

// The row as float16, times a power of two that brings the largest below 2^15. Returns what undoes it.
__device__ inline float lift(uint4 (&held)[kPanels]) {
    constexpr uint32_t kHighest = 250, kTarget = 268;  // exponents, as float32 has them: 268 - e becomes 2^14
    const uint32_t exponent = min(kTarget - largest_exponent(held), kHighest);
    const float by = bits_float(exponent << 23);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            set_word(held[panel], i, Pairs<DType::f16>::round(Pairs<DType::bf16>::widen(word(held[panel], i)) * by));
    }
    return bits_float((254 - exponent) << 23);
}

// Of row `row` of the tile the lane's 16 bytes of each panel; zeros of one behind the last.
__device__ inline void load_query(uint4 (&held)[kPanels], const Launch& l, const Work& w, int row, int place) {
    const bool is = w.row + row < l.args.rows();
    const void* const from = offset(query_at(l, w, row), place * 16);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
        held[panel] = is ? load(offset(from, panel * kPanelRow)) : uint4{0, 0, 0, 0};
}

// Rows of the queries as what is multiplied. thread: of kThreads; eight lanes have a row.
template <DType type, int kThreads, Format format, int kRows>
__device__ inline void feed_narrow_queries(Fp8Memory<format, kRows>& shared, const Launch& l, const Work& w,
                                           int thread) {
    const int place = thread % kRowLanes;
    for (int row = thread / kRowLanes; row < kRows; row += kThreads / kRowLanes) {
        uint4 held[kPanels];
        load_query(held, l, w, row, place);
        float lifted = 1;
        if constexpr (kMath<format, type> != type) lifted = lift(held);
        if (place == 0) shared.lifted[row] = lifted;
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = panel * kPanelColumns + place * 8 + 2 * i;
                *reinterpret_cast<uint32_t*>(pair_place(shared.q[0], sizeof(shared.q[0]), row, column)) =
                    word(held[panel], i);
            }
        }
    }
    publish_to_multiplications();
}

// Whether lanes copy; what arrives at `full` then.
template <Format format>
__device__ inline bool copies_rows(const Launch& l) {
    return format == Format::mixed || l.box_rows == 0;
}
template <Format format>
__device__ inline int arrivals(const Launch& l) {
    return (l.box_rows > 0) + (copies_rows<format>(l) ? kWarp : 0);
}

// Where the rotated numbers of a token begin, and how many vectors they are.
template <Format format>
constexpr int kRopeBytesAt = format == Format::mixed ? kRopeAt : kLatent;
template <Format format>
constexpr int kRopeVectors = format == Format::mixed ? 8 : 4;

// Lanes have vectors of a row.
template <Format format>
__device__ inline void copy_rows(CodeTile& to, const attention::PagedRows& rows, const Entries& entries, int first,
                                 int end) {
    const int lane = threadIdx.x % kWarp;
    for (int row = 0; row < kTileTokens; ++row) {
        const int token = min(first + row, end - 1);
        const uint8_t* const from = rows.row_of(token, entries.of(token - first));
        copy_vector_async(&to[lane / kRowLanes][swizzled(row, lane % kRowLanes)], from + lane * 16, 16);
        if (lane < kRopeVectors<format>)
            copy_vector_async(&to[kRopeCodes][swizzled(row, lane)], from + kRopeBytesAt<format> + lane * 16, 16);
    }
}

template <Format format>
__device__ inline void copy_boxes(CodeTile& to, const attention::PagedRows& rows, const Entries& entries, int first,
                                  int end, int box_rows, const CUtensorMap* map, Barrier* full) {
    if (elected()) arrive_expecting(full, sizeof(CodeTile));
    __syncwarp();
    for (int row = 0; row < kTileTokens; row += box_rows) {
        // Boxes behind the end: any rows, which become zeros later.
        const int inside = first + row < end ? row : 0;
        const auto at = rows.place_of(first + inside, entries.of(inside));
        if (elected()) {
#pragma unroll
            for (int p = 0; p < kCodePanels; ++p) {
                const int column = p == kRopeCodes ? kRopeBytesAt<format> : p * kCodePanelColumns;
                copy_tile_of(int(at.page), &to[p][row * kPanelRow], map, column, int(at.row), full);
            }
        }
        __syncwarp();
    }
}

// Tiles of the CTA in order, each into the next stage. For one warp.
template <Format format, int kRows>
__device__ inline void feed_tiles(Fp8Memory<format, kRows>& shared, const Launch& l, const CUtensorMap* map,
                                  const Work& w) {
    const attention::PagedRows rows = rows_of(l, w.b);
    const int lane = threadIdx.x % kWarp;
    using Roles = Fp8Roles<format, kRows>;
    int stage = 0, arrival = 0;
    uint32_t parity = 1;
    for (int first = w.begin; first < w.end; first += kTileTokens) {
        const Entries entries(rows, first, w.end);
        // Barrier: the tile before has been read there. The first time it is empty.
        wait_for(&shared.empty[stage], parity);
        Barrier* const full = &shared.full[arrival];
        CodeTile& to = shared.codes[stage];
        if (l.box_rows > 0) copy_boxes<format>(to, rows, entries, first, w.end, l.box_rows, map, full);
        else copy_rows<format>(to, rows, entries, first, w.end);
        if constexpr (format == Format::mixed) {
            for (int row = lane; row < kTileTokens; row += kWarp) {
                const int token = min(first + row, w.end - 1);
                copy_vector_async(shared.scales[stage][row], rows.row_of(token, entries.of(token - first)) + kScalesAt,
                                  16);
            }
        }
        if (copies_rows<format>(l)) arrive_after_copies(full);
        if (++stage == Roles::kStages) stage = 0, parity ^= 1;
        if (++arrival == Roles::kArrivals) arrival = 0;
    }
    if (copies_rows<format>(l)) wait_for_copies<0>();  // a thread that has ended copies nothing
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
