// The launcher of skinny_gemm's kernels on AMD GPUs, whatever they do with what they have finished: skinny_gemm.hip,
// send.hip.
//
// Kernels says which those are: stream<index>() of kStreamShapes, any<index>() of kFallbackShapes. More: their
// arguments behind StreamArgs.
#pragma once

#include "../../common/gemm/hip/launch.h"
#include "../../common/gpu/kernel_at.h"
#include "kernel.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

// Reads the forced configuration. An error if the arguments do not allow it.
Status forced_config(const Args& a, bool stream_allowed, Config* config) {
    const auto place = [](std::string_view name) { return place_of(kStreamShapes, name); };
    const auto fits = [&](const ForcedConfig& forced) {
        const bool changed = forced.shape != config->shape || forced.splits != config->parts;
        return !changed || forced.shape == kFallback || (stream_allowed && kStreamShapes[forced.shape].rows >= a.m);
    };
    return take_forced("skinny_gemm", place, kMaxParts, fits, config);
}

template <class Kernels, class... More>
Status launch_by(const Args& args, const Executor& on, const More&... more) {
    if (args.m == 0 || args.n == 0) return {};
    if (args.m > kMaxRows) return {"a has more rows than one launch takes"};
    if (args.k > gemm::kMostK) return {"a: K is more than 4294967168; at most that is allowed"};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    if (const Status own = own_fp8(args.format, chip.arch); !own.ok()) return own;

    constexpr int64_t kMostOfStream = kNowhere / 2, kMostStride = kNowhere / 64 - 1;
    static_assert(
        in_reach(std::max(gemm::tallest(kStreamShapes), gemm::widest(kStreamShapes)), kMostStride, kMostOfStream));
    const bool aligned = rows_fit(args);
    const bool stream_allowed = aligned && args.n <= kMostColumns && args.k < kMostOfStream &&
                                args.b.row_stride <= kMostStride && args.a.row_stride <= kMostStride;
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
            kernel_at<3>(int(&shape - kFallbackShapes), []<int i>() { return Kernels::template any<i>(); });
        return launch_kernel(kernel, groups, threads, on, work, rest, more..., args.a, args.b);
    }
    const auto kernel =
        kernel_at<kStreamShapeCount>(config.shape, []<int i>() { return Kernels::template stream<i>(); });
    return launch_kernel(kernel, groups, threads, on, work.a, work.b, work.a_stride, work.b_stride, work.m, work.n,
                         work.k, work.blocks, work.longer, parts.divisor, parts.factor, parts.shift, rest, more...);
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip
