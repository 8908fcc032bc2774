// The main loop for tiles of the result: a workgroup has one tile after the other.
//
// Each block of 128 k has a chain of matrix instructions of its own, from zero. Its sums are added to the tile's,
// scaled, between the next block's first matrix instructions. Loads, LDS accesses and matrix instructions stay in the
// source's order (sched_barrier). LDS accesses of all waves take turns, so each has a place between two matrix
// instructions.
#pragma once

#include "config.h"
#include "epilogue.h"
#include "launch.h"
#include "turned.h"
#include "work.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

template <class S, bool per_column, bool careful, bool turned_a, bool turned_b>
class Tile {
    using LoadA = LoaderOf<S::rows, S::stage, S::threads, careful, turned_a>;
    using LoadB = LoaderOf<S::columns, S::stage, S::threads, careful, turned_b>;
    using ScalesA = ScaleLoader<S::rows, S::threads, careful>;
    // Of columns, or one number a block for all of the tile.
    using ScalesB = ScaleLoader<per_column ? S::columns : 1, S::threads, careful>;
    // With one stage a block the next period's scales are stored while the last ones are read.
    static constexpr int kScaleBuffers = S::stages == 2 ? 1 : 2;
    // A stage is stored so many stages before it is multiplied.
    static constexpr int kLead = S::deep ? 2 : 1;

  public:
    struct Lds {
        union {
            alignas(16) char stages[2][S::stage_bytes];
            alignas(16) char regions[S::waves][S::region_bytes];
        };
        alignas(16) float scales[kScaleBuffers][kPeriod * kScalePitch<S::rows>];
        alignas(16) float of_columns[kScaleBuffers][per_column ? kPeriod * kScalePitch<S::columns> : 1];
    };

    __device__ explicit Tile(Lds& lds) : lds(lds) {}

    // Starts to load a unit.
    __device__ void begin(const Unit& next) {
        const Launch& launch = arguments<Launch>();
        const Args& a = launch.args;
        unit = next;
        first_k = uint32_t(next.begin) * kBlock;
        blocks = int(next.end - next.begin);
        const int64_t end_k = next.end * kBlock < a.k ? next.end * kBlock : a.k;
        load_a.start(a.a, next.row, a.m, end_k, first_k);
        load_b.start(a.b, next.column, a.n, end_k, first_k);
        channels = launch.work.channels;
        scales_a.start(a.scale_a, next.row, a.m, next.begin, next.end);
        if (!channels) scales_b.start(a.scale_b, next.column, a.n, next.begin, next.end);
#pragma unroll
        for (int stage = 0; stage < S::ahead; ++stage) request(stage, stage);
        request_scales(0);
    }

    // Makes the sums of the unit.
    __device__ void multiply() {
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
            scale[i] = 0;
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) sums[i][j] = block_sums[i][j] = Sums<S::matrix>(0);
        }
        if constexpr (per_column) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) of_columns[j] = Sums<S::matrix>(0);
        }
        // Closes: the epilogue of the last unit has read its part of LDS.
        lds_barrier();
        store_scales(0);
#pragma unroll
        for (int stage = 0; stage < kLead; ++stage) {
#pragma unroll
            for (int n = 0; n < kLoads; ++n) store(stage, stage % S::ahead, n);
            request(stage + S::ahead, stage % S::ahead);
        }
        // Closes: the first stage is in LDS.
        lds_barrier();
#pragma unroll
        for (int step = 0; step < (S::deep ? S::steps : 1); ++step) read(fragments[step], 0, step);
        const uint32_t end = blocks;
        for (uint32_t block = 0; block < end;) {
#pragma unroll
            for (int u = 0; u < S::unrolled; ++u) {
#pragma unroll
                for (int h = 0; h < S::stages; ++h) multiply_stage(block, u, h, end);
                if (++block == end) break;
            }
        }
        fold_all();
        // Waits for the loads beyond the end: other loads go to their registers.
