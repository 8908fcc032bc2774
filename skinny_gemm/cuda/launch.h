// The launcher of the CUDA GEMM's kernels, whatever they do with what they have finished: skinny_gemm.cu, send.cu.
//
// Kernels says which those are:
//
//     kApiece                                                columns that a thread finishes at a time
//     bulk<columns, row tiles, stages, warps, clusters>()    bulk.h's of a form; arguments: Args, the maps of b and a,
//                                                            Pieces in units of kApiece columns, Overlap, More
//     fallback<row tiles, aligned>()                         fallback.h's; arguments: Args, More
#pragma once

#include "../../common/cuda/device.h"
#include "../../common/cuda/tensor_map.h"
#include "../../common/forced.h"
#include "../../common/gpu/kernel_at.h"
#include "bulk.h"
#include "fallback.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

template <class Kernels, class... More>
struct Launcher {
    using BulkKernel = void (*)(Args, CUtensorMap, CUtensorMap, Pieces, Overlap, More...);

    struct BulkChoice {
        BulkKernel kernel;
        int threads, most_threads, shared_bytes, rows;
        AllowedDevices* allowed;
    };

    template <int shape, int row_tiles>
    static BulkChoice bulk_choice() {
        constexpr BulkShape s = kBulkShapes[shape];
        constexpr int kStages = s.stages(row_tiles * kMmaNarrow);
        if constexpr (kStages > 0) {
            using B = Bulk<s.columns, row_tiles, kStages, s.warps, s.clusters, Kernels::kApiece>;
            constexpr int kSharedBytes = int(sizeof(typename B::Shared));
            // Of a multiprocessor, and what each block takes beside its own.
            constexpr int kAllShared = 228 << 10, kReserved = 1 << 10;
            static_assert(s.slots() * (kSharedBytes + kReserved) <= kAllShared);
            static_assert(!B::kSplits || B::shares_fit());
            static AllowedDevices allowed;
            const BulkKernel kernel = Kernels::template bulk<s.columns, row_tiles, kStages, s.warps, s.clusters>();
            return {kernel, B::kThreads, B::kMostThreads, kSharedBytes, B::kRows, &allowed};
        } else {
            return {};  // there is no such form
        }
    }

    static BulkChoice bulk_kernel(int shape, int64_t m) {
        return kernel_at<kBulkShapeCount>(shape, [&]<int i>() {
            return m <= 8 ? bulk_choice<i, 1>() : m <= 16 ? bulk_choice<i, 2>() : bulk_choice<i, 4>();
        });
    }

    template <bool aligned>
    static void (*fallback_kernel(int64_t m))(Args, More...) {
        return m <= 8    ? Kernels::template fallback<1, aligned>()
               : m <= 16 ? Kernels::template fallback<2, aligned>()
                         : Kernels::template fallback<4, aligned>();
    }

    static Status launch_fallback(const Args& a, const Chip& chip, bool aligned, const Executor& on, More... more) {
        const int64_t ctas = (a.n + kMmaWide - 1) / kMmaWide;
        if (ctas > kMaxCtas) return {"b has more rows than one launch takes"};
        return launch_kernel(aligned ? fallback_kernel<true>(a.m) : fallback_kernel<false>(a.m), chip,
                             {ctas, kFallbackWarps * kWarp}, on, a, more...);
    }

    static Status launch_bulk(const Args& a, const Chip& chip, const Config& config, const Executor& on, More... more) {
        const BulkChoice choice = bulk_kernel(config.shape, a.m);
        // Where a piece has to begin with an even column it has at most the form's: that is even, too.
        const int64_t units = a.n / Kernels::kApiece;
        const Pieces pieces(units, config.pieces < units ? config.pieces : int(units));
        CUtensorMap weights, rows;
        if (!describe(&weights,
                      {a.b.data, a.n, a.k, a.b.row_stride, kRowBytes, Kernels::kApiece * pieces.most_columns()}) ||
            !describe(&rows, {a.a.data, a.m, a.k, a.a.row_stride, kRowBytes, choice.rows})) {
            return launch_fallback(a, chip, true, on, more...);
        }
        if (const Status s = allow_shared_bytes(choice.kernel, choice.shared_bytes, chip, choice.allowed); !s.ok()) {
            return s;
        }
        const Overlap overlap = pick_overlap(config, a.m, a.n, a.k, chip.multiprocessors, a.constant_b);
        const int threads = overlap.window ? choice.most_threads : choice.threads;
        const Grid grid{int64_t(pieces.count) * config.splits, threads, config.splits, choice.shared_bytes};
        return launch_kernel(choice.kernel, chip, grid, on, a, weights, rows, pieces, overlap, more...);
    }

    static Status launch(const Args& args, const Executor& on, More... more) {
        if (args.m == 0 || args.n == 0) return {};
        if (args.m > kMaxRows) return {"a has more rows than one launch takes"};
        const auto [chip, status] = current_chip();
        if (!status.ok()) return status;
        if (args.format != DType::e4m3fn) return {"a: dtype float8_e4m3fnuz; NVIDIA GPUs multiply float8_e4m3fn"};
        const bool aligned = rows_fit(args);
        Config config =
            pick_config(args.m, args.n, args.k, {chip.capability, chip.multiprocessors}, aligned && chip.hopper());
        ForcedConfig forced;
        const auto place = [](std::string_view name) { return place_of(kBulkShapes, name); };
        if (const Status s = read_forced_config("skinny_gemm", place, kMaxClusterSplits, true, &forced); !s.ok())
            return s;
        if (forced.set) {
            int pieces = 0;
            if (forced.shape != kFallback) {
                const BulkShape shape = kBulkShapes[forced.shape];
                const int fewest = fewest_pieces(shape.columns, args.n);
                pieces = forced.pieces ? forced.pieces : fewest;
                const bool fits = shape.stages(args.m) && (forced.splits == 1 || shape.splits(args.m));
                if (config.shape == kFallback || !fits || pieces < fewest || pieces > args.n) {
                    return {kUnfit};
                }
            }
            config = {forced.shape, forced.splits, pieces};
        }
        return config.shape == kFallback ? launch_fallback(args, chip, aligned, on, more...)
                                         : launch_bulk(args, chip, config, on, more...);
    }
};

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda
