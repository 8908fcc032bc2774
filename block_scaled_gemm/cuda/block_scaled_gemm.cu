// C = A B^T in FP8 with scales for blocks of 128 k, on NVIDIA GPUs: the launcher.
//
//     HBM, L2 --> TMA: 128 k of wide rows and of narrow rows a stage --> ring in shared memory
//             --> wgmma: a block's products, in registers --> sums += scales * block, in float32
//             --> with split-K, through DSMEM to the CTA of the cluster that finishes a part of the columns
//             --> bias, rounding --> shared memory --> whole lines of the result
//
// One warpgroup loads: a thread by TMA, and two or three warps the scales, in any layout, by cp.async. One to three
// warpgroups multiply: while one adds a scaled block to its sums, the others' multiplications run. CTAs are persistent:
// the ring of the next tile fills while one is stored. Scales of channels are multiplied in at the end.
//
// Files: block_scaled_gemm.cu   launcher
//        tile.h                 the kernel: multiplication, reduction over a cluster
//        shape.h, feed.h        stages in shared memory, and what fills them
//        store.h                from sums to the result
//        forms.h, config.h      compiled forms, and which one takes a size
//        pack.h                 operands that TMA does not take
//        fallback.h             chips without wgmma
//        common/gemm/cuda      what it shares with int8_gemm: ring, TMA, tiling, split-K, staging
//
// wgmma keeps 14 bits of a block's sums; what that means for the result: docs/numerics.md.
// Steps and figures: docs/journal/block_scaled_gemm-cuda.md.
#include "../../common/cuda/device.h"
#include "../../common/cuda/tensor_map.h"
#include "../../common/gemm/cuda/forced.h"
#include "../../common/gpu/kernel_at.h"
#include "config.h"
#include "pack.h"
#include "fallback.h"
#include "tile.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

struct Choice {
    void (*kernel)(Args, CUtensorMap, CUtensorMap, Tiling);
    int threads, shared_bytes;
    AllowedDevices* allowed;
};

Choice choice_of(int form) {
    return kernel_at<kFormCount>(form, [&]<int i>() {
        using S = Shape<i>;
        static AllowedDevices allowed;
        return Choice{block_scaled_gemm_tiles<i>, S::kThreads, int(sizeof(typename S::Memory)), &allowed};
    });
}

bool tiles_take(const Operand& x, int64_t rows, int64_t k) {
    return x.k_contiguous() && tma_takes({x.data, rows, k, x.row_stride});
}

int64_t packed_stride(int64_t k) { return ceil_div(k, 16) * 16; }

Status pack(Operand* x, int64_t rows, int64_t k, uint8_t* to, const Chip& chip, const Executor& on) {
    const int64_t row_tiles = ceil_div(rows, kPackTile);
    const Packing p{*x, to, rows, k, packed_stride(k), int(row_tiles)};
    const bool vectors =
        x->row_stride == 1 && x->k_stride % 16 == 0 && rows % 16 == 0 && reinterpret_cast<uintptr_t>(x->data) % 16 == 0;
    const int64_t ctas = row_tiles * ceil_div(k, kPackTile);
    if (ctas > kMaxCtas) return {"an operand has more elements than one launch takes"};
    *x = {0, to, packed_stride(k), 1};
    return launch_kernel(vectors ? block_scaled_gemm_pack<true> : block_scaled_gemm_pack<false>, chip,
                         {ctas, kPackThreads}, on, p);
}

Status launch_fallback(const Args& a, const Chip& chip, const Executor& on) {
    const auto fits = [&](const Operand& x) {
        return x.k_contiguous() && a.k % 16 == 0 && rows_aligned(x.data, x.row_stride);
    };
    const int64_t ctas = ceil_div(a.n, kFallbackTile) * ceil_div(a.m, kFallbackTile);
    if (ctas > kMaxCtas) return {"a and b have more rows than one launch takes"};
    return launch_kernel(fits(a.a) && fits(a.b) ? block_scaled_gemm_fallback<true> : block_scaled_gemm_fallback<false>,
                         chip, {ctas, kFallbackThreads}, on, a);
}

