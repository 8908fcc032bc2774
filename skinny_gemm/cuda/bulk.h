// The GEMM kernel for Hopper and later: TMA fills a ring in shared memory, and 8 or 16 warps multiply.
//
//     HBM --> TMA: 10 to 32 KiB of weights a stage ---+
//     L2  --> TMA: the same k of the rows of A -------+-> ring --> warp w: all columns, k = 256 i + 32 w ... + 31
//                                                                  --> sums in registers
//     registers --> shared memory: summed over the warps
//               --> with split-K, to the CTA of the cluster that finishes the column: summed over the CTAs
//
// The k that a warp adds, and their order, do not depend on the columns of a CTA. So all widths give the same bits,
// with one exception: more than 64 columns by more than 16 rows. A warp has no registers for all of those sums, so it
// takes one half of the columns:
//
//     warp w of 8:   k = 128 i + 32 (w % 4) ... + 31: the exception
//     warp w of 16:  k = 256 i + 32 (w % 8) ... + 31: the same bits as all other widths
#pragma once

#include "../../common/cuda/tma.h"
#include "../../common/cuda/pdl.h"
#include "overlap.h"
#include "../../common/gemm/epilogue.h"
#include "end.h"
#include "fours.h"
#include "reduce.h"
#include "../../common/cuda/mma.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

constexpr int kRowBytes = 128;  // of a row in a stage: all banks once; also the k of one TMA copy
constexpr int kWarpK = 32;      // k of a warp in one turn

// The compile-time shape of the kernel. A CTA makes up to kColumns columns of the result for up to 8 * kRowTiles rows
// of A. The ring has kStages stages, and kConsumers warps multiply. A thread finishes kApiece neighbouring columns.
template <int kColumns_, int kRowTiles, int kSlots_, int kConsumers_, bool kClusters, int kApiece_ = 1>
struct Bulk {
    static constexpr int kColumns = kColumns_, kStages = kSlots_, kConsumers = kConsumers_,
                         kRows = kRowTiles * kMmaNarrow, kApiece = kApiece_;
    static constexpr BulkShape kShape{.name = "",
                                      .columns = kColumns,
                                      .stages8 = kStages,
                                      .stages16 = kStages,
                                      .stages32 = kStages,
                                      .warps = kConsumers,
                                      .clusters = kClusters};
    // Each group of warps has its own columns; the warps of a group divide k. In a turn each warp of a group takes
    // kWarpK.
    static constexpr int kGroups = kShape.groups(kRows), kGroupWarps = kConsumers / kGroups;
    static constexpr int kGroupColumns = kColumns / kGroups, kTurn = kGroupWarps * kWarpK;
    static constexpr bool kSplits = kShape.splits(kRows);  // split-K over a cluster
    // Whether a thread finishes four columns at a time (fours.h), not one.
    static constexpr bool kByFours = kGroups == 2 && kConsumers == kWarps;
    // The matrix instruction's wide operand: the columns if their number is a multiple of 16, else the rows.
    static constexpr bool kRowsWide = kGroupColumns % kMmaWide != 0;
    static constexpr int kWide = (kRowsWide ? kRows : kGroupColumns) / kMmaWide;
    static constexpr int kNarrow = (kRowsWide ? kGroupColumns : kRows) / kMmaNarrow;
    static_assert(!kRowsWide || kRows % kMmaWide == 0);
    static constexpr int kStep = kShape.step(kRows);                           // k of a stage
    static constexpr int kTurns = kStep / kTurn, kBlocks = kStep / kRowBytes;  // of a stage; TMA copies of each matrix
    // An extra warp keeps the ring full, and another one paces its first round. Without them the consumers do it.
    static constexpr bool kProducer = kShape.produces(kRows), kPaces = kShape.paces(kRows);
    static constexpr int kThreads = (kConsumers + kProducer) * kWarp, kMostThreads = kThreads + kProducer * kWarp;
    static constexpr int kPacer = kProducer ? kConsumers + 1 : 0;

    // How many columns each CTA of a cluster finishes, a multiple of kAtOnce; the last CTAs may have fewer.
    static constexpr int kAtOnce = kByFours ? 4 : kApiece;
    ROCM_FP8_HD static constexpr int share(int splits) {
        const int even = (kColumns + splits - 1) / splits;
        return (even + kAtOnce - 1) / kAtOnce * kAtOnce;
    }
    ROCM_FP8_HD static constexpr int columns_of(int part, int splits) {
        const int left = kColumns - part * share(splits);
        return left < 0 ? 0 : left < share(splits) ? left : share(splits);
    }
    // Upper bound of splits * share(splits). With pairs it is the least: some forms have no memory for more.
    static constexpr int most_shared(int splits = kMaxClusterSplits) {
        const int fewer = splits > 1 ? most_shared(splits - 1) : 0, here = splits * share(splits);
        return fewer > here ? fewer : here;
    }
    static constexpr int kSharedColumns =
        kApiece > 1 ? most_shared() : kColumns + (kByFours ? 2 : 1) * kMaxClusterSplits;
    static constexpr bool shares_fit(int splits = kMaxClusterSplits) {
        return splits == 0 || (splits * share(splits) <= kSharedColumns && shares_fit(splits - 1));
    }

    // The first of a warp's columns.
    static __device__ int group_column(int warp) { return warp / kGroupWarps * kGroupColumns; }

    struct Stage {
        uint8_t columns[kBlocks][kColumns][kRowBytes], rows[kBlocks][kRows][kRowBytes];
    };
    struct Shared {
        union {
            alignas(1024) Stage stages[kStages];
            // Reuses the ring's memory after the main loop.
            struct {
                // Padded, so that a warp's writes meet no bank conflicts.
                alignas(16) float parts[kGroupWarps][kRows][kColumns + (kRowsWide ? 4 : 8)];
                float scale_b[kByFours ? kColumns + 4 : 1],
                    bias[kByFours ? kColumns + 4 : 1];  // of the CTA's columns; only with kByFours
            };
        };
        // The sums of this CTA's share of the columns, sent by each CTA of the cluster: [CTA][row][column].
        alignas(16) float sums[kSplits ? kRows * kSharedColumns : 1];
        Barrier sums_full;
        float scale_a[kRows + (kApiece > 1)];  // and, of a sender, the epoch
        Barrier full[kStages], empty[kStages];
        Barrier first[kStages];  // weights of a paced first round; `full` then covers its rows alone
    };
};

// A barrier of the consumer warps alone.
template <class B>
__device__ inline void consumers_meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(B::kConsumers * kWarp) : "memory");
}

// Keeps a CTA's ring full. Its methods are called by one thread at a time.
template <class B>
struct Feeder {
    typename B::Shared& shared;
    const CUtensorMap *weights, *rows;
    int first_column, columns, first_step, count;
    int tail;    // the step at which the next kernel may start; -1: it already may
    int window;  // steps of a paced first round in flight at once; not paced: steps before the PDL wait; 0: all
    int ahead;   // steps beyond the first round that are prefetched into L2

    __device__ bool paced() const { return B::kPaces && window > 0; }
    __device__ void copy_weights(int stage, int step, Barrier* barrier) const {
#pragma unroll
        for (int b = 0; b < B::kBlocks; ++b) {
            copy_tile<true>(shared.stages[stage].columns[b], weights, k_of(step, b), first_column, barrier);
        }
    }
    __device__ void copy_rows(int stage, int step) const {
        if (step == tail) let_next_kernel_start();
#pragma unroll
        for (int b = 0; b < B::kBlocks; ++b) {
            copy_tile<false>(shared.stages[stage].rows[b], rows, k_of(step, b), 0, &shared.full[stage]);
        }
    }
    // Prefetches the weights of steps [from, to) into L2.
    __device__ void fetch_weights(int from, int to) const {
        for (int step = from; step < to && step < count; ++step) {
            for (int b = 0; b < B::kBlocks; ++b) fetch_tile_to_l2(weights, k_of(step, b), first_column);
        }
    }
    // Loads the weights of one step of the first round.
    __device__ void begin(int step) const {
        Barrier* const barrier = paced() ? &shared.first[step] : &shared.full[step];
        arrive_expecting(barrier, (columns + (paced() ? 0 : B::kRows)) * B::kStep);
        copy_weights(step, step, barrier);
    }
    // Loads the weights of the first `window` steps, or of the whole first round if `window` is 0.
    __device__ void begin_first() const {
        for (int s = 0; s < B::kStages && s < count; ++s) {
            if (window == 0 || s < window) begin(s);
        }
    }
    // Loads the weights of the other steps, then prefetches into L2. Each step waits until the step `window` before it
    // has arrived.
    __device__ void begin_rest() const {
        for (int s = window; s < B::kStages + ahead && s < count; ++s) {
            if (s - window < B::kStages) wait_for(&shared.first[s - window], 0);
            if (s < B::kStages) begin(s);
            else fetch_weights(s, s + 1);
        }
    }
    // begun: begin_first and begin_rest have loaded their part of the weights. The two cases are separate, so that both
    // loops unroll: with stage addresses computed at run time, the first rows arrive later (up to 4 %).
    __device__ void first_round(bool begun) const {
        if (begun) {
            for (int s = 0; s < B::kStages && s < count; ++s) {
                if (paced()) arrive_expecting(&shared.full[s], B::kRows * B::kStep);
                else if (window > 0 && s >= window) begin(s);
                copy_rows(s, s);
            }
        } else {
            for (int s = 0; s < B::kStages && s < count; ++s) {
                begin(s);
                copy_rows(s, s);
            }
        }
    }
    // parity: that of the stage's previous round.
    __device__ void refill(int stage, uint32_t parity, int step) const {
        wait_for(&shared.empty[stage], parity);
        arrive_expecting(&shared.full[stage], (columns + B::kRows) * B::kStep);
        copy_weights(stage, step, &shared.full[stage]);
        copy_rows(stage, step);
    }

  private:
    __device__ int k_of(int step, int block) const { return (first_step + step) * B::kStep + block * kRowBytes; }
};

template <class B>
__device__ inline void consume(const Feeder<B>& feeder, Sums (&sums)[B::kWide][B::kNarrow], int warp, int lane) {
    const int row = row_of(lane / 4), t = lane % 4;
    const int at = row * kRowBytes + (((warp % 4 * 2 + t / 2) ^ row) * kChunk) + t % 2 * 8;
    constexpr int kTurnBlocks = B::kTurn / kRowBytes;
    uint32_t parity = 0;
    for (int first = 0; first < feeder.count; first += B::kStages, parity ^= 1) {
        // Unrolled, so that a stage's offset is a constant.
#pragma unroll
        for (int s = 0; s < B::kStages; ++s) {
            const int step = first + s;
            if (step >= feeder.count) return;
            wait_for(&feeder.shared.full[s], parity);
            if (feeder.paced() && first == 0) wait_for(&feeder.shared.first[s], 0);
            uint2 wide[B::kTurns][B::kWide][2], narrow[B::kTurns][B::kNarrow];
#pragma unroll
            for (int turn = 0; turn < B::kTurns; ++turn) {
                const int block = turn * kTurnBlocks + warp % B::kGroupWarps / 4;
                const uint8_t* column = feeder.shared.stages[s].columns[block][B::group_column(warp)] + at;
                const uint8_t* of_a = feeder.shared.stages[s].rows[block][0] + at;
                const uint8_t *of_narrow = B::kRowsWide ? column : of_a, *of_wide = B::kRowsWide ? of_a : column;
#pragma unroll
                for (int n = 0; n < B::kNarrow; ++n) {
                    narrow[turn][n] = *reinterpret_cast<const uint2*>(of_narrow + n * 8 * kRowBytes);
                }
#pragma unroll
                for (int w = 0; w < 2 * B::kWide; ++w) {
                    wide[turn][w / 2][w % 2] = *reinterpret_cast<const uint2*>(of_wide + w * 8 * kRowBytes);
                }
            }
            // Barrier: the stage is refilled only after all lanes have read it into registers.
            __syncwarp();
            if (lane == 0) arrive(&feeder.shared.empty[s]);
            // Refills the stage of the previous step, which the other warps have left by now. It comes before this warp
            // multiplies: a step's products take as long as a stage's load, and a later refill leaves a third of the
            // ring empty.
            if (!B::kProducer && step > 0 && step % B::kConsumers == warp && step - 1 + B::kStages < feeder.count &&
                elected()) {
                feeder.refill((s + B::kStages - 1) % B::kStages, s == 0 ? parity ^ 1 : parity, step - 1 + B::kStages);
            }
#pragma unroll
            for (int turn = 0; turn < B::kTurns; ++turn) multiply_chunks(sums, wide[turn], narrow[turn]);
        }
    }
}

