// Products of sorted rows with the matrix of their expert, on NVIDIA GPUs: the launcher.
//
//     offsets --> each CTA: sums of row tiles, expert after expert, in shared memory --> its share of all tiles
//     HBM, L2 --> TMA: 128 bytes of k of 64 or 128 rows of weights and of 16 to 256 rows of A a stage --> ring
//             --> wgmma --> FP8: sums += scales * block, in float32; 16-bit: one sum
//             --> with split-K, through DSMEM to the CTA of the cluster that finishes a part of the rows
//             --> bias, rounding --> shared memory --> whole lines of the result
//
// The course is block_scaled_gemm's: one warpgroup loads, one or two multiply, CTAs are persistent. An expert's weights
// are read from HBM once: its row tiles follow each other. What a tile has no rows for is neither loaded nor multiplied,
// by 16 and 32 rows in the small form, by 64 in the others: a model chooses some experts ten times as often as others.
//
// Up to 20 rows of the result leave CTA slots free: the CTAs of a cluster split K, and a cluster makes one tile. It finds
// its tile as CTAs do, and a cluster that finds none ends. Its parts are the sizes' alone (config.h).
//
// Gathered rows: in the form for 16 rows by a TMA copy each, which is slow where a tile has many. Otherwise, and for
// operands that TMA does not take, a pass before the kernel copies the rows into memory of the launch's own; for the
// highest tiles their scales, too (gather.h).
//
// Files: grouped_gemm.cu    launcher
//        config.h           compiled forms, and which one takes a size
//        row_tiles.h        tiles of all experts
//        tile.h             the kernel: what fills the stages, multiplication, store
//        shape.h            stages in shared memory
//        expert.h           one expert's GEMM
//        gather.h           gathered rows and scales
//        fallback.h         chips without wgmma, weights that TMA does not take
//        ../gpu.h           SwiGLU and quantisation, in a pass behind the product: in the epilogue, where a CTA has all
//                           tiles of 128 hidden values, they were slower at every size (docs/journal/moe.md, CUDA, 13)
//
// Limit today: few rows read weights at 2.93 to 3.09 TB/s (H100); a sum over memory reaches 3.11. Many rows make 790 to
// 970 TFLOP/s, DeepGEMM .84 to .89 of their time (H200): a step has 117 instructions of a warp, 64 of them additions, tiles
// come from L2 without multicast, and CTAs with few short tiles end last.
#include "../../common/cuda/device.h"
#include "../../common/cuda/tensor_map.h"
#include "../../common/gemm/cuda/forced.h"
#include "../../common/gpu/kernel_at.h"
#include "../../common/rows/cuda/vendor.h"
#include "../../swiglu_fp8/cuda/gated.h"
#include "../gpu.h"
#include "fallback.h"
#include "gather.h"
#include "tile.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

constexpr Status kTooMany{"a and b have more rows than one launch takes"};
// The kernels number a band of rows of tiles, and the tile behind a CTA's last one, in 31 bits.
constexpr int64_t kMostTiles = kMaxCtas / kBand;

struct Choice {
    void (*kernel)(Args, CUtensorMap, CUtensorMap, Launch);
    int threads, shared_bytes;
    AllowedDevices* allowed;
};

template <Kind kind>
Choice choice_as(int form) {
    return kernel_at<kFormCount>(form, [&]<int i>() {
        using S = Shape<i, kind>;
        static AllowedDevices allowed;
        return Choice{grouped_gemm_tiles<i, kind>, S::kThreads, int(sizeof(typename S::All)), &allowed};
    });
}
Choice choice_of(Kind kind, int form) {
    return kind == kScaled ? choice_as<kScaled>(form) : kind == kBf16 ? choice_as<kBf16>(form) : choice_as<kF16>(form);
}

bool tma_takes_weights(const Args& a, int64_t bytes) {
    return tma_takes({a.b.data, a.n, bytes, a.b.row_stride, 0, 0, a.groups, a.b.group_stride});
}

Status launch_fallback(const Args& a, Kind kind, const Chip& chip, const Executor& on) {
    constexpr int kCtasOfMultiprocessor = 4;
    const int64_t bytes = a.k * a.element_bytes(), pieces = ceil_div(a.n, kFallbackTile);
    const int64_t most = most_row_tiles(a.m, a.groups, kFallbackTile) * pieces;
    if (most > kMostTiles) return kTooMany;
    const bool vectors = bytes % 16 == 0 && rows_aligned(a.a.data, a.a.row_stride) &&
                         rows_aligned(a.b.data, a.b.row_stride) && a.b.group_stride % 16 == 0;
    const auto as = [&](auto kernel) {
        return launch_kernel(
            kernel, chip,
            {std::min<int64_t>(most, int64_t(chip.multiprocessors) * kCtasOfMultiprocessor), kFallbackThreads}, on, a,
            int(pieces));
    };
    if (kind == kScaled)
        return as(vectors ? grouped_gemm_fallback<kScaled, true> : grouped_gemm_fallback<kScaled, false>);
    if (kind == kBf16) return as(vectors ? grouped_gemm_fallback<kBf16, true> : grouped_gemm_fallback<kBf16, false>);
    return as(vectors ? grouped_gemm_fallback<kF16, true> : grouped_gemm_fallback<kF16, false>);
}

// Whether a form gains more by scales in columns than the pass takes: one of 128 rows a tile gained 1 % (H200).
bool gathers_scales(const Args& a, Kind kind, const Form& form) {
    const gemm::Scales& s = a.scale_a;
    return kind == kScaled && rows_of(form) > 128 && s.row_stride != 0 && s.block_stride != 0 &&
           (s.row_stride != 1 || s.dtype != DType::f32);
}

// `to`: a, with its rows or its scales in memory of the launch's own.
Status gather(const Args& a, bool rows, bool scales, Args* to, const Chip& chip, const Executor& on) {
    constexpr int kCtasOfMultiprocessor = 8, kWarps = kGatherThreads / kWarp;
    const int64_t bytes = a.k * a.element_bytes(), stride = ceil_div(bytes, 16) * 16;
    const auto memory = [&](int64_t size) { return on.scratch(on.context, size); };
    Gathered own{nullptr, stride, nullptr};
    if (rows) {
        own.rows = static_cast<uint8_t*>(memory(a.m * stride));
        if (!own.rows) return {"no memory for the gathered rows"};
        to->a = {0, own.rows, stride, 1};
    }
    if (scales) {
        own.scales = static_cast<float*>(memory(a.m * ceil_div(a.k, gemm::kBlock) * int64_t(sizeof(float))));
        if (!own.scales) return {"no memory for the gathered scales"};
        to->scale_a = {.data = own.scales, .row_stride = 1, .block_stride = a.m, .rows = 1, .dtype = DType::f32};
        to->rows = nullptr, to->slots = divider_by(1), to->a_rows = a.m;
    }
    const bool vectors = bytes % 16 == 0 && rows_aligned(a.a.data, a.a.row_stride);
    const int64_t ctas =
        std::min<int64_t>(ceil_div(a.m, kWarps), int64_t(chip.multiprocessors) * kCtasOfMultiprocessor);
    return launch_kernel(vectors ? grouped_gemm_gather<true> : grouped_gemm_gather<false>, chip, {ctas, kGatherThreads},
                         on, a, own);
}

// What launch_tiles returns, before it has launched anything, where TMA does not take the operands.
constexpr const char* kNotForTma = "TMA does not take a or b";

Status launch_tiles(const Args& a, Kind kind, const tiles::Config& config, const Chip& chip, const Executor& on) {
    const int index = config.form, splits = config.splits;
    const Form& form = kForms[index];
    const int64_t bytes = a.k * a.element_bytes();
    const bool takes_a = tma_takes({a.a.data, a.a_rows, bytes, a.a.row_stride});
    const Launch launch{int(ceil_div(a.n, columns_of(form))), 0, int(ceil_div(bytes, tiles::kStep)),
                        a.rows && takes_a && one_by_one(form), splits};
    const int64_t most = most_row_tiles(a.m, a.groups, rows_of(form)) * launch.pieces;
    if (most > kMostTiles || most * splits > kMaxCtas) return kTooMany;
    CUtensorMap weights, rows;
    if (!describe(&weights, {a.b.data, a.n, bytes, a.b.row_stride, tiles::kStep, columns_of(form), a.groups,
                             a.groups > 1 ? a.b.group_stride : 0})) {
        return {kNotForTma};
    }
    Args own = a;
    const bool gathers_rows = (a.rows && !launch.one_by_one) || !takes_a, of_scales = gathers_scales(a, kind, form);
    if (gathers_rows || of_scales) {
        if (const Status s = gather(a, gathers_rows, of_scales, &own, chip, on); !s.ok()) return s;
    }
    if (!describe(&rows, {own.a.data, gathers_rows ? a.m : a.a_rows, bytes, own.a.row_stride, tiles::kStep,
                          launch.one_by_one ? 1 : rows_of_copy(form)}))
        return {kNotForTma};
    const int64_t ctas =
        splits > 1 ? most * splits : std::min<int64_t>(most, int64_t(chip.multiprocessors) * form.slots);
    const Choice choice = choice_of(kind, index);
    if (const Status s = allow_shared_bytes(choice.kernel, choice.shared_bytes, chip, choice.allowed); !s.ok())
        return s;
    return launch_kernel(choice.kernel, chip, {ctas, choice.threads, splits, choice.shared_bytes}, on, own, weights,
                         rows, launch);
}

// What a variable names in place of what was picked.
Status force(const Args& a, const Chip& chip, tiles::Config* config) {
    return tiles::force_config(
        "grouped_gemm", kForms,
        {std::min<int64_t>(a.m, tiles::kMostOfTma), a.n, a.k * a.element_bytes(), chip.multiprocessors},
        [](const Form&) { return true; }, config);
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda

namespace rocm_fp8::grouped_gemm {

Status launch(const Args& args, const Executor& on) {
    using namespace cuda;
    if (args.m == 0 || args.n == 0 || args.a_rows == 0) return {};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    if (args.format == DType::e4m3fnuz) return {"a: dtype float8_e4m3fnuz; NVIDIA GPUs multiply float8_e4m3fn"};
    const Kind kind = args.format == DType::bf16 ? kBf16 : args.format == DType::f16 ? kF16 : kScaled;
    const int64_t bytes = args.k * args.element_bytes();
    if (chip.capability != 90 || !tma_takes_weights(args, bytes)) return launch_fallback(args, kind, chip, on);
    tiles::Config config{pick_form(args.m, args.n, bytes, args.groups, args.expected, chip.multiprocessors),
                         pick_splits(args.m, args.n, bytes, args.groups, args.expected, chip.multiprocessors)};
    if (const Status forced = force(args, chip, &config); !forced.ok()) return forced;
    if (config.form != tiles::kFallback) {
        const Status tiled = launch_tiles(args, kind, config, chip, on);
        if (tiled.error != kNotForTma) return tiled;
    }
    return launch_fallback(args, kind, chip, on);
}

Status launch_swiglu(const Args& args, const swiglu::Args& gated, const Executor& on) {
    using namespace cuda;
    if (args.m == 0 || args.n == 0 || args.a_rows == 0) return {};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    return launch_in_two(args, gated, Vendor(chip, on), on);
}

}  // namespace rocm_fp8::grouped_gemm
