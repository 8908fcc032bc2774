// C = A B^T in FP8 with scales for blocks of 128 k, on MI300X (gfx942) and MI350 (gfx950): the launcher and the kernel.
//
// Work: 2 m n k operations; 1024 x 4608 x 7168 are 26 us of an MI300X's matrix instructions at 2.1 GHz. Bytes: a tile
// of R x C reads (R + C) k from L2, which is the second bound: at 256 x 128 both are alike.
//
//     HBM, L2 --> registers (stages ahead) --> LDS (two stages) --> fragments --> MFMA --> sums of a block
//     scales  --> registers (eight blocks ahead) --> LDS ------------------------------------> * scale --> sums
//     result <-- LDS (whole lines) <-- bias, rounding <-- channels' scales <-- split-K <------------------+
//
// Files: block_scaled_gemm.hip  launcher
//        stream.hip             up to 32 rows: common/gemm/hip/stream.h with scales
//        tiles.h                more rows: shapes, what the main loop makes of products
//        direct.h, direct.hip   the main loop of gfx950's largest tile, whose loads go to LDS directly
//        transposed.hip         operands whose rows are contiguous, for more than 32 rows
//        common/gemm/hip        what it shares with the other GEMMs: main loops, loaders, scales, epilogue, order of tiles,
//                               split-K
//        config.h               the compiled shapes, and which one with which parts of K, by a model
//
// Limit today, by the simulator's clock (nothing has been measured on an AMD GPU). Large K: matrix instructions, at
// 80 % of what the clock lets through. K of 256 and 512: a tile's stores are waited for with the next one's loads,
// because vmcnt counts both in order.
//
// Steps and figures: docs/journal/block_scaled_gemm-hip.md.
#include "../../common/gemm/hip/launch.h"
#include "../../common/gpu/kernel_at.h"
#include "tiles.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

static_assert(kFallbackTile == kTileShapeCount - 1);

const void* kernel_of(int shape, Access access, const Args& args) {
    if (is_direct(shape)) return direct_kernel(shape - kFirstDirect);
    if (access == Access::transposed) return transposed_kernel(shape, !args.a.k_contiguous(), !args.b.k_contiguous());
    const auto kernel = [&]() -> TileKernel {
        if (access == Access::strided) return block_scaled_gemm_tiles<kFallbackTile, true, true>;
        if (access == Access::per_column || shape == kFallbackTile)
            return block_scaled_gemm_tiles<kFallbackTile, true, false>;
        // The last one is the general shape.
        return kernel_at<kTileShapeCount - 1>(
            shape, []<int i>() -> TileKernel { return block_scaled_gemm_tiles<i, false, false>; });
    }();
    return reinterpret_cast<const void*>(kernel);
}

constexpr int64_t kBufferBytes = kNowhere;

// Whether 128-bit loads with offsets of 32 bits can take an operand.
bool fits(const Operand& x, int64_t k, int64_t rows) {
    const int64_t stride = rows == 1 ? 0 : x.row_stride;
    return x.k_contiguous() && rows_aligned(x.data, stride) && stride >= 0 && stride < kBufferBytes / kMostOfTile &&
           k < kBufferBytes / 4 && in_reach(std::min<int64_t>(rows, kMostOfTile), stride, k);
}

// Whether TransposedLoader can take an operand.
bool fits_transposed(const Operand& x, int64_t k, int64_t rows) {
    return x.row_stride == 1 && k % kBlock == 0 && rows % 4 == 0 && x.k_stride % 4 == 0 &&
           reinterpret_cast<uintptr_t>(x.data) % 4 == 0 && x.k_stride >= 0 && k * x.k_stride < kBufferBytes;
}

// Whether offsets of 32 bits can take the scales of a tile.
bool fits(const Scales& s, int64_t k) {
    return 4 * (kMostOfTile * s.row_stride + blocks_of(k) * s.block_stride) < kBufferBytes;
}

// Whether direct tiles, which the chip has, can take the arguments.
bool fits_direct(Arch arch, Access access, const Args& args) {
    const bool f32 = args.scale_a.dtype == DType::f32 && args.scale_b.dtype == DType::f32;
    return arch == Arch::gfx950 && access == Access::fast && f32 && args.k % kBlock == 0;
}

// Reads the forced configuration. An error if the arguments do not allow it.
Status forced_config(Access access, bool direct, int64_t m, int64_t k, Config* config) {
    const auto fits = [&](const ForcedConfig& forced) {
        const int shape = forced.shape;
        return shape < 0          ? false
               : is_stream(shape) ? m <= form_of(shape).rows
               : is_direct(shape) ? direct
                                  : access <= Access::transposed || shape == kFallbackTile;
    };
    return gemm::hip::take_forced("block_scaled_gemm", shape_named, blocks_of(k), fits, config);
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip

namespace rocm_fp8::block_scaled_gemm {

Status launch(const Args& args, const Executor& on, const Portion& part) {
    using namespace hip;
    if (args.m == 0 || args.n == 0) return {};
    if (args.k > gemm::kMostK) return {"a: K is more than 4294967168; at most that is allowed"};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    if (const Status own = own_fp8(args.format, chip.arch); !own.ok()) return own;
    const int64_t of_m = part.m ? part.m : args.m, of_n = part.n ? part.n : args.n;
    const bool channels = args.scale_b.rows == 1 && args.scale_b.row_stride != 0 && args.scale_b.block_stride == 0;
    const bool columns = args.scale_b.rows == 1 && args.scale_b.row_stride != 0 && !channels;
    const bool wide_a = fits(args.a, args.k, args.m), wide_b = fits(args.b, args.k, args.n);
    const bool wide_scales = fits(args.scale_a, args.k) && fits(args.scale_b, args.k);
    const bool transposed = of_m > kMostStreamRows && !columns && (wide_a || fits_transposed(args.a, args.k, args.m)) &&
                            (wide_b || fits_transposed(args.b, args.k, args.n));
    const bool wide = args.k % kChunk == 0 && wide_a && wide_b;
    Access access = wide_scales && wide && !columns ? Access::fast
                    : wide_scales && wide           ? Access::per_column
                    : wide_scales && transposed     ? Access::transposed
                                                    : Access::strided;
    const bool direct = fits_direct(chip.arch, access, args);
    Config config = pick_config(of_m, of_n, args.k, int(chip.arch));
    if (const Status forced = forced_config(access, direct, args.m, args.k, &config); !forced.ok()) return forced;
    if (is_stream(config.shape)) {
        const bool f32 = args.scale_a.dtype == DType::f32 && args.scale_b.dtype == DType::f32;
        if (access == Access::fast && (channels || !f32)) access = Access::per_column;
        return launch_stream(args, access, config, channels, on);
    }
    if (!direct) config.shape = indirect_shape(config.shape);
    if (access > Access::transposed) config.shape = kFallbackTile;
    return launch_tiles(kernel_of(config.shape, access, args), tile_shape(config.shape), config.parts, channels, args,
                        1, chip.arch, on, part.spare_units);
}

}  // namespace rocm_fp8::block_scaled_gemm
