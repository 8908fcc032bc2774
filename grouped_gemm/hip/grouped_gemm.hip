// Grouped GEMM on MI300X (gfx942) and MI350 (gfx950): the launcher.
//
// Work: 2 m n k operations. Bytes: n k of weights for each active expert, which is the bound for few rows; for many
// rows the matrix instructions are.
//
//     offsets --> which tile is whose (each wave for itself) --> tile of an expert's rows by columns
//     few rows an expert     stream.h: weights from memory to registers, past LDS
//     K of two blocks        short.h: rows stay in registers, weights stream past them
//     more                   tiles.h: the main loop of all tiled GEMMs, rows of A gathered by its loads
//     SwiGLU                 gated.h: in the tiles' epilogue; where those do not fit, ../gpu.h: a pass over the product,
//                            which lies in memory meanwhile
//
// Files: grouped_gemm.hip (launcher), config.h (compiled shapes, and which one), row_tiles.h, gather.h (loads of rows),
// stream.h, short.h, tiles.h, gated.h; common/gemm/hip.
//
// Limit today, by the simulator's clock: see docs/journal/moe.md. Nothing has been measured on an AMD GPU.
#include "../../common/forced.h"
#include "../../common/gemm/hip/launch.h"
#include "../../common/gpu/kernel_at.h"
#include "../../common/rows/hip/vendor.h"
#include "../../swiglu_fp8/hip/gated.h"
#include "../gpu.h"
#include "gated.h"
#include "short.h"
#include "stream.h"

namespace rocm_fp8::grouped_gemm::hip {
namespace {

constexpr DType kFp8 = DType::e4m3fnuz;              // stands for the chip's own
constexpr int64_t kMostNumbered = int64_t(1) << 31;  // rows, in 31 bits
constexpr Status kTooMany{"a and b have more rows than one launch takes"};
constexpr Status kScalesApart{"scale_a: a tile's scales lie more than 1 GiB apart"};
template <DType type>
const void* tile_kernel(int shape, bool any) {
    using Kernel = void (*)(Launch);
    const Kernel kernel = any ? grouped_gemm_tiles<kFallbackTile, type, true>
                              : kernel_at<kTileShapeCount - 1>(
                                    shape, []<int i>() -> Kernel { return grouped_gemm_tiles<i, type, false>; });
    return reinterpret_cast<const void*>(kernel);
}

template <DType type>
auto stream_kernel(int stream, bool any) {
    return kernel_at<kStreamShapeCount>(stream, [=]<int i>() {
        return any ? grouped_gemm_stream<i, type, true> : grouped_gemm_stream<i, type, false>;
    });
}

const void* short_kernel(int index, Short kind) {
    using Kernel = void (*)(Launch);
    const Kernel kernel = kernel_at<kShortShapeCount>(index, [=]<int i>() -> Kernel {
        return kind == Short::plain     ? grouped_gemm_short<i, Short::plain>
               : kind == Short::columns ? grouped_gemm_short<std::min(i, kTallestOfColumns), Short::columns>
                                        : grouped_gemm_short<0, Short::any>;
    });
    return reinterpret_cast<const void*>(kernel);
}

template <class Pick>
auto of_type(DType format, const Pick& pick) {
    return format == DType::f16    ? pick.template operator()<DType::f16>()
           : format == DType::bf16 ? pick.template operator()<DType::bf16>()
                                   : pick.template operator()<kFp8>();
}

// The rows of A that a form's loads count from one place: a tile's, or all where they are gathered.
int64_t rows_of_a(const Args& a, int tile_rows) { return a.rows ? a.a_rows : std::min<int64_t>(a.a_rows, tile_rows); }

// Whether 128-bit loads with offsets of 32 bits, of a tile's rows and of so many of B's, can take the operands. k: bytes.
bool aligned(const Args& a, int tile_rows, int64_t rows_of_b) {
    return a.k % kChunk == 0 && rows_aligned(a.a.data, a.a.row_stride) && rows_aligned(a.b.data, a.b.row_stride) &&
           a.b.group_stride % kChunk == 0 && in_reach(rows_of_a(a, tile_rows), a.a.row_stride, a.k) &&
           in_reach(std::min(a.n, rows_of_b), a.b.row_stride, a.k);
}
bool aligned(const Args& a, const FormSize& form) { return aligned(a, form.rows, form.columns); }

// Whether offsets of 32 bits can take scales of so many rows.
bool scales_in_reach(const gemm::Scales& s, int64_t rows, int64_t k) {
    const int64_t size = size_of(s.dtype), blocks = gemm::blocks_of(k);
    return in_reach(rows, s.row_stride * size, ((blocks - 1) * s.block_stride + 1) * size);
}
bool reaches_scales(const Args& a, int tile_rows) {
    return !is_fp8(a.format) || scales_in_reach(a.scale_a, rows_of_a(a, tile_rows), a.k);
}

// Whether 31 bits number the rows of the result, and those behind the last one in its tile.
bool numbered(int64_t m, int tile_rows) { return m < kMostNumbered - tile_rows; }

// A launch before its form is chosen.
struct Call {
    Args job;  // as the kernels have it: k in bytes
    Arch arch;
    bool channels;  // scale_b is a scale a channel, and not one of blocks
    ForcedConfig forced;
};

Status read_call(const Args& args, Call* call) {
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    const bool fp8 = is_fp8(args.format);
    if (const Status own = own_fp8(args.format, chip.arch); fp8 && !own.ok()) return own;
    call->arch = chip.arch;
    Args& job = call->job;
    job = args;
    job.a_rows = std::min(args.a_rows, kMostNumbered);
    job.k *= args.element_bytes();
    if (job.k > gemm::kMostK) return {"a: K is more than 4294967168 bytes; at most that is allowed"};
    const gemm::Scales& s = args.scale_b;
    call->channels = fp8 && s.rows == 1 && s.row_stride != 0;
    // Of a tile's columns all forms read one scale a block.
    if (fp8 && !call->channels && !scales_in_reach(s, 1, job.k))
        return {"scale_b: blocks of K lie more than 1 GiB apart"};
    return read_forced_config("grouped_gemm", shape_named, 1, false, &call->forced);
}

// Of tiles of `rows` rows, tiles_n in a row of tiles, by at most so many workgroups a compute unit.
template <class Launch>
Status launch_grouped_tiles(const void* kernel, int rows, int waves, int per_unit, int64_t tiles_n, Arch arch,
                            Launch& launch, const Executor& on) {
    const int64_t items = most_row_tiles(launch.args.m, launch.args.groups, rows) * tiles_n;
    if (items > kMaxItems || !numbered(launch.args.m, rows)) return kTooMany;
    if (tiles_n > kMostTilesAcross) return {"b has more rows than one launch takes"};
    const int per_chiplet = int(ceil_div(items, kChiplets)), room = compute_units(arch) / kChiplets * per_unit;
    launch.work = Work{0, int(tiles_n), 0, 0, 0}, launch.split = SplitK{1, nullptr, nullptr};
    void* arguments[] = {&launch};
    return launch_any(kernel, dim3(uint32_t(kChiplets * std::min(per_chiplet, room))), dim3(waves * kWave), on.stream,
                      arguments);
}
template <class Launch>
Status launch_grouped_tiles(const void* kernel, const TileShape& tile, int64_t tiles_n, Arch arch, Launch& launch,
                            const Executor& on) {
    return launch_grouped_tiles(kernel, tile.rows, tile.waves(), tile.per_unit, tiles_n, arch, launch, on);
}

// Workgroups come one after the other: each has little to do, and whoever is free takes the next one.
constexpr int kShortPerUnit = 64;

Status launch_short(const Args& job, int index, bool channels, Arch arch, const Executor& on) {
    const FormSize form = form_of(kShortFrom + index);
    const int64_t stride = job.out.row_stride * (job.out.dtype == DType::f32 ? 4 : 2);
    const bool fit = aligned(job, form) && job.n % kEight == 0 && rows_aligned(job.out.data, stride) &&
                     in_reach(form.rows, stride, stride);
    const Short kind = !fit ? Short::any : channels || job.bias.data ? Short::columns : Short::plain;
    const StreamShape& shape = kShortShapes[kind == Short::plain     ? index
                                            : kind == Short::columns ? std::min(index, kTallestOfColumns)
                                                                     : 0];
    Launch launch{job, {}, {}, channels};
    return launch_grouped_tiles(short_kernel(index, kind), shape.rows, shape.waves, kShortPerUnit,
                                ceil_div(job.n, int64_t(shape.columns)), arch, launch, on);
}

// The shape of tiles from `shape` on that the launch takes: that one or a shorter one, whose bits are the same, with
// careful loads the fallback. -1: none reaches the scales.
int tile_in_reach(const Args& a, int shape) {
    for (; shape < kFallbackTile; ++shape) {
        const FormSize form = form_of(shape);
        if (aligned(a, form) && reaches_scales(a, form.rows)) return shape;
    }
    return reaches_scales(a, form_of(kFallbackTile).rows) ? kFallbackTile : -1;
}

// The shape of tiles that gate in their epilogue, or -1. Their loads of B count the rows of all of it.
int gated_shape(const Call& call, const swiglu::Args& gated) {
    const Args& a = call.job;
    if (!is_fp8(a.format) || (a.k <= kMostShortK && !call.forced.set) || gated.d % kMostHidden != 0 ||
        !(gated.scale || gated.dynamic.group > 0) || gated.out_dtype != native_fp8(call.arch) ||
        !rows_aligned(gated.out, gated.out_stride, kEight))
        return -1;
    const int forced = call.forced.shape >= kGatedFrom ? call.forced.shape - kGatedFrom : -1;
    const int shape = call.forced.set ? forced : pick_gated(a.groups, a.expected, gated.d, int(call.arch));
    if (shape < 0) return -1;
    const int rows = kGatedShapes[shape].rows;
    return aligned(a, rows, a.n) && reaches_scales(a, rows) ? shape : -1;
}

Status launch_gated(const Call& call, const swiglu::Args& gated, int shape, const Executor& on) {
    GatedLaunch launch{};
    launch.args = GatedArgs{call.job, QuantizedRows::of(gated, gated.scale), gated.limit};
    launch.mode = call.channels;
    const auto kernel = kernel_at<kGatedShapeCount>(shape, [&]<int i>() {
        return gated.dtype == DType::f16 ? grouped_gemm_gated<i, DType::f16> : grouped_gemm_gated<i, DType::bf16>;
    });
    return launch_grouped_tiles(reinterpret_cast<const void*>(kernel), kGatedShapes[shape], gated.d / kMostHidden,
                                call.arch, launch, on);
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::hip

namespace rocm_fp8::grouped_gemm {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    if (args.m == 0 || args.n == 0 || args.a_rows == 0) return {};
    Call call;
    if (const Status read = read_call(args, &call); !read.ok()) return read;
    const auto& [job, arch, channels, forced] = call;
    const bool fp8 = is_fp8(args.format);
    int shape = pick_shape(args.m, args.groups, args.expected, args.n, job.k, fp8, int(arch));
    if (forced.set) {
        shape = forced.shape;
        if (shape < 0 || shape >= kGatedFrom || (is_short(shape) && !(fp8 && job.k <= kMostShortK))) return {kUnfit};
    }
    if (is_short(shape)) return launch_short(job, shape - kShortFrom, channels, arch, on);
    if (is_stream(shape)) {
        const StreamShape& stream = kStreamShapes[shape - kTileShapeCount];
        if (!reaches_scales(job, stream.rows)) return kScalesApart;
        const bool any = !aligned(job, form_of(shape));
        const int64_t columns = ceil_div(args.n, int64_t(stream.columns));
        const int64_t items = most_row_tiles(args.m, args.groups, stream.rows) * columns;
        if (items * stream.waves * kWave > kMaxThreads || items >= kMaxItems || !numbered(args.m, stream.rows))
            return kTooMany;
        const int blocks = int(gemm::blocks_of(job.k));
        const StreamLaunch launch{job, divider_by(uint32_t(columns)), blocks / stream.waves, blocks % stream.waves,
                                  channels};
        const auto kernel =
            of_type(args.format, [&]<DType type>() { return stream_kernel<type>(shape - kTileShapeCount, any); });
        return launch_kernel(kernel, items, stream.waves * kWave, on, launch);
    }
    shape = tile_in_reach(job, shape);
    if (shape < 0) return kScalesApart;
    const TileShape& tile = kTileShapes[shape];
    const int64_t tiles_n = ceil_div(args.n, int64_t(tile.columns));
    const void* kernel =
        of_type(args.format, [&]<DType type>() { return tile_kernel<type>(shape, shape == kFallbackTile); });
    Launch launch{job, {}, {}, channels};
    return launch_grouped_tiles(kernel, tile, tiles_n, arch, launch, on);
}

Status launch_swiglu(const Args& args, const swiglu::Args& gated, const Executor& on) {
    using namespace hip;
    if (args.m == 0 || args.n == 0 || args.a_rows == 0) return {};
    Call call;
    if (const Status read = read_call(args, &call); !read.ok()) return read;
    const int shape = gated_shape(call, gated);
    if (shape >= 0) return launch_gated(call, gated, shape, on);
    return launch_in_two(args, gated, Vendor(call.arch, on), on);
}

}  // namespace rocm_fp8::grouped_gemm