#pragma unroll
        for (int i = 0; i < S::ahead; ++i) {
#pragma unroll
            for (const u32x4& v : flying_a[i]) asm volatile("" ::"v"(v));
#pragma unroll
            for (const u32x4& v : flying_b[i]) asm volatile("" ::"v"(v));
        }
    }

    __device__ void finish(const Unit& done) {
        const Launch& launch = arguments<Launch>();
        const Args& a = launch.args;
        // Closes: all waves have read the last stage.
        lds_barrier();
        if (launch.split.parts > 1 && !add_parts<S>(sums, done, launch.split)) return;
        char* const region = lds.regions[uniform(threadIdx.x / kWave)];
        store_sums<S, S::wave_columns>(sums, a, launch.work.channels, region, done);
    }

    Unit unit;

  private:
    static constexpr int kLoads = LoadA::kLoads + LoadB::kLoads;  // of a stage, a thread's

    // slot: of the registers of stages in flight. n: of kLoads.
    __device__ void request(uint32_t stage, int slot, int n) {
        // Turned operands count k from the unit's first.
        const uint32_t inside = stage * S::stage;
        const uint32_t at_a = turned_a ? inside : first_k + inside, at_b = turned_b ? inside : first_k + inside;
        const uint32_t mine = careful ? 0 : load_a.chunk_at(at_a);
        if (n < LoadA::kLoads) {
            load_a.request(flying_a[slot], n, at_a, mine);
        } else {
            load_b.request(flying_b[slot], n - LoadA::kLoads, at_b,
                           turned_a == turned_b ? mine : load_b.chunk_at(at_b));
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
    __device__ void request_scales(uint32_t block) {
        const Args& a = arguments<Launch>().args;
        scales_a.request(a.scale_a, block);
        if (!channels) scales_b.request(a.scale_b, block);
    }
    __device__ void store_scales(uint32_t block) {
        const Args& a = arguments<Launch>().args;
        const int buffer = block / kPeriod % kScaleBuffers;
        const auto plain = [](float v) { return v; };
        float* const to = lds.scales[buffer];
        if constexpr (per_column) {
            hip::store_scales<S::rows, S::threads>(to, a.scale_a, scales_a, plain);
            // Those of channels are the epilogue's.
            const auto of_column = [&](float v) { return channels ? 1.0f : v; };
            hip::store_scales<S::columns, S::threads>(lds.of_columns[buffer], a.scale_b, scales_b, of_column);
        } else if (channels) {
            hip::store_scales<S::rows, S::threads>(to, a.scale_a, scales_a, plain);
        } else {
            const float other = scale_of_bits(a.scale_b.dtype == DType::e8m0, scales_b.bits[0]);
            hip::store_scales<S::rows, S::threads>(to, a.scale_a, scales_a, [&](float v) { return v * other; });
        }
    }
    __device__ void read(Fragments<S>& into, int buffer, int step) { into.read(lds.stages[buffer], places, step); }
    __device__ void read_scales(uint32_t block) {
        const int lane = threadIdx.x % kWave, wave = uniform(threadIdx.x / kWave);
        const int buffer = block / kPeriod % kScaleBuffers, row = block % kPeriod;
        const float* from = lds.scales[buffer] + row * kScalePitch<S::rows> + wave / S::waves_n * S::wave_rows;
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) next_scale[i] = from[row_in_wave<S>(lane, i)];
        if constexpr (per_column) {
            const float* columns =
                lds.of_columns[buffer] + row * kScalePitch<S::columns> + wave % S::waves_n * S::wave_columns;
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) {
#pragma unroll
                for (int q = 0; q < S::quads; ++q) {
                    set_four(next_columns[j], q,
                             *reinterpret_cast<const f32x4*>(columns + column_in_wave<S>(lane, j, q)));
                }
            }
        }
    }
    // Adds a subtile's sums of the last block, scaled.
    __device__ void fold(int i, int j) {
        Sums<S::matrix> factor = Sums<S::matrix>(scale[i]);
        if constexpr (per_column) factor *= of_columns[j];
        before_sums_are_read(block_sums[i][j]);
        sums[i][j] = __builtin_elementwise_fma(block_sums[i][j], factor, sums[i][j]);
        asm volatile("" : "+v"(sums[i][j]));  // here: later, block_sums would be held twice
    }
    __device__ void take_scales() {
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) scale[i] = next_scale[i];
        if constexpr (per_column) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) of_columns[j] = next_columns[j];
        }
    }
    __device__ void fold_all() {
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) fold(i, j);
        }
    }

    // Stage h of a block, the u-th of the round.
    __device__ void multiply_stage(uint32_t block, int u, int h, uint32_t end) {
        const uint32_t stage = block * S::stages + h;
        const int in_round = u * S::stages + h, slot = (in_round + kLead) % S::ahead;
        const int buffer = S::unrolled * S::stages % 2 == 0 ? in_round % 2 : stage % 2;
        if (S::deep) {
            // The matrix instructions are issued before the barrier waits.
            __builtin_amdgcn_sched_barrier(0);
            // Closes: the next stage is in LDS; this one has been read.
            lds_barrier();
        }
        if (h == 0 && block % kPeriod == 0 && block + kPeriod < end) request_scales(block + kPeriod);
        if (h == S::stages - 1 && block % kPeriod == kPeriod - 1 && block + 1 < end) store_scales(block + 1);
        if (h == 0) read_scales(block);
#pragma unroll
        for (int step = 0; step < S::steps; ++step) {
            if (!S::deep && step + 1 == S::steps) {
                __builtin_amdgcn_sched_barrier(0);
                // Closes: the next stage is in LDS; this one has been read.
                lds_barrier();
            }
            // Of two steps, or of two stages, of fragments.
            const int mine = S::deep ? in_round % 2 * S::steps + step : (h * S::steps + step) % 2;
            const int other = S::deep ? (1 - in_round % 2) * S::steps + step : 1 - mine;
            // Between matrix instructions: reads of the fragments that are next, and the way of the next stage to LDS.
            // What the last step before the barrier cannot have done goes before.
            const int moving_steps = S::deep || S::steps == 1 ? S::steps : S::steps - 1;
            const int first_move = step < moving_steps ? kLoads * step / moving_steps : kLoads;
            const int moves = step < moving_steps ? kLoads * (step + 1) / moving_steps - first_move : 0;
            const auto between = [&](int n) {
                if (n < Fragments<S>::kReads) {
                    const bool same = !S::deep && step + 1 < S::steps;
                    fragments[other].read(lds.stages[same ? buffer : 1 - buffer], places,
                                          S::deep ? step : (step + 1) % S::steps, n);
                } else {
                    const int move = first_move + n - Fragments<S>::kReads;
                    // The buffer was read before the last barrier.
                    store((buffer + kLead) % 2, slot, move);
                    request(stage + kLead + S::ahead, slot, move);
                }
            };
            const bool first = h == 0 && step == 0;
            constexpr int kOnAFragment = instructions_on(S::chunks), kInstructions = kOnAFragment * S::sub_m * S::sub_n;
            const int all = Fragments<S>::kReads + moves;
#pragma unroll
            for (int instruction = 0; instruction < kInstructions; ++instruction) {
                const int subtile = instruction / kOnAFragment, i = subtile / S::sub_n, j = subtile % S::sub_n;
                const bool start = first && instruction % kOnAFragment == 0;
#pragma unroll
                for (int n = all * instruction / kInstructions; n < all * (instruction + 1) / kInstructions; ++n) {
                    between(n);
                }
                if (start) fold(i, j);
                block_sums[i][j] =
                    hip::multiply<S::matrix>(fragments[mine].b[j], fragments[mine].a[i],
                                             start ? Sums<S::matrix>(0) : block_sums[i][j], instruction % kOnAFragment);
                if (first) {
                    __builtin_amdgcn_sched_barrier(0);
                } else {
                    __builtin_amdgcn_sched_barrier(kScalars);
                }
            }
            if (first) take_scales();
        }
    }

    Lds& lds;
    const Places<S> places;
    uint32_t first_k;
    int blocks;
    bool channels;
    LoadA load_a;
    LoadB load_b;
    u32x4 flying_a[S::ahead][LoadA::kLoads], flying_b[S::ahead][LoadB::kLoads];
    ScalesA scales_a;
    ScalesB scales_b;
    Fragments<S> fragments[S::deep ? 2 * S::steps : 2];
    TileSums<S> sums, block_sums;
    float scale[S::sub_m], next_scale[S::sub_m];
    Sums<S::matrix> of_columns[S::sub_n], next_columns[S::sub_n];
};

// 256: beyond that there are accumulation registers alone, which vector instructions do not reach.
template <int index, bool per_column, bool careful, bool turned_a = false, bool turned_b = false>
__global__ __launch_bounds__(Shape<index>::threads, Shape<index>::waves_per_simd)
__attribute__((amdgpu_num_vgpr(256))) void
block_scaled_gemm_tiles(Launch) {
    using S = Shape<index, careful>;
    using T = Tile<S, per_column, careful, turned_a, turned_b>;
    __shared__ typename T::Lds lds;
    make_units<S, T>(lds);
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
