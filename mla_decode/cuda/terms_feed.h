// What fills shared memory in the kernel for FP8 caches and many rows: the queries as terms, and tiles of codes.
#pragma once

#include "fp8_feed.h"
#include "online.h"
#include "terms_shape.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

// Of two numbers up to 448, in the low halves.
struct Terms {
    uint32_t larger, smaller;
};
#define ROCM_FP8_TERMS(name, smaller_type)                                                                  \
    __device__ inline Terms name(float2 v) {                                                                \
        Terms t;                                                                                            \
        asm("{\n .reg .b16 l, s;\n .reg .b32 v, w;\n cvt.rn.f16x2.f32 v, %3, %2;\n"                         \
            " cvt.rn.satfinite.e4m3x2.f16x2 l, v;\n cvt.rn.f16x2.e4m3x2 w, l;\n sub.rn.f16x2 v, v, w;\n"    \
            " cvt.rn.satfinite." smaller_type "x2.f16x2 s, v;\n cvt.u32.u16 %0, l;\n cvt.u32.u16 %1, s;\n}" \
            : "=r"(t.larger), "=r"(t.smaller)                                                               \
            : "f"(v.x), "f"(v.y));                                                                          \
        return t;                                                                                           \
    }
ROCM_FP8_TERMS(terms_of_queries, "e4m3")
ROCM_FP8_TERMS(terms_of_p, "e5m2")

// Rows of queries as terms, each row times a power of two that brings its largest number below 2^8. FP8 has no infinity:
// it becomes NaN. Eight lanes have a row, each eight numbers of every 64. thread: of those that multiply.
__device__ inline void feed_terms(TermsMemory& shared, const Launch& l, const Work& w, int thread) {
    constexpr uint32_t kHighest = 250, kTarget = 261;  // exponents, as float32 has them: 261 - e becomes 2^7
    const int place = thread % kRowLanes;
    const float factor = l.args.softmax_scale * kLog2E * load_float(l.args.cache.scale);
#pragma unroll 1
    for (int row = thread / kRowLanes; row < kTileRows; row += kMultiplyingThreads / kRowLanes) {
        uint4 held[kPanels];
        load_query(held, l, w, row, place);
        const uint32_t exponent = min(kTarget - largest_exponent(held), kHighest);
        const float by = bits_float(exponent << 23);
        if (place == 0) shared.of_scores[row] = factor * bits_float((254 - exponent) << 23);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
            uint32_t larger[2], smaller[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const auto terms = [&](int pair) {
                    const float2 v = Pairs<DType::bf16>::widen(word(held[panel], pair)) * by;
                    return terms_of_queries({v.x - v.x * 0.0f, v.y - v.y * 0.0f});
                };
                const Terms first = terms(2 * i), second = terms(2 * i + 1);
                larger[i] = first.larger | second.larger << 16, smaller[i] = first.smaller | second.smaller << 16;
            }
            const bool rope = panel == kRopePanel;
            const int sixteen = (rope ? 0 : panel % 2 * 4) + place / 2, eight = place % 2 * 8;
            uint8_t* const of_larger = shared.q[rope ? kQueryPanels - 1 : panel / 2] + eight;
            uint8_t* const of_smaller = rope ? of_larger : of_larger + kLargerPanels * kPanelBytes;
            *reinterpret_cast<uint2*>(of_larger + swizzled(row, sixteen)) = {larger[0], larger[1]};
            *reinterpret_cast<uint2*>(of_smaller + swizzled(row, sixteen + 4 * rope)) = {smaller[0], smaller[1]};
        }
    }
    publish_to_multiplications();
}

// Queries that the CTA takes later come to L2. For one warp.
__device__ inline void fetch_queries(const Launch& l, const Work& w) {
    constexpr int kLine = 128;
    const int rows = min(kTileRows, l.args.rows() - w.row);
    for (int row = threadIdx.x % kWarp; row < rows; row += kWarp) {
        for (int byte = 0; byte < kWidth * 2; byte += kLine)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(offset(query_at(l, w, row), byte)) : "memory");
    }
}

// Tiles of all the CTA's work, each into the next stage. For one warp.
__device__ inline void feed_all_tiles(TermsMemory& shared, const Launch& l, const CUtensorMap* map) {
    int stage = 0;
    uint32_t parity = 1;
    for (uint32_t item = blockIdx.x; item < l.items; item += gridDim.x) {
        const Work w = work_of<kTileTokens>(l, kTileRows, item);
        const attention::PagedRows rows = rows_of(l, w.b);
        for (int first = w.begin; first < w.end; first += kTileTokens) {
            const Entries entries(rows, first, w.end);
            // Barrier: the tile before has been read there. The first time it is empty.
            wait_for(&shared.empty[stage], parity);
            CodeTile& to = shared.codes[stage];
            Barrier* const full = &shared.full[stage];
            if (l.box_rows > 0) {
                copy_boxes<Format::fp8>(to, rows, entries, first, w.end, l.box_rows, map, full);
            } else {
                copy_rows<Format::fp8>(to, rows, entries, first, w.end);
                commit_copies();
                wait_for_copies<0>();
                publish_to_multiplications();
                arrive(full);
            }
            if (++stage == kTermsStages) stage = 0, parity ^= 1;
        }
        if (item + gridDim.x < l.items) fetch_queries(l, work_of<kTileTokens>(l, kTileRows, item + gridDim.x));
    }
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
