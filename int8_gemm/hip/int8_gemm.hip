// E = A B^T in int8 with exact int32 sums, on MI300X (gfx942) and MI350 (gfx950): the launcher and the kernel.
//
// Work: 2 m n k operations; 16384 x 1536 x 5120 are 99 us of an MI300X's matrix instructions at 2.1 GHz. Bytes: a tile of
// R x C reads (R + C) k from L2, which is the second bound.
//
//     HBM, L2 --> registers (stages ahead) --> LDS (two stages) --> fragments --> MFMA --> int32 sums
//     result <-- ../epilogue.h <-- LDS (eights of columns of a row) <-- split-K <------------+
//
// With waves_k two grids of waves multiply the halves of each stage's k, so that a tile of any number of subtiles by four
// keeps eight waves busy; the epilogue adds their sums on their way through LDS.
//
// A workgroup has one tile after the other, of any batch. Loads, LDS accesses and matrix instructions stay in the
// source's order (sched_barrier). LDS accesses of all waves take turns, so each has a place between two matrix
// instructions.
//
// Files: int8_gemm.hip  launcher, order of tiles, main loop
//        tile.h         shapes at compile time, matrix instructions, global memory to registers to LDS
//        scales.h       what the epilogue reads of rows and columns, while the first loads are on their way
//        store.h        split-K, epilogue, stores
//        config.h       the compiled shapes, and which one with which parts of K, by a model
//        ../../common/gemm/hip/tile.h   layout of a stage in LDS, fragments
//
// Limit today, by the simulator's clock (nothing has been measured on an AMD GPU): L2 with many rows, latency with few.
//
// Steps and figures: docs/journal/int8_gemm-hip.md.
#include "../../common/gemm/forced.h"
#include "../../common/gpu/kernel_at.h"
#include "../../common/gemm/hip/counters.h"
#include "../../common/hip/device.h"
#include "store.h"

namespace rocm_fp8::int8_gemm::hip {
namespace {

constexpr int kChiplets = 8;

// What the compiler may move across a point (sched_barrier): scalar and vector instructions.
constexpr int kScalars = 0x2 | 0x4;

// The launch's work: units, in an order in which neighbours share rows or columns. Workgroup i runs on chiplet i % 8,
// whose L2 cache is its own; a chiplet's workgroups take units that follow one another.
struct Work {
    int tiles_m, tiles_n, tiles;  // tiles: of all batches
    int units, per_chiplet;       // of all chiplets; of one
};

struct Launch {
    Args args;
    Work work;
    SplitK split;
    int way;  // of the epilogue
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
    // Divisions delay the first load: only those that have something to divide.
    int tile = at, part = 0, batch = 0;
    if (parts > 1) part = at / work.tiles, tile = at % work.tiles;
    int t = tile;
    const int of_batch = work.tiles_m * work.tiles_n;
    if (of_batch != work.tiles) batch = tile / of_batch, t = tile % of_batch;
    const int first = t / (kGroup * work.tiles_n) * kGroup;
    const int together = work.tiles_m - first < kGroup ? work.tiles_m - first : kGroup;
    const int inside = t - first * work.tiles_n;
    int tile_m = inside % kGroup, tile_n = inside / kGroup;
    if (together != kGroup) tile_m = inside % together, tile_n = inside / together;
    const int blocks = int(blocks_of(launch.args.k));
    *unit = {batch, first + tile_m, tile_n, tile, part, 0, blocks};
    if (parts > 1) unit->begin = blocks * part / parts, unit->end = blocks * (part + 1) / parts;
    return true;
}

template <class S, bool careful>
class Tile {
    using LoadA = StageLoader<S::rows, S::stage, S::threads, careful>;
    using LoadB = StageLoader<S::columns, S::stage, S::threads, careful>;
    // A stage is stored so many stages before it is multiplied.
    static constexpr int kLead = S::deep ? 2 : 1;

  public:
    union Lds {
        alignas(16) char stages[2][S::stage_bytes];
        alignas(16) Regions<S> regions;
    };

    __device__ explicit Tile(Lds& lds) : lds(lds) {}

