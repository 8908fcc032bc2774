// The GEMM kernel for few rows: weights (B) stream from memory into registers, as fragments of matrix instructions.
//
// A workgroup makes all rows of one or two tiles of 16 columns, over all of K or a part of it. Its waves share
// the blocks of 128 k in turn; each multiplies what it loads. No barrier, no flag and no LDS lies between a load and
// its multiplication:
//
//     each wave   B: HBM, A: L2 --> registers, S::depth blocks in flight --> matrix instructions --> sums
//     workgroup   sums --> LDS --> added in the order of the waves --> split-K --> scales, bias, rounding
//
// Bound: bytes from memory. All workgroups of a launch are resident at once where they can be: four of four waves a
// compute unit. Nothing then waits for a second round. Each workgroup has 32 KiB or more of weights in flight.
//
// A lane's load is 16 bytes from k = 16 g of column j; the 16 lanes of a g cover 16 columns, so an instruction 64 bytes of
// each column, the block's two instructions whole lines of 128 bytes. Two tiles share what is loaded of A.
//
// A block's loads are asked for as soon as its registers are free, so waits are partial: the other blocks stay in
// flight. Where K is no multiple of 128, the first block is the short one; lanes beyond its end load zeros. So do all
// lanes of blocks beyond a wave's last: an offset beyond the buffer touches no memory. Rows and columns beyond the last
// are copies of it, which nothing stores.
#pragma once

#include <type_traits>

#include "../../common/divider.h"
#include "../../common/gemm/hip/tile.h"
#include "config.h"
#include "tile.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

constexpr int kHalves = kStreamBlock / kStep;  // of a block: loads of a column
constexpr int kCached = 0, kNonTemporal = 2;   // cache policies of a load on gfx942 and gfx950

// What a workgroup needs before its first load. Divisions are the host's.
struct Lean {
    const uint8_t *a, *b;
    uint32_t a_stride, b_stride;
    int m, n;
    int head;            // k of the first block
    int blocks, longer;  // of a part of K; the first `longer` parts have one more
    Divider parts;
};

// An entry of the table as compile-time constants of the kernel.
template <int index>
struct Stream {
    static constexpr StreamShape s = kStreamShapes[index];
    static constexpr int rows = s.rows, tiles = s.tiles, waves = s.waves, depth = s.depth, threads = waves * kWave,
                         columns = tiles * kTileColumns, row_loads = rows == 32 ? 2 : 1;
    // Waves per SIMD: the four SIMDs of a compute unit share its workgroups' waves.
    static constexpr int waves_per_simd = (waves * s.per_unit + 3) / 4;
};

// What a wave does of a workgroup's part.
template <class S>
class Slice {
    Buffer weights, rows;
    uint32_t weights_at[S::tiles], rows_at[S::row_loads];  // of the lane's chunk of k = 0
    int k, blocks;                                         // of the wave's next block to ask for; left to ask for
    u32x4 b[S::depth][S::tiles][kHalves], a[S::depth][S::row_loads][kHalves];
    TileSum<S::rows> sums[S::tiles];

  public:
    // Starts to load: blocks `wave`, wave + S::waves, ... of [first, last).
    __device__ Slice(const Lean& lean, int column, int wave, int first, int last)
        : weights(lean.b + uint64_t(uint32_t(column)) * lean.b_stride, kNowhere), rows(lean.a, kNowhere) {
        const int lane = threadIdx.x % kWave, j = lane % kTileColumns, chunk = lane / kTileColumns * kChunk;
        const int last_column = lean.n - 1 - column, last_row = lean.m - 1;
#pragma unroll
        for (int t = 0; t < S::tiles; ++t) {
            const int mine = 16 * t + j;
            weights_at[t] = uint32_t(mine < last_column ? mine : last_column) * lean.b_stride + chunk;
        }
#pragma unroll
        for (int t = 0; t < S::row_loads; ++t) {
            const int mine = S::rows == 8 ? j / 2 : 16 * t + j;  // of 8 rows: the dense row of the lane's sparse one
            rows_at[t] = uint32_t(mine < last_row ? mine : last_row) * lean.a_stride + chunk;
        }
        first += wave;
        blocks = int(uint32_t(last - first + S::waves - 1) / S::waves);
        k = lean.head + (first - 1) * kStreamBlock;
        if (k < 0) {  // the short block: a branch, as the others come sooner without its comparisons
            k = 0;
            request(0, [&](int half, uint32_t at) { return chunk + half * kStep < lean.head ? at : kNowhere; });
        } else {
            request(0);
        }
        k = lean.head + (first + S::waves - 1) * kStreamBlock;
#pragma unroll
        for (int slot = 1; slot < S::depth; ++slot) request(slot);
    }