Status launch_tiles(const Args& a, const Chip& chip, const Config& config, int spare_units, const Executor& on) {
    const Form& form = kForms[config.form];
    const Choice choice = choice_of(config.form);
    const Tiling tiling = tiles::tiling_of(form, config.splits, config.pieces, a.m, a.n);
    const bool swapped = form.swapped;
    const int64_t wide_rows = swapped ? a.n : a.m, narrow_rows = swapped ? a.m : a.n;
    const auto matrix = [&](const Operand& x, int64_t rows, int64_t tile) {
        return ByteMatrix{x.data, rows, a.k, x.row_stride, kBlock, int(tile)};
    };
    CUtensorMap wide, narrow;
    if (!describe(&wide, matrix(swapped ? a.b : a.a, wide_rows, tiling.height)) ||
        !describe(&narrow, matrix(swapped ? a.a : a.b, narrow_rows, form.narrow))) {
        return launch_fallback(a, chip, on);
    }
    if (const Status s = allow_shared_bytes(choice.kernel, choice.shared_bytes, chip, choice.allowed); !s.ok()) {
        return s;
    }
    const int left = chip.multiprocessors - spare_units;
    const int64_t ctas = ctas_of(tiling, int64_t(left > 1 ? left : 1) * form.slots);
    if (int64_t(tiling.pieces) * tiling.narrow_tiles * tiling.splits > kMaxCtas) {
        return {"a and b have more rows than one launch takes"};
    }
    return launch_kernel(choice.kernel, chip, {ctas, choice.threads, tiling.splits, choice.shared_bytes}, on, a, wide,
                         narrow, tiling);
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda

namespace rocm_fp8::block_scaled_gemm {

Status launch(const Args& args, const Executor& on, const Portion& part) {
    using namespace cuda;
    if (args.m == 0 || args.n == 0) return {};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    if (args.format != DType::e4m3fn) return {"a: dtype float8_e4m3fnuz; NVIDIA GPUs multiply float8_e4m3fn"};
    const Scales& b = args.scale_b;
    const bool general_b = b.rows == 1 && b.row_stride != 0 && b.block_stride != 0;
    Config config;
    if (chip.capability == 90) {
        // The whole's choice says how K is split. Pieces are those of the rows and columns that are here.
        config = pick_config(part.m ? part.m : args.m, part.n ? part.n : args.n, args.k, chip.multiprocessors,
                             tiles::hopper_of(chip.memory_bits), general_b);
        if (part.m && config.form != tiles::kFallback) {
            const tiles::Size here{args.m, args.n, args.k, chip.multiprocessors};
            config.pieces = int(tiles::fewest_pieces(kForms[config.form], here));
        }
        const auto suits = [&](const Form& f) { return f.swapped || !general_b; };
        const Status forced = tiles::force_config("block_scaled_gemm", kForms,
                                                  {args.m, args.n, args.k, chip.multiprocessors}, suits, &config);
        if (!forced.ok()) return forced;
    }
    if (config.form == tiles::kFallback) return launch_fallback(args, chip, on);

    Args a = args;
    const bool pack_a = !tiles_take(a.a, a.m, a.k), pack_b = !tiles_take(a.b, a.n, a.k);
    if (pack_a || pack_b) {
        const int64_t of_a = pack_a ? a.m * packed_stride(a.k) : 0, of_b = pack_b ? a.n * packed_stride(a.k) : 0;
        auto* memory = static_cast<uint8_t*>(on.scratch(on.context, of_a + of_b));
        if (!memory) return {"no memory for a K-contiguous copy of an operand"};
        if (pack_a) {
            if (const Status s = pack(&a.a, a.m, a.k, memory, chip, on); !s.ok()) return s;
        }
        if (pack_b) {
            if (const Status s = pack(&a.b, a.n, a.k, memory + of_a, chip, on); !s.ok()) return s;
            a.constant_b = false;
        }
    }
    return launch_tiles(a, chip, config, part.spare_units, on);
}

}  // namespace rocm_fp8::block_scaled_gemm
