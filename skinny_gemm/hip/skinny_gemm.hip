// C = A B^T for up to 32 rows (m) in FP8 on MI300X (gfx942) and MI350 (gfx950): the launcher.
//
// Bytes: n k of weights, read once. A (m k, at most 512 KiB at k = 16384) comes from the caches. Floor: n k at the
// read rate of HBM; estimated for an MI300X (4.0 TB/s) 9.4 us at 2304 x 16384, 54.5 us at 13312 x 16384.
//
// The kernel is common/gemm/hip/stream.h with sums over all of K. The waves of a workgroup have its blocks in turn, so
// that together they read neighbouring lines. The fallback takes any layout, with loads from any address.
//
// Files: skinny_gemm.hip   kernels and launcher
//        config.h          which shape and split-K, by a model;  tuned.h: measured choices
//
// Limit today: unknown, nothing has been measured on an AMD GPU. By the simulator's clock it is HBM at every size of the
// tables; at the smallest two microseconds are the launch and latencies.
//
// Steps and estimates: docs/journal/skinny_gemm-hip.md.
#include "../../common/gemm/forced.h"
#include "../../common/gemm/hip/launch.h"
#include "../../common/gemm/hip/stream_end.h"
#include "../../common/gpu/kernel_at.h"
#include "../skinny_gemm.h"
#include "config.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

using namespace gemm::hip;

struct StreamArgs {
    gemm::Epilogue epilogue;
    SplitK split;
};
// The kernel's arguments as they lie in memory.
struct StreamLaunch {
    StreamWork work;
    StreamArgs rest;
};
static_assert(sizeof(StreamWork) == 14 * sizeof(uint32_t));

struct Scaled {
    static constexpr bool kRows = true, kColumns = true, kSplits = true, kEarly = true;
    const gemm::Epilogue& e;
    __device__ float row(int m) const { return gemm::scale_at(e.scale_a, m); }
    __device__ float column(int n) const { return gemm::scale_at(e.scale_b, n); }
};

template <class S, class A, class B, class Start>
__device__ inline void multiply_and_finish(const StreamWork& work, const Start& start) {
    using Sums = RunningSums<S>;
    constexpr int kRegion = S::sums;
    __shared__ alignas(16) float regions[S::waves][kRegion];
    const int wave = uniform(threadIdx.x / kWave);
    const int tile = int(divide(blockIdx.x, work.parts)), part = int(blockIdx.x) - tile * int(work.parts.divisor);
    const int column = tile * S::columns, first = work.begin(part) + wave, end = work.begin(part + 1);
    StreamSlice<S, S::waves * gemm::kBlock, A, B, Sums> slice;
    start(slice, column);
    slice.start(uint32_t(first) * gemm::kBlock, int(uint32_t(end - first + S::waves - 1) / S::waves), work.k);
    // What the end needs is asked for when the weights are.
    const StreamArgs& rest = arguments<StreamLaunch>().rest;
    const gemm::Epilogue& e = rest.epilogue;
    const Scaled scaled{e};
    StreamEnd<S, Scaled> ending(scaled, e.bias, e.out, rest.split, work.m, work.n, column, tile, part);
    slice.multiply();
    slice.sums.store(regions[wave]);
    // Closes: the sums are added below by other waves.
    lds_barrier();
    ending.template finish<kRegion>(regions[0], S::waves);
}

template <int index>
using Fast = Stream<kStreamShapes[index]>;
template <int index>
__global__ __launch_bounds__(Fast<index>::threads, Fast<index>::waves_per_simd) void skinny_gemm_stream(
    const uint8_t* a, const uint8_t* b, uint32_t a_stride, uint32_t b_stride, int m, int n, uint32_t k, int blocks,
    int longer, uint32_t divisor, uint32_t factor, uint32_t shift, StreamArgs) {
    using S = Fast<index>;
    using A = AlignedFragments<S::rows, kPlainAccess>;
    using B = AlignedFragments<S::columns, kNonTemporal>;
    const StreamWork work{a, b, a_stride, b_stride, m, n, k, blocks, longer, {divisor, factor, shift}};
    multiply_and_finish<S, A, B>(work, [&](auto& slice, int column) {
        slice.load_b.start(b, b_stride, column, n);
        slice.load_a.start(a, a_stride, 0, m);
    });
}

