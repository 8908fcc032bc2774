// How a launch of skinny_gemm on CUDA shares memory bandwidth with its neighbours (PDL): a pure function without CUDA.
//
//     kernel before   ==== last bytes ====|
//     this launch        |first round of the ring: paced|wait| == ring ====== tail ==|
//     next kernel                                                    |launch, its own first round|
//
// If the next kernel starts early, its launch and its first weights cost no time. But this launch's last bytes then
// queue behind those weights. 110 KiB requested at once by each multiprocessor fill the queues for 3 us. (H200, n = k =
// 4096: the first rows come 1.2 us after the wait instead of 0.6.) 27 KiB in flight on each keep memory busy. So a
// launch requests its first round stage by stage: docs/journal/skinny_gemm-cuda.md, entries 13 to 16 and 24 to 27.
#pragma once

#include "config.h"

namespace rocm_fp8::skinny_gemm::cuda {

struct Overlap {
    int before_next;  // the next kernel may start when a CTA has this many steps left to request; or kAtOnce
    int window;  // stages of the first round in flight at a time. Forms that cannot pace: stages requested before the
                 // PDL wait. 0: all at once
    int ahead;   // stages beyond the ring that are fetched into L2 before the PDL wait
};
constexpr int kAtOnce = -1;  // before the PDL wait

enum class OverlapRegime {
    paced_full,   // all CTA slots are taken: the next kernel starts at once, and gets slots as this one ends
    paced_tail,   // slots are free: the next kernel starts in the tail, before CTAs end. Started at once, it would put
                  // two of its CTAs on an idle multiprocessor
    paced_rows,   // the same with 17 rows and more, whose ring is short: more goes through L2
    held_full,    // as paced_full, for forms that cannot pace: all stages but one before the PDL wait
    held_halves,  // K in two parts, forms that cannot pace: three stages before the wait
    wide_clusters,  // clusters of four wide CTAs: four of seven stages before the wait, the next kernel 2 us early
    at_once,        // the first round at once, and the next kernel too
    tail,           // the first round at once, the next kernel in the last quarter
    ring,           // the first round at once, the next kernel when the ring is in flight
    short_ring      // the same, with at most four stages of the ring
};

// What the regimes depend on.
struct Launch {
    BulkShape form;
    int splits;
    int64_t ctas, slots, part;  // CTAs; CTA slots of the chip; k of a part
    int64_t bytes;              // of weights a multiprocessor
    int step, stages, count;    // k of a stage; stages of the ring; steps of a part
    bool full;                  // the CTAs take at least 85 % of the slots
    bool alone;                 // at most one CTA a multiprocessor
    bool all_fetch;             // every CTA may fetch weights before the PDL wait

    constexpr Launch(const Config& c, int64_t m, int64_t n, int64_t k, int multiprocessors, bool constant_b)
        : form(kBulkShapes[c.shape]),
          splits(c.splits),
          ctas(int64_t(c.pieces) * c.splits),
          slots(int64_t(form.slots()) * multiprocessors),
          part(k / c.splits),
          bytes(n * k / multiprocessors),
          step(form.step(m)),
          stages(form.stages(m)),
          count(int((part + step - 1) / step)),
          full(20 * ctas >= 17 * slots),
          alone(ctas <= multiprocessors),
          all_fetch(constant_b && ctas <= slots) {}
};

// Limits of the regimes, as measured on an H200 (150 sizes).
constexpr int64_t kWorthPacing = 3072;  // k, where no CTA slot is free (2048: 1 % of a decoder layer lost)
constexpr int kWorthPacingHalves = 8;   // steps, with 17 rows and more and K in two parts
constexpr int64_t kShortPart = 4608;    // k of a part
constexpr int64_t kLongPartFew = 8192, kLongPartMany = 12288;  // k of a part, up to 16 rows and more
constexpr int64_t kFewBytesShort = 90 << 10,
                  kFewBytes = 100 << 10;  // of weights a multiprocessor, of a short part, of others

constexpr OverlapRegime overlap_regime(const Launch& l, int64_t m, int64_t k, int multiprocessors) {
    const bool paces = l.form.paces(m);
    if (l.all_fetch && !paces && l.full) return OverlapRegime::held_full;
    const int least = m > 16 && l.splits == 2 ? kWorthPacingHalves : l.stages + 1;
    if (l.all_fetch && paces && l.splits <= 2 && l.count >= least) {
        if (!l.full) return m > 16 ? OverlapRegime::paced_rows : OverlapRegime::paced_tail;
        if (m > 16 || k >= kWorthPacing) return OverlapRegime::paced_full;
    }
    if (l.all_fetch && l.form.clusters) return OverlapRegime::wide_clusters;
    if (l.all_fetch && !paces && l.splits == 2) return OverlapRegime::held_halves;
    if (2 * l.ctas > l.slots) return OverlapRegime::at_once;
    if (l.ctas < multiprocessors) return l.splits > 1 && m <= 16 ? OverlapRegime::at_once : OverlapRegime::tail;
    // At least a CTA a multiprocessor. With few rows the two kernels do not disturb each other.
    if (m <= 8) return OverlapRegime::at_once;
    if (l.part <= kShortPart) {
        return m > 16                      ? OverlapRegime::short_ring
               : l.bytes <= kFewBytesShort ? OverlapRegime::at_once
                                           : OverlapRegime::ring;
    }
    const bool long_part = l.part >= (m <= 16 ? kLongPartFew : kLongPartMany);
    return l.bytes <= kFewBytes || long_part ? OverlapRegime::at_once : OverlapRegime::tail;
}

// paced_tail: how many steps before its end a CTA lets the next kernel start, so that it is ready at this one's end.
constexpr int steps_before_end(const Launch& l, int64_t m, int64_t n, int pieces) {
    constexpr int64_t kInFlight = 48 << 10;  // bytes a multiprocessor
    constexpr int kFewestColumns = 28;       // fewer take no less time
    const int64_t columns = Pieces(n, pieces).most_columns();
    const int64_t step_bytes = l.step * (columns < kFewestColumns ? kFewestColumns : columns);
    const int sooner = l.splits == 1 || m <= 8 ? 2 : 0;  // split K with more rows needs no lead
    const int steps = int((kInFlight + l.bytes / 12 + step_bytes / 2) / step_bytes) + sooner;
    return steps < l.count - 2 ? steps : l.count - 2;
}

constexpr Overlap pick_overlap(const Config& c, int64_t m, int64_t n, int64_t k, int multiprocessors, bool constant_b) {
    constexpr int kAhead = 2, kFurther = 4, kFurthest = 6;
    const Launch l(c, m, n, k, multiprocessors, constant_b);
    const int quarter = (l.count + 3) / 4;
    switch (overlap_regime(l, m, k, multiprocessors)) {
        case OverlapRegime::paced_full: return {kAtOnce, 2, kAhead};
        case OverlapRegime::paced_tail:
            return {steps_before_end(l, m, n, c.pieces), 3, m > 8 && l.alone ? kFurther : kAhead};
        case OverlapRegime::paced_rows: return {4, l.count < 7 ? 2 : 3, l.alone ? kFurthest : kAhead};
        case OverlapRegime::held_full: return {kAtOnce, l.stages - 1, kAhead};
        case OverlapRegime::held_halves: return {5, 3, kAhead};
        case OverlapRegime::wide_clusters: return {7, 4, kAhead};
        case OverlapRegime::at_once: return {kAtOnce, 0, kAhead};
        case OverlapRegime::tail: return {l.stages < quarter ? l.stages : quarter, 0, kAhead};
        case OverlapRegime::ring: return {l.stages, 0, kAhead};
        case OverlapRegime::short_ring: return {l.stages < 4 ? l.stages : 4, 0, kAhead};
    }
    return {kAtOnce, 0, kAhead};
}

}  // namespace rocm_fp8::skinny_gemm::cuda