// --- the phases of a CTA ---

// Prologue, by one thread: mbarriers, the loads that need not wait for the previous kernel, and the next kernel's
// start. The caller picks the thread by its lane, not by elected(). The slower issue is wanted: the prologue's loads
// compete with the last loads of the previous kernel (H200: with elected() 4096 x 3072 with 32 rows takes 6.0 us, not
// 4.9).
template <class B>
__device__ inline void prologue(const Feeder<B>& feeder, const Args& a, int splits, int part, bool early) {
    typename B::Shared& shared = feeder.shared;
    for (int s = 0; s < B::kStages; ++s) {
        make_barrier(&shared.full[s], 1);
        make_barrier(&shared.empty[s], B::kConsumers);
        if (feeder.paced()) make_barrier(&shared.first[s], 1);
    }
    if (splits > 1) make_barrier(&shared.sums_full, 1);
    publish_barriers();
    if (splits > 1) arrive_expecting(&shared.sums_full, B::columns_of(part, splits) * int(a.m) * splits * 4);
    if (a.constant_b) {
        feeder.begin_first();
        if (early && !feeder.paced()) feeder.fetch_weights(B::kStages, B::kStages + feeder.ahead);
    } else if (early && B::kRows > kMmaNarrow) {
        feeder.fetch_weights(0, B::kStages);  // up to 8 rows: no gain, or up to 9 % slower
    }
    fetch_map(feeder.rows);
    if (early && a.constant_b) let_next_kernel_start();
}

// The producer warp's loop, by one thread: all steps after the ring's first round.
template <class B>
__device__ inline void produce(const Feeder<B>& feeder) {
    int stage = 0;
    uint32_t parity = 0;
    for (int step = B::kStages; step < feeder.count; ++step) {
        feeder.refill(stage, parity, step);
        if (++stage == B::kStages) stage = 0, parity ^= 1;
    }
}

// A CTA, or with split-K a cluster of CTAs, computes one piece of the columns. For columns beyond the piece it computes
// sums from undefined contents of the ring and drops them. pieces: in units of kApiece columns. to: a sender (end.h).
template <class B, class To>
__device__ inline void multiply_bulk(const Args& a, const CUtensorMap& weights, const CUtensorMap& rows,
                                     const Pieces& pieces, const Overlap& overlap, To to) {
    using Shared = typename B::Shared;
    constexpr int kConsumers = B::kConsumers, kColumns = B::kColumns, kApiece = B::kApiece;
    extern __shared__ __align__(1024) uint8_t memory[];  // TMA's swizzle needs this alignment
    static_assert(alignof(Shared) == 1024);
    Shared& shared = *reinterpret_cast<Shared*>(memory);

    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int splits = B::kSplits ? ctas_in_cluster() : 1, part = B::kSplits ? rank_in_cluster() : 0;
    const int piece = blockIdx.x / splits, first_column = kApiece * pieces.first_column(piece);
    const int first_step = first_bulk_step(B::kStep, a.k, part, splits);
    const int count = first_bulk_step(B::kStep, a.k, part + 1, splits) - first_step;
    const bool early = overlap.before_next == kAtOnce;
    const int tail = early ? -1 : count - (overlap.before_next < count ? overlap.before_next : count);
    const Feeder<B> feeder{shared,     &weights, &rows, first_column,   kApiece * pieces.most_columns(),
                           first_step, count,    tail,  overlap.window, overlap.ahead};

    const bool feeds = warp == B::kThreads / kWarp - 1;
    if (feeds && lane == 0) prologue(feeder, a, splits, part, early);
    // Barrier: mbarriers are used below by threads that did not initialise them.
    __syncthreads();
    // Barrier: no CTA writes to another CTA of the cluster before that one runs. Without split-K there is no cluster:
    // its barrier would then be the CTA's own, which the two roles pass at different points of the code.
    if (splits > 1) arrive_at_cluster_start();
    // The end of a warp that does not multiply: it completes the cluster barrier at which it has arrived.
    const auto leave = [&] {
        __syncwarp();
        if (splits > 1) wait_for_cluster_start();
    };
    // Before the PDL wait, because that stops the whole warp. The pacing warp reaches it after pacing, or, if it has no
    // other role, never.
    if (warp == B::kPacer && feeder.paced()) {
        if (elected()) feeder.begin_rest();
        if (B::kProducer) {
            leave();
            return;
        }
        __syncwarp();
    }
    wait_for_previous_kernel();
    // Without the promise no launch may start before the writer of b has ended: it may have the promise.
    if (early && !a.constant_b && feeds && lane == 0) let_next_kernel_start();

    // elected() costs registers here, which CTAs with two groups of warps do not have (1 % slower).
    if (feeds && (B::kGroups == 1 ? elected() : lane == 0)) feeder.first_round(a.constant_b);
    if (B::kProducer && warp == kConsumers) {
        if (elected()) produce(feeder);
        leave();
        return;
    }

    // This CTA finishes `share` columns (all of them without split-K); each thread has kApiece of these for all its
    // rows.
    const int share = B::share(splits), across = share / kApiece;
    const int own = threadIdx.x % across * kApiece, first_row = threadIdx.x / across;
    const int rows_apart = kConsumers * kWarp / across, end_column = kApiece * pieces.first_column(piece + 1);
    const int64_t n = int64_t(first_column) + part * share + own;
    const bool finishes = first_row < rows_apart && part * share + own < kColumns && n < end_column;
    // The epilogue's scales and bias are loaded before the main loop, which hides their latency. With four columns a
    // thread they go through shared memory: thread i loads those of the CTA's column i.
    const bool by_fours = B::kByFours && splits == 1;
    const int width = end_column - first_column, shift = by_fours ? first_column % 4 : 0;
    const bool brings = by_fours && int(threadIdx.x) < width;
    const bool one_by_one = !by_fours && finishes;
    const gemm::Column result(a.epilogue, brings ? first_column + int(threadIdx.x) : one_by_one ? n : 0);
    // The epoch is in the register that other threads have for scales.
    const bool has_epoch = To::kSends && threadIdx.x == B::kRows;
    float scale_a = threadIdx.x < a.m ? gemm::scale_at(a.epilogue.scale_a, threadIdx.x) : 0;
    if (has_epoch) scale_a = bits_float(to.load_epoch());

    Sums sums[B::kWide][B::kNarrow] = {};
    consume(feeder, sums, warp, lane);

    if (threadIdx.x < a.m || has_epoch) shared.scale_a[threadIdx.x] = scale_a;
    // Barrier: the sums overwrite the ring, which other warps may still be reading.
    consumers_meet<B>();
    if (brings) {
        shared.scale_b[threadIdx.x + shift] = result.scale;
        shared.bias[threadIdx.x + shift] = result.bias;
    }
    store_sums<B>(shared, sums, warp, lane, shift);
    // Of a thread's second column. In the main loop it would take registers that two forms do not have; the loads hit
    // the lines of the first one. With one column a thread it is unused, so not loaded.
    const gemm::Column next(a.epilogue, kApiece > 1 && one_by_one ? n + 1 : 0);
    // Barrier: other threads read the sums of all warps, and the scales, below.
    consumers_meet<B>();

    if constexpr (To::kSends) to.begin(float_bits(shared.scale_a[B::kRows]));
    if (splits == 1) {
        if constexpr (B::kByFours) {
            finish_by_fours<B>(a, to, shared, first_column, width, shift);
        } else if (finishes) {
            for (int m = first_row; m < int(a.m); m += rows_apart) {
                finish<kApiece>(a, to, m, n, result, next, shared.scale_a[m],
                                [&](int i) { return sum_of_one<B>(shared, m, own + i); });
            }
        }
        return;
    }
    wait_for_cluster_start();
    send_sums<B>(a, shared, part, share);
    // All threads wait, also those that finish nothing: a CTA must not end before all data sent to it has arrived.
    wait_for(&shared.sums_full, 0);
    if (!finishes) return;
    for (int m = first_row; m < int(a.m); m += rows_apart) {
        finish<kApiece>(a, to, m, n, result, next, shared.scale_a[m],
                        [&](int i) { return sum_over_cluster<B>(shared, m, own + i, share, splits); });
    }
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda
