// The main loop for tiles of the result, which a workgroup makes one after the other:
//
//     HBM, L2 --> registers (stages ahead) --> LDS (two stages) --> fragments --> matrix instructions --> Sums
//
// Loads, LDS accesses and matrix instructions stay in the source's order (sched_barrier). LDS accesses of all waves take
// turns, so each has a place between two matrix instructions (schedule.h).
//
// S is a shape: TileSizes, and `stages` of a block of k, blocks `unrolled` in a round, stages `ahead`, `by_columns`,
// region_bytes. LoadA and LoadB are of loaders.h. Sums is what an operator makes of products, in the order of its calls:
//
//     start(load_a, load_b, launch, item, first_k, end_k)   starts the loaders of an item
//     clear(launch)                     no products yet; the first stages are on their way to registers
//     filled(launch)                    the first stages are on their way to LDS
//     multiply(i, j, b, a, n, begins)   the n-th of kInstructions on a fragment; begins: in the first step of a block
//     finish(launch, item, regions)     to the result, by way of the stages' place. The next item is being loaded
//
// With kBlocksApart a block's products are scaled before they are added. Then also (block_sums.h):
//
//     request_scales(launch, 0)         behind the loads of the first stages
//     stage(launch, block, h, end)      stage h of block `block` of `end` begins
//     fold_last()                       behind the last stage
//
// With kSkips waves without rows in the tile, as the item's has_rows<S>() says, multiply none. Item is a WorkItem or an
// operator's own. Lds lies beside the stages.
#pragma once

#include "../../hip/lds.h"
#include "loaders.h"
#include "schedule.h"
#include "work.h"

namespace rocm_fp8::gemm::hip {
namespace {

// A shape of the loop. strided: for loads of any layout, which take more registers.
template <TileShape shape, int chunks, bool strided = false>
struct LoopShape : TileSizes<shape, chunks> {
    using Sizes = TileSizes<shape, chunks>;
    static constexpr bool by_columns = true;              // transposed operands are stored so
    static constexpr int stages = kBlock / Sizes::stage;  // of a block: 1 or 2
    // A wave's part of LDS in the epilogue: the stages' place, or more.
    static constexpr int of_stages = 2 * Sizes::stage_bytes / Sizes::waves, least = Sizes::matrix * Sizes::matrix * 4,
                         region_bytes = of_stages > least ? of_stages : least;
    static constexpr int ahead = strided && Sizes::deep ? 1 : Sizes::ahead;
    // Blocks in a round of the main loop: stages in flight, and with `deep` two sets of fragments, are constants in it.
    static constexpr int in_turn = Sizes::deep && ahead % 2 ? 2 * ahead : ahead;
    static constexpr int unrolled = in_turn > stages ? in_turn / stages : 1;
    static_assert(unrolled * stages % in_turn == 0 && (!Sizes::deep || unrolled * stages % 2 == 0));
};

// What the compiler may move across a point (sched_barrier): nothing; scalar and vector instructions.
constexpr int kNothing = 0, kScalars = 0x2 | 0x4;

template <class S, class LoadA, class LoadB, class Sums>
class TileLoop {
    using Launch = typename Sums::Launch;
    using Item = typename Sums::Item;
    // A stage is stored so many stages before it is multiplied.
    static constexpr int kLead = S::deep ? 2 : 1;
    static constexpr int kLoads = LoadA::kLoads + LoadB::kLoads;                     // of a stage, a thread's
    static constexpr int kInstructions = Sums::kInstructions * S::sub_m * S::sub_n;  // of a step
    static constexpr int kReads = Fragments<S>::kReads;
    static constexpr Schedule<S::steps, kInstructions, kReads, kLoads, S::deep> kSchedule{};
    static_assert(kSchedule.complete());

  public:
    struct Lds {
        union {
            alignas(16) char stages[2][S::stage_bytes];
            alignas(16) char regions[S::waves][S::region_bytes];
        };
        [[no_unique_address]] typename Sums::Lds own;
    };

    __device__ explicit TileLoop(Lds& lds) : lds(lds), sums(lds.own) {}

    // Starts to load an item.
    __device__ void begin(const Item& item) {
        const Launch& launch = arguments<Launch>();
        const uint32_t first_k = uint32_t(item.k_begin) * kBlock;
        const int64_t last = int64_t(item.k_end) * kBlock;
        const uint32_t end_k = uint32_t(last < launch.args.k ? last : launch.args.k);
        constexpr uint32_t kRound = S::stages * S::stage;
        blocks = (end_k - first_k + kRound - 1) / kRound;
        if constexpr (Sums::kSkips) has_rows = item.template has_rows<S>();
        sums.start(load_a, load_b, launch, item, first_k, end_k);
#pragma unroll
        for (int stage = 0; stage < S::ahead; ++stage) request(stage, stage);
        if constexpr (Sums::kBlocksApart) sums.request_scales(launch, 0);
    }