template <int index>
using Any = Stream<kFallbackShapes[index]>;
template <int index>
__global__ __launch_bounds__(Any<index>::threads) void skinny_gemm_fallback(StreamWork work, StreamArgs,
                                                                            gemm::Operand a, gemm::Operand b) {
    using S = Any<index>;
    multiply_and_finish<S, AnyFragments<S::rows>, AnyFragments<S::columns>>(work, [&](auto& slice, int column) {
        slice.load_b.start(b, column, work.n);
        slice.load_a.start(a, 0, work.m);
    });
}

// Reads the forced configuration. An error if the arguments do not allow it.
Status forced_config(const Args& a, bool stream_allowed, Config* config) {
    ForcedConfig forced;
    const auto place = [](std::string_view name) { return gemm::place_of(kStreamShapes, name); };
    if (const Status s = read_forced_config("skinny_gemm", kStreamShapeCount, place, kMaxParts, false, &forced);
        !s.ok() || !forced.set)
        return s;
    const bool changed = forced.shape != config->shape || forced.splits != config->parts;
    if (changed && forced.shape != kFallback && (!stream_allowed || kStreamShapes[forced.shape].rows < a.m)) {
        return {kUnfit};
    }
    config->shape = forced.shape;
    config->parts = forced.splits;
    return {};
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip

namespace rocm_fp8::skinny_gemm {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    if (args.m == 0 || args.n == 0) return {};
    if (args.m > kMaxRows) return {"a has more rows than one launch takes"};
    if (args.k > gemm::kMostK) return {"a: K is more than 4294967168; at most that is allowed"};
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
    const bool stream_allowed = aligned && args.n <= kMostColumns && args.k < kBufferBytes / 2 &&
                                args.b.row_stride < kBufferBytes / 64 && args.a.row_stride < kBufferBytes / 64;
    Config config = pick_config(args.m, args.n, args.k, int(chip.arch), stream_allowed);
    if (const Status forced = forced_config(args, stream_allowed, &config); !forced.ok()) return forced;

    const StreamShape& shape = shape_of(config, args.m);
    const int64_t tiles = (args.n + shape.columns - 1) / shape.columns, groups = tiles * config.parts;
    const auto [split, status] =
        split_for(config.parts, tiles, int64_t(shape.rows) * shape.columns * int64_t(sizeof(float)), on);
    if (!status.ok()) return status;
    const int threads = kWave * shape.waves;
    if (groups * threads > kMaxThreads || args.n > kMostColumns) return {"b has more rows than one launch takes"};
    const int blocks = int(gemm::blocks_of(args.k));
    const Divider parts = divider_by(uint32_t(config.parts));
    const StreamWork work{
        args.a.data, args.b.data,      uint32_t(args.a.row_stride), uint32_t(args.b.row_stride), int(args.m),
        int(args.n), uint32_t(args.k), blocks / config.parts,       blocks % config.parts,       parts};
    const StreamArgs rest{args.epilogue, split};
    if (config.shape == kFallback) {
        const auto kernel =
            kernel_at<3>(int(&shape - kFallbackShapes), []<int i>() { return skinny_gemm_fallback<i>; });
        return launch_kernel(kernel, groups, threads, on, work, rest, args.a, args.b);
    }
    const auto kernel = kernel_at<kStreamShapeCount>(config.shape, []<int i>() { return skinny_gemm_stream<i>; });
    return launch_kernel(kernel, groups, threads, on, work.a, work.b, work.a_stride, work.b_stride, work.m, work.n,
                         work.k, work.blocks, work.longer, parts.divisor, parts.factor, parts.shift, rest);
}

}  // namespace rocm_fp8::skinny_gemm