    __device__ void multiply() {
        // `blocks` counts those that are not asked for yet: up to S::depth less than none.
        while (blocks > 0) {
#pragma unroll
            for (int slot = 0; slot < S::depth; ++slot) {
                multiply(slot);
                request(slot);
            }
        }
        drain<0>();
    }

    // to: [S::tiles][kTileSize]; place: TileSum's first_place, from there.
    __device__ void store(float* to, int place) const {
#pragma unroll
        for (int t = 0; t < S::tiles; ++t) sums[t].store(to + t * kTileSize<S::rows>, place);
    }

  private:
    // Asks for the next block; beyond the last for zeros.
    template <class Place>
    __device__ void request(int slot, Place place) {
        const uint32_t at = blocks > 0 ? k : kNowhere;
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            const uint32_t mine = place(half, at);
#pragma unroll
            for (int t = 0; t < S::tiles; ++t) {
                b[slot][t][half] = weights.load<kNonTemporal>(weights_at[t] + mine + half * kStep);
            }
#pragma unroll
            for (int t = 0; t < S::row_loads; ++t) {
                a[slot][t][half] = rows.load<kCached>(rows_at[t] + mine + half * kStep);
            }
        }
        k += S::waves * kStreamBlock;
        --blocks;
        // Loads stay in this order, before the loop and in it: waits count them.
        __builtin_amdgcn_sched_barrier(0);
    }
    __device__ void request(int slot) {
        request(slot, [](int, uint32_t k) { return k; });
    }

    __device__ void multiply(int slot) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            RowFragment<S::rows> fragment;
            if constexpr (S::rows == 8) {
                fragment.k = sparse_pairs(a[slot][0][half]);
            } else {
#pragma unroll
                for (int t = 0; t < S::row_loads; ++t) fragment.k[t] = a[slot][t][half];
            }
#pragma unroll
            for (int t = 0; t < S::tiles; ++t) sums[t].multiply(fragment, b[slot][t][half]);
        }
    }

    // The blocks that are in flight when the last one has been asked for.
    template <int slot>
    __device__ void drain() {
        if constexpr (slot < S::depth) {
            if (blocks + S::depth <= slot) return;
            multiply(slot);
            drain<slot + 1>();
        }
    }
};

// The kernel's arguments as they lie in memory. It names those of Lean one by one, which puts them into registers when a
// wave begins: as many as there are.
struct StreamEnd {
    gemm::Epilogue epilogue;
    SplitK split;
};
struct StreamLaunch {
    Lean lean;
    StreamEnd end;
};
static_assert(sizeof(Lean) == 14 * sizeof(uint32_t));

template <int index>
__global__ __launch_bounds__(Stream<index>::threads, Stream<index>::waves_per_simd) void skinny_gemm_stream(
    const uint8_t* a, const uint8_t* b, uint32_t a_stride, uint32_t b_stride, int m, int n, int head, int blocks,
    int longer, uint32_t divisor, uint32_t factor, uint32_t shift, StreamEnd) {
    using S = Stream<index>;
    using End = Ending<S::rows, S::tiles, S::waves>;
    __shared__ typename End::Shared lds;
    const Lean lean{a, b, a_stride, b_stride, m, n, head, blocks, longer, {divisor, factor, shift}};
    const int wave = uniform(threadIdx.x / kWave);
    const int tile = int(divide(blockIdx.x, lean.parts)), part = int(blockIdx.x) - tile * int(lean.parts.divisor);
    const auto begin = [&](int part) { return part * lean.blocks + (part < lean.longer ? part : lean.longer); };
    const int column = tile * S::columns;
    Slice<S> slice(lean, column, wave, begin(part), begin(part + 1));
    // What the end needs is asked for when the weights are.
    const StreamEnd& end = arguments<StreamLaunch>().end;
    const End ending(end.epilogue, end.split, m, n, column);
    int place = wave * S::tiles * kTileSize<S::rows> + TileSum<S::rows>::first_place();
    have_computed(place);
    slice.multiply();
    slice.store(lds.sums[0], place);
    // Closes: the sums are added below by other waves.
    gemm::hip::lds_barrier();
    ending.finish(lds, tile, part);
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip
