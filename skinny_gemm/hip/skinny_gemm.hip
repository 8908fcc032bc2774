// C = A B^T for up to 32 rows (m) in FP8 on MI300X (gfx942) and MI350 (gfx950): the launcher, and the warp-specialised
// kernel.
//
// Bytes: n k of weights, read once. A (m k, at most 512 KiB at k = 16384) comes from the caches. Floor: n k at the
// read rate of HBM; estimated for an MI300X (4.2 TB/s) 9.0 us at 2304 x 16384, 51.9 us at 13312 x 16384.
//
//     HBM --> weight producers (registers, 48 to 64 KiB a workgroup in flight) --> LDS ring --+
//     L2  --> row producers (registers) -----------------------------------------> LDS ring --+--> consumers (MFMA)
//                                                                                                   |
//     result <-- scales, bias, rounding <-- workgroups that share columns (split-K) <-- sums of the consumers, in LDS
//
// A workgroup has one to four tiles of 16 columns, and all of K or a part of it. A wave keeps one role, producer or
// consumer. Waves hand slots of the ring over by words in LDS. Split-K goes through memory: the workgroup that arrives
// last adds the parts.
//
// Files: skinny_gemm.hip   launcher, kernel
//        ring.h            who does what, the hand-over and its proof
//        producer.h        the loading waves;  consumer.h: the multiplying waves
//        tile.h            matrix instructions and layouts, split-K, the epilogue
//        direct.h          the simple kernel: fallback and comparison
//        config.h          which kernel, with which shape and split-K, by a model;  tuned.h: measured choices
//
// Limit today: unknown, nothing has been measured on an AMD GPU. By the model it is HBM at every size of the tables.
// Matrix instructions, LDS and issue have a margin of a factor of 4 or more.
//
// Steps and the design's estimates: docs/journal/skinny_gemm-hip.md.
#include "../../common/hip/counters.h"
#include "../../common/hip/device.h"
#include "../../common/gpu/kernel_at.h"
#include "config.h"
#include "consumer.h"
#include "direct.h"
#include "../../common/gemm/forced.h"
#include "producer.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

static_assert(kTileColumns == kGemmTileColumns && kMaxSplitTiles <= kCounters);

// An entry of the table as compile-time constants of the kernel.
template <int index>
struct Shape {
    static constexpr RingShape s = kRingShapes[index];
    static constexpr int rows = s.rows, tiles = s.tiles, weight_producers = s.weight_producers,
                         row_producers = s.row_producers, consumers = s.consumers, depth = s.depth,
                         row_depth = s.row_depth, row_slots = s.row_slots, threads = s.waves() * kWave;
    static_assert(weight_producers % tiles == 0 && consumers % tiles == 0 && row_slots % row_producers == 0);
    // Steps in one unrolled round of all roles' loops: a multiple of each producer's depth and of each consumer's turn.
    static constexpr int lcm(int a, int b) {
        int c = a;
        while (c % b) c += a;
        return c;
    }
    static constexpr int round =
        lcm(lcm(weight_producers / tiles * depth, row_producers* row_depth), consumers / tiles);
    // Waves per SIMD: the four SIMDs of a compute unit share its workgroups' waves.
    static constexpr int waves_per_simd = (s.waves() * s.per_unit + 3) / 4;
};

template <int index>
__global__ __launch_bounds__(Shape<index>::threads, Shape<index>::waves_per_simd) void skinny_gemm_ring(Args a,
                                                                                                        SplitK split) {
    using S = Shape<index>;
    __shared__ union {
        Ring<S> ring;
        float sums[S::consumers][S::rows][kTileColumns];
    } lds;
    const int wave = uniform(threadIdx.x / kWave);
    const int tile = blockIdx.x / split.parts, part = blockIdx.x % split.parts;
    const int all_steps = int((a.k + kRingStep - 1) / kRingStep);
    const int begin = int64_t(all_steps) * part / split.parts;
    const int real_steps = int(int64_t(all_steps) * (part + 1) / split.parts) - begin;
    const int steps = (real_steps + S::round - 1) / S::round * S::round;

    // Each role meets one barrier, after which the ring's words are zero, and the barrier below.
    constexpr int kFirstRowProducer = S::weight_producers, kFirstConsumer = kFirstRowProducer + S::row_producers;
    if (wave < kFirstRowProducer) {
        produce_weights<S>(a, lds.ring, wave, int64_t(tile) * S::tiles * kTileColumns, begin, real_steps, steps);
        __syncthreads();
    } else if (wave < kFirstConsumer) {
        lds.ring.clear();
        produce_rows<S>(a, lds.ring, wave - kFirstRowProducer, begin, real_steps, steps);
        __syncthreads();
    } else {
        const auto sum = consume<S>(lds.ring, wave - kFirstConsumer, steps);
        // Closes: the sums overwrite the ring, which other consumers may still be reading.
        __syncthreads();
        sum.store(&lds.sums[wave - kFirstConsumer][0][0]);
    }
    // Closes: the sums are added below by other waves.
    __syncthreads();
    reduce_and_finish<S::rows, S::tiles, S::consumers / S::tiles>(a, split, &lds.sums[0][0][0], tile, part);
}

