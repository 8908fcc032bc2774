// Grouped GEMM on MI300X (gfx942) and MI350 (gfx950): the launcher.
//
// Work: 2 m n k operations. Bytes: n k of weights for each active expert, which is the bound for few rows; for many
// rows the matrix instructions are.
//
//     offsets --> which tile is whose (each wave for itself) --> tile of an expert's rows by columns
//     few rows an expert     stream.h: weights from memory to registers, past LDS
//     more                   tiles.h: the main loop of all tiled GEMMs, rows of A gathered by its loads
//     SwiGLU                 gated.h: in the tiles' epilogue; where those do not fit, ../gpu.h: a pass over the product,
//                            which lies in memory meanwhile
//
// Files: grouped_gemm.hip (launcher), config.h (compiled shapes, and which one), walk.h, gather.h (loads of rows),
// stream.h, tiles.h, gated.h; common/gemm/hip.
//
// Limit today, by the simulator's clock: see docs/journal/moe.md. Nothing has been measured on an AMD GPU.
#include "../../common/gemm/forced.h"
#include "../../common/gemm/hip/launch.h"
#include "../../common/gpu/kernel_at.h"
#include "../../common/rows/hip/vendor.h"
#include "../../swiglu_fp8/hip/gated.h"
#include "../gpu.h"
#include "gated.h"
#include "stream.h"

namespace rocm_fp8::grouped_gemm::hip {
namespace {

constexpr DType kFp8 = DType::e4m3fnuz;  // stands for the chip's own
constexpr int64_t kBufferBytes = kNowhere;

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

template <class Pick>
auto of_type(DType format, const Pick& pick) {
    return format == DType::f16    ? pick.template operator()<DType::f16>()
           : format == DType::bf16 ? pick.template operator()<DType::bf16>()
                                   : pick.template operator()<kFp8>();
}

// Whether 128-bit loads with offsets of 32 bits can take the operands. k: bytes.
bool aligned(const Job& a) {
    const int64_t tile_rows = a.rows ? a.a_rows : std::min<int64_t>(a.a_rows, 128);
    return a.k % kChunk == 0 && a.k < kBufferBytes / 4 && rows_aligned(a.a.data, a.a.row_stride) &&
           rows_aligned(a.b.data, a.b.row_stride) && a.b.group_stride % kChunk == 0 &&
           tile_rows * a.a.row_stride + a.k <= kBufferBytes && a.b.row_stride < kBufferBytes / 256 &&
           a.a.row_stride < kBufferBytes / 256;
}

// Whether offsets of 32 bits can take the scales.
bool scales_fit(const Job& a) {
    const auto fit = [&](const gemm::Scales& s, int64_t rows) {
        return 4 * (rows * s.row_stride + gemm::blocks_of(a.k) * s.block_stride) < kBufferBytes;
    };
    return !is_fp8(a.format) || (fit(a.scale_a, a.rows ? a.a_rows : 128) && fit(a.scale_b, 2));
}

// A launch before its form is chosen.
struct Call {
    Job job;
    Arch arch;
    bool any, channels;  // careful loads; scale_b is a scale a channel, and not one of blocks
    ForcedConfig forced;
};

Status read_call(const Args& args, Call* call) {
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    if (is_fp8(args.format) && args.format != native_fp8(chip.arch)) {
        return {
            chip.arch == Arch::gfx942
                ? "a: dtype float8_e4m3fn; this GPU (gfx942) multiplies float8_e4m3fnuz: same bytes, 0x80 to 0x00, scale * 2"
                : "a: dtype float8_e4m3fnuz; this GPU (gfx950) multiplies float8_e4m3fn"};
    }
    call->arch = chip.arch;
    Job& job = call->job;
    job = {args, divider_by(uint32_t(args.slots))};
    job.k *= args.element_bytes();
    if (job.k > gemm::kMostK) return {"a: K is more than 4294967168 bytes; at most that is allowed"};
    if (!scales_fit(job)) return {"scale_a: more than 1 GiB of scales"};
    call->any = !aligned(job);
    const gemm::Scales& s = args.scale_b;
    call->channels = is_fp8(args.format) && s.rows == 1 && s.row_stride != 0;
    return read_forced_config("grouped_gemm", kShapeCount, shape_named, 1, false, &call->forced);
}

// Of tiles of `tile` rows by columns, tiles_n a row of tiles.
template <class Launch>
Status launch_grouped_tiles(const void* kernel, const TileShape& tile, int64_t tiles_n, Arch arch, Launch& launch,
                            const Executor& on) {
    const int64_t items = most_row_tiles(launch.args.m, launch.args.groups, tile.rows) * tiles_n;
    if (items > kMaxItems) return {"a and b have more rows than one launch takes"};
    const int per_chiplet = int(ceil_div(items, kChiplets)), room = compute_units(arch) / kChiplets * tile.per_unit;
    launch.work = Work{0, int(tiles_n), 0, 0, 0}, launch.split = SplitK{1, nullptr, nullptr};
    void* arguments[] = {&launch};
    return launch_any(kernel, dim3(uint32_t(kChiplets * std::min(per_chiplet, room))), dim3(tile.waves() * kWave),
                      on.stream, arguments);
}

// The shape of tiles that gate in their epilogue, or -1.
int gated_shape(const Call& call, const swiglu::Args& gated) {
    const Job& a = call.job;
    const bool fits = is_fp8(a.format) && !call.any && gated.d % kMostHidden == 0 &&
                      (gated.scale || gated.dynamic.group > 0) && gated.out_dtype == native_fp8(call.arch) &&
                      rows_aligned(gated.out, gated.out_stride, kEight) && a.n * a.b.row_stride < kBufferBytes;
    if (!fits) return -1;
    if (call.forced.set) return call.forced.shape >= kGatedFrom ? call.forced.shape - kGatedFrom : -1;
    return pick_gated(a.groups, a.expected, gated.d, int(call.arch));
}

Status launch_gated(const Call& call, const swiglu::Args& gated, int shape, const Executor& on) {
    GatedLaunch launch{};
    launch.args = GatedJob{call.job, QuantizedRows::of(gated, gated.scale), gated.limit};
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
    const auto& [job, arch, any, channels, forced] = call;
    int shape = pick_shape(args.m, args.groups, args.expected, args.n, job.k, int(arch));
    if (forced.set) {
        if (forced.shape < 0 || forced.shape >= kGatedFrom) return {kUnfit};
        shape = forced.shape;
    }
    if (is_stream(shape)) {
        const StreamShape& stream = kStreamShapes[shape - kTileShapeCount];
        const int64_t columns = ceil_div(args.n, int64_t(stream.columns));
        const int64_t items = most_row_tiles(args.m, args.groups, stream.rows) * columns;
        if (items * stream.waves * kWave > kMaxThreads || items >= kMaxItems)
            return {"a and b have more rows than one launch takes"};
        const int blocks = int(gemm::blocks_of(job.k));
        const StreamLaunch launch{job, divider_by(uint32_t(columns)), blocks / stream.waves, blocks % stream.waves,
                                  channels};
        const auto kernel =
            of_type(args.format, [&]<DType type>() { return stream_kernel<type>(shape - kTileShapeCount, any); });
        return launch_kernel(kernel, items, stream.waves * kWave, on, launch);
    }
    if (any || shape == kFallbackTile) shape = kFallbackTile;
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