    // Makes the sums of the item.
    __device__ void multiply() {
        const Launch& launch = arguments<Launch>();
        sums.clear(launch);
        // Barrier: the epilogue of the last item has read its part of LDS.
        lds_barrier();
#pragma unroll
        for (int stage = 0; stage < kLead; ++stage) {
#pragma unroll
            for (int n = 0; n < kLoads; ++n) store(stage, stage % S::ahead, n);
            request(stage + S::ahead, stage % S::ahead);
        }
        sums.filled(launch);
        // Barrier: the first stage is in LDS.
        lds_barrier();
#pragma unroll
        for (int step = 0; step < (S::deep ? S::steps : 1); ++step) fragments[step].read(lds.stages[0], places, step);
        const uint32_t end = blocks;
        const auto all = [&](auto live) __attribute__((always_inline)) {
            for (uint32_t block = 0; block < end;) {
#pragma unroll
                for (int u = 0; u < S::unrolled; ++u) {
#pragma unroll
                    for (int h = 0; h < S::stages; ++h) multiply_stage<live.value>(block, u, h, end);
                    if (++block == end) break;
                }
            }
        };
        if (!Sums::kSkips || has_rows) all(std::true_type());
        else all(std::false_type());
        if constexpr (Sums::kBlocksApart) sums.fold_last();
        // Waits for the loads beyond the end: other loads go to their registers.
#pragma unroll
        for (int i = 0; i < S::ahead; ++i) {
#pragma unroll
            for (const u32x4& v : flying_a[i]) asm volatile("" ::"v"(v));
#pragma unroll
            for (const u32x4& v : flying_b[i]) asm volatile("" ::"v"(v));
        }
    }

    __device__ void finish(const Item& done) {
        // Barrier: all waves have read the last stage.
        lds_barrier();
        sums.finish(arguments<Launch>(), done, lds.regions);
    }

  private:
    // slot: of the registers of stages in flight. n: of kLoads.
    __device__ void request(uint32_t stage, int slot, int n) {
        const uint32_t at = stage * S::stage, mine = load_a.chunk_at(at);
        if (n < LoadA::kLoads) {
            load_a.request(flying_a[slot], n, at, mine);
        } else {
            constexpr bool kAlike = LoadA::layout == LoadB::layout;
            load_b.request(flying_b[slot], n - LoadA::kLoads, at, kAlike ? mine : load_b.chunk_at(at));
        }
    }
    __device__ void request(uint32_t stage, int slot) {
#pragma unroll
        for (int n = 0; n < kLoads; ++n) request(stage, slot, n);
    }
    __device__ void store(int buffer, int slot, int n) {
        char* const to = lds.stages[buffer];
        if (n < LoadA::kLoads) {
            LoadA::store(to, flying_a[slot], n);
        } else {
            LoadB::store(to + S::a_bytes, flying_b[slot], n - LoadA::kLoads);
        }
    }

    // Before a barrier. A wave that multiplies has waited for its stores: it has read fragments behind them.
    template <bool live>
    static __device__ void stored() {
        if constexpr (!live) lds_done();
    }

    // Stage h of a block, the u-th of the round. A wave that is not live loads and stores its share alone.
    template <bool live>
    __device__ void multiply_stage(uint32_t block, int u, int h, uint32_t end) {
        const uint32_t stage = block * S::stages + h;
        const int in_round = u * S::stages + h, slot = (in_round + kLead) % S::ahead;
        const int buffer = S::unrolled * S::stages % 2 == 0 ? in_round % 2 : stage % 2;
        if (S::deep) {
            // The matrix instructions are issued before the barrier waits.
            __builtin_amdgcn_sched_barrier(kNothing);
            stored<live>();
            // Barrier: the next stage is in LDS; this one has been read.
            lds_barrier();
        }
        if constexpr (Sums::kBlocksApart) sums.stage(arguments<Launch>(), block, h, end);
#pragma unroll
        for (int step = 0; step < S::steps; ++step) {
            if (!S::deep && step + 1 == S::steps) {
                __builtin_amdgcn_sched_barrier(kNothing);
                stored<live>();
                // Barrier: the next stage is in LDS; this one has been read.
                lds_barrier();
            }
            // Of two steps, or of two stages, of fragments.
            const int mine = S::deep ? in_round % 2 * S::steps + step : (in_round * S::steps + step) % 2;
            const int other = S::deep ? (1 - in_round % 2) * S::steps + step : 1 - mine;
            const auto access = [&](int n) {
                if (n < kReads) {
                    if constexpr (!live) return;
                    const bool same = !S::deep && step + 1 < S::steps;
                    fragments[other].read(lds.stages[same ? buffer : 1 - buffer], places,
                                          S::deep ? step : (step + 1) % S::steps, n);
                } else {
                    const int move = kSchedule.first_move[step] + n - kReads;
                    // The buffer was read before the last barrier.
                    store((buffer + kLead) % 2, slot, move);
                    request(stage + kLead + S::ahead, slot, move);
                }
            };
            const bool begins = Sums::kBlocksApart && h == 0 && step == 0;  // a block
#pragma unroll
            for (int instruction = 0; instruction < kInstructions; ++instruction) {
                constexpr int kEach = Sums::kInstructions;
                const int subtile = instruction / kEach, i = subtile / S::sub_n, j = subtile % S::sub_n;
#pragma unroll
                for (int n = kSchedule.accesses[step][instruction]; n < kSchedule.accesses[step][instruction + 1];
                     ++n) {
                    access(n);
                }
                if constexpr (!live) continue;
                sums.multiply(i, j, fragments[mine].b[j], fragments[mine].a[i], instruction % kEach, begins);
                if (begins) {
                    __builtin_amdgcn_sched_barrier(kNothing);
                } else {
                    __builtin_amdgcn_sched_barrier(kScalars);
                }
            }
        }
    }

    Lds& lds;
    const Places<S> places;
    uint32_t blocks;
    [[maybe_unused]] bool has_rows;
    LoadA load_a;
    LoadB load_b;
    u32x4 flying_a[S::ahead][LoadA::kLoads], flying_b[S::ahead][LoadB::kLoads];
    Fragments<S> fragments[S::deep ? 2 * S::steps : 2];
    Sums sums;
};

}  // namespace
}  // namespace rocm_fp8::gemm::hip
