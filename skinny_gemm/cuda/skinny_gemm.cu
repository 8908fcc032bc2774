// C = A B^T for up to 32 rows (m) in FP8 on NVIDIA GPUs: the launcher.
//
// Bytes: n k of weights, read once. A (m k, at most 512 KiB at k = 16384) comes from L2. Floor: n k at the read rate
// of HBM; on an H200 (4.47 TB/s) 8.4 us at 2304 x 16384, 48.8 us at 13312 x 16384.
//
//     HBM --> TMA: 10 to 32 KiB of weights a stage --+
//     L2  --> TMA: the same k of A's rows -----------+--> ring in shared memory --> 8 or 16 warps: FP8 -> f16, mma.sync
//                                                                                    |
//     result <-- scales, bias, rounding <-- cluster (split-K), through DSMEM <-- sums of the warps, in shared memory
//
//     kernel before  |== work =====|
//     this kernel        |launch|weights|wait|== work ==|     PDL; weights before the wait only where b is constant
//
// One CTA has a partition of the columns, all of K or a part of it. Partitions have even sizes, as many as there are
// CTA stages. With split-K the CTAs of a cluster share a partition, and each finishes some of its columns.
//
// Files: skinny_gemm.cu   launcher
//        bulk.h           the main kernel (Hopper and later): TMA ring, main loop, reduction
//        fours.h          epilogue of wide CTAs, four columns a thread
//        fallback.h       the simple kernel: other chips, odd strides, small K
//        common/cuda/mma.h  matrix instructions and fragment maps
//        config.h         which kernel, with which tile, partitions and split-K
//
// Limit today: where every CTA stage is taken, memory is busy 95 to 98 % of the time between the ends. What is left is
// 0.8 to 1.1 us from one kernel's end to the end of the next one's wait, and at m = 32 power and the widening of FP8.
//
// How it came to this, what was tried and dropped, and the figures: docs/journal/skinny_gemm-cuda.md.
#include "../../common/cuda/device.h"
#include "../../common/cuda/tensor_map.h"
#include "../../common/gemm/forced.h"
#include "../../common/gpu/kernel_at.h"
#include "bulk.h"
#include "fallback.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

using BulkKernel = void (*)(Args, CUtensorMap, CUtensorMap, Pieces, Overlap);

struct BulkChoice {
    BulkKernel kernel;
    int threads, most_threads, shared_bytes, rows;
    AllowedDevices* allowed;
};

template <int shape, int row_tiles>
BulkChoice bulk_choice() {
    constexpr BulkShape s = kBulkShapes[shape];
    constexpr int kStages = s.stages(row_tiles * kMmaNarrow);
    if constexpr (kStages > 0) {
        using B = Bulk<s.columns, row_tiles, kStages, s.warps, s.clusters>;
        constexpr int kSharedBytes = int(sizeof(typename B::Shared));
        // Of a multiprocessor, and what each block takes beside its own.
        constexpr int kAllShared = 228 << 10, kReserved = 1 << 10;
        static_assert(s.slots() * (kSharedBytes + kReserved) <= kAllShared);
        static_assert(!B::kSplits || B::shares_fit());
        static AllowedDevices allowed;
        const BulkKernel kernel = skinny_gemm_bulk<s.columns, row_tiles, kStages, s.warps, s.clusters>;
        return {kernel, B::kThreads, B::kMostThreads, kSharedBytes, B::kRows, &allowed};
    } else {
        return {};  // there is no such form
    }
}

BulkChoice bulk_kernel(int shape, int64_t m) {
    return kernel_at<kBulkShapeCount>(shape, [&]<int i>() {
        return m <= 8 ? bulk_choice<i, 1>() : m <= 16 ? bulk_choice<i, 2>() : bulk_choice<i, 4>();
    });
}

template <bool aligned>
void (*fallback_kernel(int64_t m))(Args) {
    return m <= 8    ? skinny_gemm_fallback<1, aligned>
           : m <= 16 ? skinny_gemm_fallback<2, aligned>
                     : skinny_gemm_fallback<4, aligned>;
}

Status launch_fallback(const Args& a, const Chip& chip, bool aligned, const Executor& on) {
    const int64_t ctas = (a.n + kMmaWide - 1) / kMmaWide;
    if (ctas > kMaxCtas) return {"b has more rows than one launch takes"};
    return launch_kernel(aligned ? fallback_kernel<true>(a.m) : fallback_kernel<false>(a.m), chip,
                         {ctas, kFallbackWarps * kWarp}, on, a);
}

Status launch_bulk(const Args& a, const Chip& chip, const Config& config, const Executor& on) {
    const BulkChoice choice = bulk_kernel(config.shape, a.m);
    const Pieces pieces(a.n, config.pieces);
    CUtensorMap weights, rows;
    if (!describe(&weights, {a.b.data, a.n, a.k, a.b.row_stride, kRowBytes, pieces.most_columns()}) ||
        !describe(&rows, {a.a.data, a.m, a.k, a.a.row_stride, kRowBytes, choice.rows})) {
        return launch_fallback(a, chip, true, on);
    }
    if (const Status s = allow_shared_bytes(choice.kernel, choice.shared_bytes, chip, choice.allowed); !s.ok()) {
        return s;
    }
    const Overlap overlap = pick_overlap(config, a.m, a.n, a.k, chip.multiprocessors, a.constant_b);
    const int threads = overlap.window ? choice.most_threads : choice.threads;
    const Grid grid{int64_t(pieces.count) * config.splits, threads, config.splits, choice.shared_bytes};
    return launch_kernel(choice.kernel, chip, grid, on, a, weights, rows, pieces, overlap);
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda

namespace rocm_fp8::skinny_gemm {

Status launch(const Args& args, const Executor& on) {
    using namespace cuda;
    if (args.m == 0 || args.n == 0) return {};
    if (args.m > kMaxRows) return {"a has more rows than one launch takes"};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    if (args.format != DType::e4m3fn) return {"a: dtype float8_e4m3fnuz; NVIDIA GPUs multiply float8_e4m3fn"};
    const bool aligned = rows_fit(args);
    Config config =
        pick_config(args.m, args.n, args.k, {chip.capability, chip.multiprocessors}, aligned && chip.hopper());
    ForcedConfig forced;
    const auto place = [](std::string_view name) { return gemm::place_of(kBulkShapes, name); };
    if (const Status s = read_forced_config("skinny_gemm", kBulkShapeCount, place, kMaxClusterSplits, true, &forced);
        !s.ok())
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
    return config.shape == kFallback ? launch_fallback(args, chip, aligned, on) : launch_bulk(args, chip, config, on);
}

}  // namespace rocm_fp8::skinny_gemm