using Kernel = void (*)(Args, SplitK);

Kernel ring_kernel(int shape) {
    return kernel_at<kRingShapeCount>(shape, []<int i>() -> Kernel { return skinny_gemm_ring<i>; });
}

template <bool aligned>
Kernel direct_kernel(int64_t m) {
    const int rows = row_class(m);
    return rows == 8    ? skinny_gemm_direct<8, aligned>
           : rows == 16 ? skinny_gemm_direct<16, aligned>
                        : skinny_gemm_direct<32, aligned>;
}

// Reads the forced configuration. An error if the arguments do not allow it.
Status forced_config(const Args& a, bool ring_allowed, Config* config) {
    ForcedConfig forced;
    if (const Status s = read_forced_config(kRingShapeCount, kMaxSplits, false, &forced); !s.ok() || !forced.set)
        return s;
    const bool changed = forced.shape != config->shape || forced.splits != config->splits;
    if (changed && forced.shape != kDirect && (!ring_allowed || kRingShapes[forced.shape].rows < a.m)) {
        return {"ROCM_FP8_KERNELS_GEMM names a shape that cannot take these arguments"};
    }
    config->shape = forced.shape;
    config->splits = forced.splits;
    return {};
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip

namespace rocm_fp8::skinny_gemm {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    if (args.m == 0 || args.n == 0) return {};
    if (args.m > kMaxRows) return {"a has more rows than one launch takes"};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    if (args.format != native_fp8(chip.arch)) {
        return {
            chip.arch == Arch::gfx942
                ? "a: dtype float8_e4m3fn; this GPU (gfx942) multiplies float8_e4m3fnuz: same bytes, 0x80 to 0x00, scale * 2"
                : "a: dtype float8_e4m3fnuz; this GPU (gfx950) multiplies float8_e4m3fn"};
    }

    constexpr int64_t kBufferBytes = kNowhere;
    // Rows that overlap are longer than their stride: kNowhere lies behind all of them all the same.
    static_assert((kMaxRows - 1) * (kBufferBytes / 64 - 1) + kBufferBytes / 2 <= kBufferBytes);
    const bool aligned = rows_fit(args);
    const bool ring_allowed =
        aligned && args.k < kBufferBytes / 2 && args.b_stride < kBufferBytes / 64 && args.a_stride < kBufferBytes / 64;
    Config config = pick_config(args.m, args.n, args.k, int(chip.arch), ring_allowed);
    if (const Status forced = forced_config(args, ring_allowed, &config); !forced.ok()) return forced;

    const bool ring = config.shape != kDirect;
    const int64_t columns = kTileColumns * (ring ? kRingShapes[config.shape].tiles : 1);
    const int64_t tiles = (args.n + columns - 1) / columns;
    SplitK split{config.splits, nullptr, nullptr};
    if (config.splits > 1) {
        if (tiles > kMaxSplitTiles) return {"ROCM_FP8_KERNELS_GEMM splits K for more columns than there are counters"};
        const CountersResult counters = counters_for(on.stream);
        if (!counters.status.ok()) return counters.status;
        split.arrived = counters.counters;
        split.partial =
            static_cast<float*>(on.scratch(on.context, tiles * config.splits * args.m * columns * sizeof(float)));
        if (!split.partial) return {"no memory for the sums of split K"};
    }
    const int threads = ring ? kRingShapes[config.shape].waves() * kWave : kDirectWaves * kWave;
    if (tiles * config.splits * threads > kMaxThreads) return {"b has more rows than one launch takes"};
    const Kernel kernel = ring      ? ring_kernel(config.shape)
                          : aligned ? direct_kernel<true>(args.m)
                                    : direct_kernel<false>(args.m);
    return launch_kernel(kernel, tiles * config.splits, threads, on, args, split);
}

}  // namespace rocm_fp8::skinny_gemm
