// How a launch of skinny_gemm on CUDA shares memory with the kernels beside it (PDL): a pure function, without CUDA.
//
//     kernel before   ==== last bytes ====|
//     this launch        |first round of the ring: paced|wait| == ring ====== tail ==|
//     next kernel                                                    |launch, its own first round|
//
// An early start of the next kernel hides its launch and its first weights. It costs: this launch's last bytes wait behind
// them in memory's queues. A multiprocessor that asks for 110 KiB at once has those queues full for 3 us (n = k = 4096 on an
// H200: 1.2 us from the wait to the first rows in place of 0.6). 27 KiB in flight on each keep memory busy. So a launch asks for its
// first round a few stages at a time. The measurements: docs/journal/skinny_gemm-cuda.md, entries 13 to 16, 24, 26 and 27.
#pragma once

#include "config.h"

namespace rocm_fp8::skinny_gemm::cuda {

struct Overlap {
    int before_next;  // the next kernel may start when this many steps of a CTA are still to be asked for; or kAtOnce
    int window;  // stages of the first round in flight at a time; by forms that cannot pace it: asked for before the
                 // wait for the kernel before. 0: all at once
    int ahead;   // stages beyond the ring that go to L2 before that wait
};
constexpr int kAtOnce = -1;  // before that wait

enum class OverlapRegime {
    paced_full,  // every CTA slot is taken: the next kernel starts at once, and finds a slot when this one ends
    paced_tail,  // slots are free: the next kernel starts in the tail, before CTAs end. At once it would put two of its own
                 // on an idle multiprocessor, and the kernel after it again
    paced_rows,     // the same with 17 rows and more, whose ring is short: more of it through L2
    held_full,      // as paced_full, for forms that cannot pace: one stage is left for after the wait
    held_halves,    // K in two parts, forms that cannot pace: three stages before the wait
    wide_clusters,  // clusters of four wide CTAs: four stages of seven before the wait, the next kernel about 2 us early
    at_once,        // all at once, and the next kernel too
    tail,           // all at once, the next kernel in the last quarter
    ring,           // all at once, the next kernel when the ring is in flight
    short_ring      // the same, of at most four stages
};

// What the regimes depend on.
struct Launch {
    BulkShape form;
    int splits;
    int64_t ctas, slots, part;  // CTAs; CTA slots of the chip; k of a part
    int64_t bytes;              // of weights a multiprocessor
    int step, stages, count;    // k of a stage; stages of the ring; steps of a part
    bool full;                  // at least 85 % of the CTA slots are taken
    bool alone;                 // a multiprocessor has one CTA at most
    bool all_fetch;             // every CTA may fetch weights before the wait

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

// Limits of the regimes, as seen on an H200 (150 sizes).
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
    // A CTA a multiprocessor: with few rows neither kernel is in the other's way.
    if (m <= 8) return OverlapRegime::at_once;
    if (l.part <= kShortPart) {
        return m > 16                      ? OverlapRegime::short_ring
               : l.bytes <= kFewBytesShort ? OverlapRegime::at_once
                                           : OverlapRegime::ring;
    }
    const bool long_part = l.part >= (m <= 16 ? kLongPartFew : kLongPartMany);
    return l.bytes <= kFewBytes || long_part ? OverlapRegime::at_once : OverlapRegime::tail;
}

// paced_tail: the step before the end with which the next kernel starts, so that it is there when this one ends.
constexpr int steps_before_end(const Launch& l, int64_t m, int64_t n, int pieces) {
    constexpr int64_t kInFlight = 48 << 10;  // bytes a multiprocessor
    constexpr int kFewestColumns = 28;       // fewer take no less time
    const int64_t columns = Pieces(n, pieces).most_columns();
    const int64_t step_bytes = l.step * (columns < kFewestColumns ? kFewestColumns : columns);
    const int sooner = l.splits == 1 || m <= 8 ? 2 : 0;  // clusters with more to multiply need no such lead
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