    // Starts to load a unit.
    __device__ void begin(const Unit& next) {
        const Args& a = arguments().args;
        unit = next;
        first_k = uint32_t(next.begin) * kBlock;
        const int64_t end_k = next.end * kBlock < a.k ? next.end * kBlock : a.k;
        const int64_t row = int64_t(next.tile_m) * S::rows, column = int64_t(next.tile_n) * S::columns;
        stages = (uint32_t(end_k) - first_k + S::stage - 1) / S::stage;
        load_a.start(a.a.data + next.batch * a.a.batch_stride, a.a.row_stride, row, a.m, end_k);
        load_b.start(a.b.data + next.batch * a.b.batch_stride, a.b.row_stride, column, a.n, end_k);
#pragma unroll
        for (int stage = 0; stage < S::ahead; ++stage) request(stage, stage);
    }

    // Makes the sums of the unit.
    __device__ void multiply() {
        const auto places_of_scales = scales.prepare(arguments().args, arguments().way, unit);
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) sums[i][j] = Sums<S::matrix>(0);
        }
        // Closes: the epilogue of the last unit has read its part of LDS.
        lds_barrier();
#pragma unroll
        for (int stage = 0; stage < kLead; ++stage) {
#pragma unroll
            for (int n = 0; n < kLoads; ++n) store(stage, stage % S::ahead, n);
            request(stage + S::ahead, stage % S::ahead);
        }
        scales.request(places_of_scales);
        // Closes: the first stage is in LDS.
        lds_barrier();
#pragma unroll
        for (int step = 0; step < (S::deep ? S::steps : 1); ++step) read(fragments[step], 0, step);
        const uint32_t end = stages;
        for (uint32_t stage = 0; stage < end;) {
#pragma unroll
            for (int u = 0; u < S::unrolled; ++u) {
                multiply_stage(stage, u);
                if (++stage == end) break;
            }
        }
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
        // Closes: all waves have read the last stage.
        lds_barrier();
        if (launch.split.parts > 1 && !add_parts<S>(sums, done, launch.split, lds.stages[0])) return;
        store_tile<S>(sums, arguments, lds.regions, done, scales);
    }

    Unit unit;

  private:
    static constexpr int kLoads = LoadA::kLoads + LoadB::kLoads;  // of a stage, a thread's

