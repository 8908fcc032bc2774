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
// Files: int8_gemm.hip  launcher
//        tile.h         shapes at compile time, matrix instructions
//        scales.h       what the epilogue reads of rows and columns, while the first loads are on their way
//        store.h        epilogue, stores
//        config.h       the compiled shapes, and which one with which parts of K, by a model
//        common/gemm/hip  what it shares with block_scaled_gemm: the main loop, loaders, order of tiles, split-K
//
// Limit today, by the simulator's clock (nothing has been measured on an AMD GPU): L2 with many rows, latency with few.
//
// Steps and figures: docs/journal/int8_gemm-hip.md.
#include "../../common/gemm/hip/add_parts.h"
#include "../../common/gemm/hip/launch.h"
#include "../../common/gemm/hip/tile_loop.h"
#include "../../common/gpu/kernel_at.h"
#include "store.h"

namespace rocm_fp8::int8_gemm::hip {
namespace {

using Launch = TileLaunch<Args>;  // mode: what the epilogue does (scales.h)

// What the main loop makes of products: sums in place.
template <class S>
class ExactTile {
  public:
    using Launch = hip::Launch;
    using Item = WorkItem;
    static constexpr bool kBlocksApart = false, kSkips = false;
    static constexpr int kInstructions = kInstructionsAFragment;
    struct Lds {};

    __device__ explicit ExactTile(Lds&) {}

    template <class LoadA, class LoadB>
    __device__ void start(LoadA& load_a, LoadB& load_b, const Launch& launch, const WorkItem& next, uint32_t first_k,
                          uint32_t end_k) {
        const Args& a = launch.args;
        item = next;
        load_a.start(rows_of(a.a, item), first_row<S>(item), a.m, first_k, end_k);
        load_b.start(rows_of(a.b, item), first_column<S>(item), a.n, first_k, end_k);
    }
    __device__ void clear(const Launch& launch) {
        places = scales.prepare(launch.args, launch.mode, item);
        clear_sums(sums);
    }
    __device__ void filled(const Launch&) { scales.request(places); }
    __device__ void multiply(int i, int j, const u32x4* b, const u32x4* a, int n, bool) {
        sums[i][j] = hip::multiply<S::matrix>(b, a, sums[i][j], n);
    }
    __device__ void finish(const Launch& launch, const WorkItem& done, char (&regions)[S::waves][S::region_bytes]) {
        if (launch.split.parts > 1 && !add_parts<S>(sums, done, launch.split, regions)) return;
        store_tile<S>(sums, arguments<Launch>, regions, done, scales);
    }

  private:
    __device__ static Operand rows_of(const Operand& x, const WorkItem& item) {
        return {0, x.data + item.group * x.group_stride, x.row_stride, 1};
    }

    WorkItem item;
    TileSums<S> sums;
    Scales<S> scales;
    typename Scales<S>::Places places;
};

// 256: beyond that there are accumulation registers alone, which vector instructions do not reach.
template <int index, bool unaligned>
__global__ __launch_bounds__(Shape<index>::threads, Shape<index>::waves_per_simd)
__attribute__((amdgpu_num_vgpr(256))) void
int8_gemm_tiles(Launch) {
    using S = Shape<index>;
    constexpr Layout kLayout = unaligned ? Layout::unaligned : Layout::aligned;
    using T = TileLoop<S, LoaderOf<S, S::rows, kLayout>, LoaderOf<S, S::columns, kLayout>, ExactTile<S>>;
    __shared__ typename T::Lds lds;
    make_items<S, Launch, T>(lds);
}

using Kernel = void (*)(Launch);

Kernel kernel_of(int shape, bool unaligned) {
    if (unaligned) {
        return shape == kFallbacks[0]   ? int8_gemm_tiles<kFallbacks[0], true>
               : shape == kFallbacks[1] ? int8_gemm_tiles<kFallbacks[1], true>
                                        : int8_gemm_tiles<kFallbacks[2], true>;
    }
    return kernel_at<kTileShapeCount>(shape, []<int i>() -> Kernel { return int8_gemm_tiles<i, false>; });
}

// Whether 128-bit loads with offsets of 32 bits can take an operand.
bool fits(const Operand& x, int64_t batches, int64_t k, int64_t rows) {
    constexpr int64_t kBufferBytes = kNowhere, kMostStride = kBufferBytes / kMostOfTile - 1;
    static_assert(in_reach(kMostOfTile, kMostStride, kMaxK));
    const int64_t stride = rows == 1 ? 0 : x.row_stride;
    return rows_aligned(x.data, stride) && (batches == 1 || x.group_stride % kChunk == 0) && stride <= kMostStride &&
           k < kBufferBytes / 4;
}

// Reads the forced configuration. An error if the arguments do not allow it.
Status forced_config(bool unaligned, int64_t blocks, Config* config) {
    const auto place = [](std::string_view name) { return place_of(kTileShapes, name); };
    const auto fits = [&](const ForcedConfig& forced) {
        return forced.shape >= 0 && (!unaligned || fallback_shape(forced.shape) == forced.shape);
    };
    return take_forced("int8_gemm", place, blocks, fits, config);
}

}  // namespace
}  // namespace rocm_fp8::int8_gemm::hip

namespace rocm_fp8::int8_gemm {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    const bool unaligned =
        args.k % kChunk != 0 || !fits(args.a, args.batch, args.k, args.m) || !fits(args.b, args.batch, args.k, args.n);
    Config config = pick_config({args.batch, args.m, args.n, args.k}, int(chip.arch), unaligned);
    if (const Status forced = forced_config(unaligned, blocks_of(args.k), &config); !forced.ok()) return forced;
    return launch_tiles(reinterpret_cast<const void*>(kernel_of(config.shape, unaligned)), kTileShapes[config.shape],
                        config.parts, mode_of(args), args, args.batch, chip.arch, on);
}

}  // namespace rocm_fp8::int8_gemm
