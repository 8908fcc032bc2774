// C = A B^T for up to 32 rows (m) in FP8 on MI300X (gfx942) and MI350 (gfx950): the launcher.
//
// Bytes: n k of weights, read once. A (m k, at most 512 KiB at k = 16384) comes from the caches. Floor: n k at the
// read rate of HBM; estimated for an MI300X (4.0 TB/s) 9.4 us at 2304 x 16384, 54.5 us at 13312 x 16384.
//
// Files: skinny_gemm.hip   launcher
//        stream.h          the kernel
//        tile.h            matrix instructions and layouts, split-K, the epilogue
//        fallback.h        the simple kernel: fallback and comparison
//        config.h          which kernel, with which shape and split-K, by a model;  tuned.h: measured choices
//
// Limit today: unknown, nothing has been measured on an AMD GPU. By the simulator's clock it is HBM at every size of the
// tables; at the smallest two microseconds are the launch and latencies.
//
// Steps and estimates: docs/journal/skinny_gemm-hip.md.
#include "../../common/gemm/forced.h"
#include "../../common/gemm/hip/launch.h"
#include "../../common/gpu/kernel_at.h"
#include "../../common/hip/device.h"
#include "config.h"
#include "fallback.h"
#include "stream.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

static_assert(kTileColumns == kGemmTileColumns);

using StreamKernel = decltype(&skinny_gemm_stream<0>);

StreamKernel stream_kernel(int shape) {
    return kernel_at<kStreamShapeCount>(shape, []<int i>() -> StreamKernel { return skinny_gemm_stream<i>; });
}

using FallbackKernel = void (*)(FallbackLaunch);

template <bool aligned>
FallbackKernel fallback_kernel(int64_t m) {
    const int rows = row_class(m);
    return rows == 8    ? skinny_gemm_fallback<8, aligned>
           : rows == 16 ? skinny_gemm_fallback<16, aligned>
                        : skinny_gemm_fallback<32, aligned>;
}

// Reads the forced configuration. An error if the arguments do not allow it.
Status forced_config(const Args& a, bool stream_allowed, Config* config) {
    ForcedConfig forced;
    const auto place = [](std::string_view name) { return gemm::place_of(kStreamShapes, name); };
    if (const Status s = read_forced_config("skinny_gemm", kStreamShapeCount, place, kMaxSplits, false, &forced);
        !s.ok() || !forced.set)
        return s;
    const bool changed = forced.shape != config->shape || forced.splits != config->splits;
    if (changed && forced.shape != kFallback && (!stream_allowed || kStreamShapes[forced.shape].rows < a.m)) {
        return {kUnfit};
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
    const bool stream_allowed = aligned && args.n <= kMostColumns && args.k < kBufferBytes / 2 &&
                                args.b.row_stride < kBufferBytes / 64 && args.a.row_stride < kBufferBytes / 64;
    Config config = pick_config(args.m, args.n, args.k, int(chip.arch), stream_allowed);
    if (const Status forced = forced_config(args, stream_allowed, &config); !forced.ok()) return forced;

    const bool streams = config.shape != kFallback;
    const int rows = streams ? kStreamShapes[config.shape].rows : row_class(args.m);
    const int64_t columns = kTileColumns * (streams ? kStreamShapes[config.shape].tiles : 1);
    const int64_t tiles = (args.n + columns - 1) / columns;
    const auto [split, status] =
        gemm::hip::split_for(config.splits, tiles, rows * columns * int64_t(sizeof(float)), on);
    if (!status.ok()) return status;
    const int64_t groups = tiles * config.splits;
    const int threads = kWave * (streams ? kStreamShapes[config.shape].waves : kFallbackWaves);
    if (groups * threads > kMaxThreads) return {"b has more rows than one launch takes"};
    if (streams) {
        const int blocks = int((args.k + kStreamBlock - 1) / kStreamBlock);
        const Divider parts = divider_by(uint32_t(config.splits));
        return launch_kernel(stream_kernel(config.shape), groups, threads, on, args.a.data, args.b.data,
                             uint32_t(args.a.row_stride), uint32_t(args.b.row_stride), int(args.m), int(args.n),
                             int(args.k - int64_t(blocks - 1) * kStreamBlock), blocks / config.splits,
                             blocks % config.splits, parts.divisor, parts.factor, parts.shift,
                             StreamEnd{args.epilogue, split});
    }
    return launch_kernel(aligned ? fallback_kernel<true>(args.m) : fallback_kernel<false>(args.m), groups, threads, on,
                         FallbackLaunch{args, split});
}

}  // namespace rocm_fp8::skinny_gemm