    // slot: of the registers of stages in flight. n: of kLoads.
    __device__ void request(uint32_t stage, int slot, int n) {
        const uint32_t mine = load_a.chunk_at(first_k + stage * S::stage);
        if (n < LoadA::kLoads) {
            load_a.request(flying_a[slot], n, mine);
        } else {
            load_b.request(flying_b[slot], n - LoadA::kLoads, mine);
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
    __device__ void read(Fragments<S>& into, int buffer, int step) { into.read(lds.stages[buffer], places, step); }

    // A stage, the u-th of the round.
    __device__ void multiply_stage(uint32_t stage, int u) {
        const int slot = (u + kLead) % S::ahead, buffer = u % 2;
        if (S::deep) {
            // The matrix instructions are issued before the barrier waits.
            __builtin_amdgcn_sched_barrier(0);
            // Closes: the next stage is in LDS; this one has been read.
            lds_barrier();
        }
#pragma unroll
        for (int step = 0; step < S::steps; ++step) {
            if (!S::deep && step + 1 == S::steps) {
                __builtin_amdgcn_sched_barrier(0);
                // Closes: the next stage is in LDS; this one has been read.
                lds_barrier();
            }
            // Of two steps, or of two stages, of fragments.
            const int mine = S::deep ? u % 2 * S::steps + step : (u * S::steps + step) % 2;
            const int other = S::deep ? (1 - u % 2) * S::steps + step : 1 - mine;
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
            constexpr int kInstructions = kInstructionsAFragment * S::sub_m * S::sub_n;
            const int all = Fragments<S>::kReads + moves;
#pragma unroll
            for (int instruction = 0; instruction < kInstructions; ++instruction) {
                const int subtile = instruction / kInstructionsAFragment, i = subtile / S::sub_n,
                          j = subtile % S::sub_n;
#pragma unroll
                for (int n = all * instruction / kInstructions; n < all * (instruction + 1) / kInstructions; ++n) {
                    between(n);
                }
                sums[i][j] = hip::multiply<S::matrix>(fragments[mine].b[j], fragments[mine].a[i], sums[i][j],
                                                      instruction % kInstructionsAFragment);
                __builtin_amdgcn_sched_barrier(kScalars);
            }
        }
    }

    Lds& lds;
    const Places<S> places;
    uint32_t first_k, stages;
    LoadA load_a;
    LoadB load_b;
    u32x4 flying_a[S::ahead][LoadA::kLoads], flying_b[S::ahead][LoadB::kLoads];
    Fragments<S> fragments[S::deep ? 2 * S::steps : 2];
    TileSums<S> sums;
    Scales<S> scales;
};

// 256: beyond that there are accumulation registers alone, which vector instructions do not reach.
template <int index, bool careful>
__global__ __launch_bounds__(Shape<index>::threads, Shape<index>::waves_per_simd)
__attribute__((amdgpu_num_vgpr(256))) void
int8_gemm_tiles(Launch) {
    using S = Shape<index>;
    using T = Tile<S, careful>;
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
static_assert(kMaxSplitTiles <= kCounters);

Kernel kernel_of(int shape, bool careful) {
    if (careful) {
        return shape == kGeneral[0]   ? int8_gemm_tiles<kGeneral[0], true>
               : shape == kGeneral[1] ? int8_gemm_tiles<kGeneral[1], true>
                                      : int8_gemm_tiles<kGeneral[2], true>;
    }
    return kernel_at<kTileShapeCount>(shape, []<int i>() -> Kernel { return int8_gemm_tiles<i, false>; });
}

// Whether 128-bit loads with offsets of 32 bits can take an operand.
bool fits(const Operand& x, int64_t batches, int64_t k, int64_t rows) {
    constexpr int64_t kBufferBytes = kNowhere;
    // Rows that overlap are longer than their stride: kNowhere lies behind those of a tile all the same.
    static_assert(255 * (kBufferBytes / 256 - 1) + kMaxK <= kBufferBytes);
    const int64_t stride = rows == 1 ? 0 : x.row_stride;
    return rows_aligned(x.data, stride) && (batches == 1 || x.batch_stride % kChunk == 0) &&
           stride < kBufferBytes / 256 && k < kBufferBytes / 4;
}

// Reads the forced configuration. An error if the arguments do not allow it.
Status forced_config(bool careful, int64_t blocks, Config* config) {
    ForcedConfig forced;
    const Status read = read_forced_config(kTileShapeCount, kMaxParts, false, &forced);
    if (!read.ok() || !forced.set) return read;
    if (forced.shape < 0 || (careful && general_shape(forced.shape) != forced.shape)) {
        return {"ROCM_FP8_KERNELS_GEMM names a shape that cannot take these arguments"};
    }
    *config = {forced.shape, forced.splits < blocks ? forced.splits : int(blocks)};
    return {};
}

}  // namespace
}  // namespace rocm_fp8::int8_gemm::hip

namespace rocm_fp8::int8_gemm {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    const bool careful =
        args.k % kChunk != 0 || !fits(args.a, args.batch, args.k, args.m) || !fits(args.b, args.batch, args.k, args.n);
    Config config = pick_config(args.batch, args.m, args.n, args.k, int(chip.arch), careful);
    if (const Status forced = forced_config(careful, blocks_of(args.k), &config); !forced.ok()) return forced;
    const TileShape& shape = kTileShapes[config.shape];

    const int64_t tiles_m = (args.m + shape.rows - 1) / shape.rows;
    const int64_t tiles_n = (args.n + shape.columns - 1) / shape.columns;
    const int64_t tiles = args.batch * tiles_m * tiles_n, units = tiles * config.parts;
    constexpr int64_t kMaxUnits = int64_t(1) << 30;
    if (units > kMaxUnits) return {"a and b have more rows than one launch takes"};
    if (tiles_n > kMostTilesAcross) return {"b has more rows than one launch takes"};
    SplitK split{config.parts, nullptr, nullptr};
    if (config.parts > 1) {
        if (tiles > kMaxSplitTiles) return {"ROCM_FP8_KERNELS_GEMM splits K for more tiles than there are counters"};
        const CountersResult counters = counters_for(on.stream);
        if (!counters.status.ok()) return counters.status;
        split.arrived = counters.counters;
        const int64_t bytes = units * shape.rows * shape.columns * shape.waves_k * int64_t(sizeof(int32_t));
        split.partial = static_cast<float*>(on.scratch(on.context, bytes));
        if (!split.partial) return {"no memory for the sums of split K"};
    }
    const int per_chiplet = int((units + kChiplets - 1) / kChiplets);
    const int room = compute_units(chip.arch) / kChiplets * shape.per_unit;
    const Work work{int(tiles_m), int(tiles_n), int(tiles), int(units), per_chiplet};
    const int groups = kChiplets * (per_chiplet < room ? per_chiplet : room);
    return launch_kernel(kernel_of(config.shape, careful), groups, shape.waves() * kWave, on,
                         Launch{args, work, split, way_of(args)});
}

}  // namespace rocm_fp8::int8_gemm
