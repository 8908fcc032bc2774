// C = A B^T in FP8 with scales for blocks of 128 k, on MI300X (gfx942) and MI350 (gfx950): the launcher and the kernel.
//
// Work: 2 m n k operations; 1024 x 4608 x 7168 are 26 us of an MI300X's matrix instructions at 2.1 GHz. Bytes: a tile
// of R x C reads (R + C) k from L2, which is the second bound: at 256 x 128 both are alike.
//
//     HBM, L2 --> registers (stages ahead) --> LDS (two stages) --> fragments --> MFMA --> sums of a block
//     scales  --> registers (eight blocks ahead) --> LDS ------------------------------------> * scale --> sums
//     result <-- LDS (whole lines) <-- bias, rounding <-- channels' scales <-- split-K <------------------+
//
// A workgroup has one tile after the other. Each block of 128 k has a chain of matrix instructions of its own, from
// zero. Its sums are added to the tile's, scaled, between the next block's first matrix instructions. Loads, LDS
// accesses and matrix instructions stay in the source's order (sched_barrier). LDS accesses of all waves take turns, so
// each has a place between two matrix instructions.
//
// Files: block_scaled_gemm.hip  launcher, order of tiles, main loop
//        tile.h                 shapes at compile time, layout of a stage in LDS, fragments, matrix instructions
//        loader.h               global memory to registers to LDS: operands of any layout, scales of any kind
//        epilogue.h             split-K, channels' scales, bias, rounding, stores
//        config.h               the compiled shapes, and which one with which parts of K, by a model
//
// Limit today, by the simulator's clock (nothing has been measured on an AMD GPU). Large K: matrix instructions, at
// 80 % of what the clock lets through. K of 256 and 512: a tile's stores are waited for with the next one's loads,
// because vmcnt counts both in order.
//
// Steps and figures: docs/journal/block_scaled_gemm-hip.md.
#include "../../common/gemm/forced.h"
#include "../../common/gpu/kernel_at.h"
#include "../../common/hip/counters.h"
#include "../../common/hip/device.h"
#include "config.h"
#include "epilogue.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

constexpr int kChiplets = 8;

// What the compiler may move across a point (sched_barrier): scalar and vector instructions.
constexpr int kScalars = 0x2 | 0x4;

// The launch's work: units, in an order in which neighbours share rows or columns. Workgroup i runs on chiplet i % 8,
// whose L2 cache is its own; a chiplet's workgroups take units that follow one another.
struct Work {
    int tiles_m, tiles_n;
    int units, per_chiplet;  // of all chiplets; of one
    bool channels;           // scale_b is a scale a channel: the epilogue's
};

struct Launch {
    Args args;
    Work work;
    SplitK split;
};

// The launch's arguments, loaded anew: kept in scalar registers from the kernel's start on, they would be spilled.
__device__ inline const Launch& arguments() {
    auto p = (const __attribute__((address_space(4))) Launch*)__builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(p));
    return *(const Launch*)p;
}

template <class S>
__device__ inline bool unit_at(int turn, Unit* unit) {
    const Launch& launch = arguments();
    const Work& work = launch.work;
    const int parts = launch.split.parts;
    constexpr int kGroup = S::rows >= 256 ? 4 : 8;  // tiles of rows that go together
    const int place = turn * int(gridDim.x / kChiplets) + int(blockIdx.x) / kChiplets;
    const int at = int(blockIdx.x) % kChiplets * work.per_chiplet + place;
    if (place >= work.per_chiplet || at >= work.units) return false;
    const int tiles = work.tiles_m * work.tiles_n, part = at / tiles, t = at % tiles;
    const int first = t / (kGroup * work.tiles_n) * kGroup;
    const int together = work.tiles_m - first < kGroup ? work.tiles_m - first : kGroup;
    const int inside = t - first * work.tiles_n;
    const int tile_m = first + inside % together, tile_n = inside / together;
    const int64_t blocks = blocks_of(launch.args.k);
    *unit = {int64_t(tile_m) * S::rows, int64_t(tile_n) * S::columns, tile_m * work.tiles_n + tile_n, part,
             blocks * part / parts,     blocks * (part + 1) / parts};
    return true;
}

