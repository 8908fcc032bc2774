// int8_gemm on NVIDIA GPUs: exact int32 sums and the epilogue, for every layout, size and chip.
//
// Hopper, one matrix, rows of multiples of 16 bytes:
//     HBM, L2 --> TMA: 128 k of both operands a stage --> ring in shared memory --> wgmma, int32 sums in registers
//             --> with split-K, through DSMEM to the CTA of the cluster that finishes a part of the columns
//             --> the epilogue in registers, by scales, zero points and a bias that idle warps brought to shared memory
//             --> rounded, through shared memory --> result, 16 bytes a lane
//     GELU, a divisor, a matrix that is added: sums --> shared memory --> epilogue.h, four columns a lane --> result
// All others:
//     HBM, L2 --> cp.async: 64 to 512 k of rows of both operands a stage --> ring in shared memory
//             --> mma.sync, int32 sums in registers --> shared memory (with few rows warps have parts of k: added)
//             --> epilogue.h, four columns a lane --> result
//
// Operands that are not aligned to 16 bytes are read byte by byte.
//
// Files: kernel.h, config.h    mma.sync: the kernel, and which tile takes a size
//        hopper.h, lines.h     wgmma: the kernel, and what rows and columns bring; ring, TMA and split-K: common/gemm/cuda
//        forms.h               which form takes a size
//        finish.h              the epilogue
// Steps: docs/journal/int8_gemm-cuda.md.
#include "../../common/cuda/device.h"
#include "../../common/cuda/tensor_map.h"
#include "../../common/gemm/cuda/forced.h"
#include "../../common/gpu/kernel_at.h"
#include "hopper.h"
#include "kernel.h"

namespace rocm_fp8::int8_gemm {
namespace {

using namespace cuda;

struct TileChoice {
    void (*kernel)(Args, int64_t, int64_t);
    AllowedDevices* allowed;
};
template <bool vectors>
TileChoice tile_choice(int tile) {
    return kernel_at<kTileCount>(tile, [&]<int i>() {
        static AllowedDevices allowed;
        return TileChoice{int8_gemm_tiles<i, vectors>, &allowed};
    });
}

struct FormChoice {
    void (*kernel)(Args, CUtensorMap, CUtensorMap, Tiling);
    int threads, shared_bytes;
    AllowedDevices* allowed;
};
FormChoice form_choice(int form) {
    return kernel_at<kFormCount>(form, [&]<int i>() {
        using S = Shape<i>;
        static_assert(S::kStages == stages(kForms[i]));
        static AllowedDevices allowed;
        return FormChoice{int8_gemm_forms<i>, S::kThreads, int(sizeof(typename S::Memory)), &allowed};
    });
}

bool in_vectors(const Operand& x) {
    return (reinterpret_cast<uintptr_t>(x.data) | uint64_t(x.row_stride) | uint64_t(x.group_stride)) % 16 == 0;
}

Status launch_tiles(const Args& args, const Chip& chip, const Executor& on) {
    const int index = pick_tile(args.batch, args.m, args.n, chip.multiprocessors);
    const cuda::Tile& tile = kTiles[index];
    const int64_t row_tiles = ceil_div(args.m, tile.rows), column_tiles = ceil_div(args.n, tile.columns);
    if (row_tiles * column_tiles > kMaxCtas / args.batch) return {"a and b have more rows than one launch takes"};
    const TileChoice choice =
        in_vectors(args.a) && in_vectors(args.b) ? tile_choice<true>(index) : tile_choice<false>(index);
    if (const Status s = allow_shared_bytes(choice.kernel, tile.shared_bytes() + 1024, chip, choice.allowed); !s.ok()) {
        return s;
    }
    return launch_kernel(choice.kernel, chip,
                         {row_tiles * column_tiles * args.batch, tile.threads(), 1, tile.shared_bytes()}, on, args,
                         row_tiles, column_tiles);
}

Status launch_form(const Args& a, const Chip& chip, const Config& config, const Executor& on) {
    const Form& form = kForms[config.form];
    const Tiling tiling = tiles::tiling_of(form, config.splits, config.pieces, a.m, a.n);
    const auto matrix = [&](const Operand& x, int64_t rows, int height) {
        return ByteMatrix{x.data, rows, a.k, x.row_stride, tiles::kStep, height};
    };
    const ByteMatrix of_a = matrix(a.a, a.m, form.swapped ? form.narrow : tiling.height),
                     of_b = matrix(a.b, a.n, form.swapped ? tiling.height : form.narrow);
    CUtensorMap wide, narrow;
    const int64_t ctas = tiles::ctas_of(tiling, int64_t(chip.multiprocessors) * form.slots);
    if (!describe(&wide, form.swapped ? of_b : of_a) || !describe(&narrow, form.swapped ? of_a : of_b) ||
        int64_t(tiling.pieces) * tiling.narrow_tiles * tiling.splits > kMaxCtas) {
        return launch_tiles(a, chip, on);
    }
    const FormChoice choice = form_choice(config.form);
    if (const Status s = allow_shared_bytes(choice.kernel, choice.shared_bytes, chip, choice.allowed); !s.ok())
        return s;
    return launch_kernel(choice.kernel, chip, {ctas, choice.threads, tiling.splits, choice.shared_bytes}, on, a, wide,
                         narrow, tiling);
}

}  // namespace

Status launch(const Args& args, const Executor& on) {
    if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    Config config;
    if (chip.capability == 90 && args.batch == 1 && tma_takes({args.a.data, args.m, args.k, args.a.row_stride}) &&
        tma_takes({args.b.data, args.n, args.k, args.b.row_stride})) {
        const tiles::Size size{args.m, args.n, args.k, chip.multiprocessors};
        config = pick_form(size.m, size.n, size.k, size.multiprocessors);
        const Status forced = tiles::force_config("int8_gemm", kForms, size, [](const Form&) { return true; }, &config);
        if (!forced.ok()) return forced;
    }
    return config.form == tiles::kFallback ? launch_tiles(args, chip, on) : launch_form(args, chip, config, on);
}

}  // namespace rocm_fp8::int8_gemm