template <class S, bool per_column, bool careful>
class Tile {
    using LoadA = StageLoader<S::rows, S::stage, S::threads, careful>;
    using LoadB = StageLoader<S::columns, S::stage, S::threads, careful>;
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
            alignas(16) char regions[S::waves][kRegionBytes<S>];
        };
        alignas(16) float scales[kScaleBuffers][kPeriod * kScalePitch<S::rows>];
        alignas(16) float of_columns[kScaleBuffers][per_column ? kPeriod * kScalePitch<S::columns> : 1];
    };

    __device__ explicit Tile(Lds& lds) : lds(lds) {}

    // Starts to load a unit.
    __device__ void begin(const Unit& next) {
        const Launch& launch = arguments();
        const Args& a = launch.args;
        unit = next;
        first_k = uint32_t(next.begin) * kBlock;
        blocks = int(next.end - next.begin);
        const int64_t end_k = next.end * kBlock < a.k ? next.end * kBlock : a.k;
        load_a.start(a.a, next.row, a.m, end_k);
        load_b.start(a.b, next.column, a.n, end_k);
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
        const Launch& launch = arguments();
        const Args& a = launch.args;
        // Closes: all waves have read the last stage.
        lds_barrier();
        if (launch.split.parts > 1 && !add_parts<S>(sums, done, launch.split)) return;
        const int wave = uniform(threadIdx.x / kWave);
        const int64_t row = done.row + wave / S::waves_n * S::wave_rows;
        const int64_t column = done.column + wave % S::waves_n * S::wave_columns;
        char* const region = lds.regions[wave];
        scale_and_add<S>(sums, a, launch.work.channels, column, reinterpret_cast<float*>(region));
        if (a.out.dtype == DType::f32) {
            store_rows<S, float, S::matrix>(sums, a, region, row, column);
        } else {
            store_rows<S, uint16_t, S::wave_columns>(sums, a, region, row, column);
        }
    }

    Unit unit;

  private:
    static constexpr int kLoads = LoadA::kLoads + LoadB::kLoads;  // of a stage, a thread's

    // slot: of the registers of stages in flight. n: of kLoads.
    __device__ void request(uint32_t stage, int slot, int n) {
        const uint32_t at = first_k + stage * S::stage, mine = careful ? 0 : load_a.chunk_at(at);
        if (n < LoadA::kLoads) {
            load_a.request(flying_a[slot], n, at, mine);
        } else {
            load_b.request(flying_b[slot], n - LoadA::kLoads, at, mine);
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
        const Args& a = arguments().args;
        scales_a.request(a.scale_a, block);
        if (!channels) scales_b.request(a.scale_b, block);
    }
    __device__ void store_scales(uint32_t block) {
        const Args& a = arguments().args;
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
                    set_four<S::matrix>(next_columns[j], q,
                                        *reinterpret_cast<const f32x4*>(columns + column_in_wave<S>(lane, j, q)));
                }
            }
        }
    }
    // Adds a subtile's sums of the last block, scaled.
    __device__ void fold(int i, int j) {
        Sums<S::matrix> factor = Sums<S::matrix>(scale[i]);
        if constexpr (per_column) factor *= of_columns[j];
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
            constexpr int kInstructions = 2 * S::sub_m * S::sub_n;
            const int all = Fragments<S>::kReads + moves;
#pragma unroll
            for (int instruction = 0; instruction < kInstructions; ++instruction) {
                const int subtile = instruction / 2, i = subtile / S::sub_n, j = subtile % S::sub_n;
                const bool start = first && instruction % 2 == 0;
#pragma unroll
                for (int n = all * instruction / kInstructions; n < all * (instruction + 1) / kInstructions; ++n) {
                    between(n);
                }
                if (start) fold(i, j);
                block_sums[i][j] =
                    hip::multiply<S::matrix>(fragments[mine].b[j], fragments[mine].a[i],
                                             start ? Sums<S::matrix>(0) : block_sums[i][j], instruction % 2);
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
template <int index, bool per_column, bool careful>
__global__ __launch_bounds__(Shape<index>::threads, Shape<index>::waves_per_simd)
__attribute__((amdgpu_num_vgpr(256))) void
block_scaled_gemm_tiles(Launch) {
    using S = Shape<index>;
    using T = Tile<S, per_column, careful>;
    __shared__ typename T::Lds lds;
    Unit unit;
    int turn = 0;
    if (!unit_at<S>(turn, &unit)) return;
    T tile(lds);
    tile.begin(unit);
    for (bool more = true; more;) {
        tile.multiply();
        const Unit done = unit;
        more = unit_at<S>(++turn, &unit);
        // The next unit's first stage comes while this one ends.
        if (more) tile.begin(unit);
        tile.finish(done);
    }
}

using Kernel = void (*)(Launch);
static_assert(kGeneralShape32 == kTileShapeCount - 1 && kMaxSplitTiles <= kCounters);

enum class Form { fast, per_column, careful };

template <bool careful>
Kernel general_kernel(int shape) {
    return shape == kGeneralShape16 ? block_scaled_gemm_tiles<kGeneralShape16, true, careful>
                                    : block_scaled_gemm_tiles<kGeneralShape32, true, careful>;
}

Kernel kernel_of(int shape, Form form) {
    if (form == Form::careful) return general_kernel<true>(shape);
    if (form == Form::per_column || shape == kGeneralShape32) return general_kernel<false>(shape);
    // The last one is the general shape.
    return kernel_at<kTileShapeCount - 1>(shape,
                                          []<int i>() -> Kernel { return block_scaled_gemm_tiles<i, false, false>; });
}

constexpr int64_t kBufferBytes = 1 << 30;

// Whether 128-bit loads with offsets of 32 bits can take an operand.
bool fits(const Operand& x, int64_t k, int64_t rows) {
    const int64_t stride = rows == 1 ? 0 : x.row_stride;
    return x.k_contiguous() && rows_aligned(x.data, stride) && stride >= 0 && stride < kBufferBytes / 256 &&
           k < kBufferBytes / 4;
}

// Whether offsets of 32 bits can take the scales of a tile.
bool fits(const Scales& s, int64_t k) {
    return 4 * (256 * s.row_stride + blocks_of(k) * s.block_stride) < kBufferBytes;
}

// Reads the forced configuration. An error if the arguments do not allow it.
Status forced_config(Form form, int64_t blocks, Config* config) {
    ForcedConfig forced;
    const Status read = read_forced_config(kTileShapeCount, kMaxParts, false, &forced);
    if (!read.ok() || !forced.set) return read;
    if (forced.shape < 0 || (form != Form::fast && general_shape(forced.shape) != forced.shape)) {
        return {"ROCM_FP8_KERNELS_GEMM names a shape that cannot take these arguments"};
    }
    *config = {forced.shape, forced.splits < blocks ? forced.splits : int(blocks)};
    return {};
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip

namespace rocm_fp8::block_scaled_gemm {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    if (args.m == 0 || args.n == 0) return {};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    if (args.format != native_fp8(chip.arch)) {
        return {
            chip.arch == Arch::gfx942
                ? "a: dtype float8_e4m3fn; this GPU (gfx942) multiplies float8_e4m3fnuz: same bytes, 0x80 to 0x00, scale * 2"
                : "a: dtype float8_e4m3fnuz; this GPU (gfx950) multiplies float8_e4m3fn"};
    }
    const bool channels = args.scale_b.rows == 1 && args.scale_b.row_stride != 0 && args.scale_b.block_stride == 0;
    const bool columns = args.scale_b.rows == 1 && args.scale_b.row_stride != 0 && !channels;
    const bool wide = args.k % kChunk == 0 && fits(args.a, args.k, args.m) && fits(args.b, args.k, args.n) &&
                      fits(args.scale_a, args.k) && fits(args.scale_b, args.k);
    const Form form = !wide ? Form::careful : columns ? Form::per_column : Form::fast;
    Config config = pick_config(args.m, args.n, args.k, int(chip.arch));
    if (form != Form::fast) config.shape = general_shape(config.shape);
    if (const Status forced = forced_config(form, blocks_of(args.k), &config); !forced.ok()) return forced;
    const TileShape& shape = kTileShapes[config.shape];

    const int64_t tiles_m = (args.m + shape.rows - 1) / shape.rows;
    const int64_t tiles_n = (args.n + shape.columns - 1) / shape.columns, tiles = tiles_m * tiles_n;
    const int64_t units = tiles * config.parts;
    constexpr int64_t kMaxUnits = int64_t(1) << 30;
    if (units > kMaxUnits) return {"a and b have more rows than one launch takes"};
    SplitK split{config.parts, nullptr, nullptr};
    if (config.parts > 1) {
        if (tiles > kMaxSplitTiles) return {"ROCM_FP8_KERNELS_GEMM splits K for more tiles than there are counters"};
        const CountersResult counters = counters_for(on.stream);
        if (!counters.status.ok()) return counters.status;
        split.arrived = counters.counters;
        const int64_t bytes = units * shape.rows * shape.columns * int64_t(sizeof(float));
        split.partial = static_cast<float*>(on.scratch(on.context, bytes));
        if (!split.partial) return {"no memory for the sums of split K"};
    }
    const int per_chiplet = int((units + kChiplets - 1) / kChiplets);
    const int room = compute_units(chip.arch) / kChiplets * shape.per_unit;
    const Work work{int(tiles_m), int(tiles_n), int(units), per_chiplet, channels};
    const int groups = kChiplets * (per_chiplet < room ? per_chiplet : room);
    return launch_kernel(kernel_of(config.shape, form), groups, shape.waves() * kWave, on, Launch{args, work, split});
}

}  // namespace rocm_fp8::block_scaled_gemm
