// MX weights on MI300X (gfx942) and MI350 (gfx950): the launcher.
//
//     stream.h    few rows of an expert: weights from memory to registers, past LDS
//     tiles.h     more of them, or long rows of B
//     ../gpu.h    else: any strides, alignment, sizes and formats
//
// Files: mx_gemm.hip (launcher), config.h (compiled forms), wave.h (a wave's products), exponents.h, stream.h, tiles.h,
// decode.h (numbers and scales), products.h (of ../gpu.h).
#include "../../common/gemm/hip/launch.h"
#include "../../common/gpu/kernel_at.h"
#include "../../common/rows/hip/vendor.h"
#include "products.h"
#include "stream.h"
#include "tiles.h"
#include "../gpu.h"

namespace rocm_fp8::mx_gemm::hip {
namespace {

using Kernel = void (*)(Launch);

// The form of the streams, or -1: a workgroup's exponents lie in one piece, which LDS holds.
int stream_form(const Args& a) {
    const int64_t blocks = a.k / kMxBlock;
    const bool in_one = (a.scale_b.block_stride == 1 || blocks == 1) && (a.scale_b.row_stride == blocks || a.n == 1);
    if (a.expected > kStreamShapes[0].rows || !in_one) return -1;
    for (int i = 0; i < kStreamShapeCount; ++i)
        if (blocks <= kMostBlocks[i]) return i;
    return -1;
}

// Whether 128-bit loads with offsets of 32 bits take the operands.
bool is_fast(const Args& a) {
    const bool blocks_a = of_blocks(a.scale_a);
    if (a.format_a == DType::f16 && a.format_b != DType::e2m1) return false;  // scaled, FP8's numbers leave float16
    const auto in_reach = [](int64_t rows, int64_t stride, int64_t row_bytes) {
        return stride >= 0 && gemm::hip::in_reach(rows, stride, row_bytes);
    };
    const int64_t rows = a.rows ? a.a_rows : std::min<int64_t>(a.a_rows, kMostTileRows),
                  columns = of_halves(a) ? a.n : std::min<int64_t>(a.n, kTileColumns), blocks = a.k / kMxBlock;
    const auto chunks = [&](const gemm::Scales& s, int64_t count) {
        return has_chunks(s, count, blocks) && in_reach(count, s.row_stride, blocks);
    };
    return rows_aligned(a.a.data, a.a.row_stride) && rows_aligned(a.b.data, a.b.row_stride) &&
           a.b.group_stride % kChunk == 0 && in_reach(rows, a.a.row_stride, a.bytes_of(a.format_a)) &&
           in_reach(columns, a.b.row_stride, a.bytes_of(a.format_b)) &&
           (stream_form(a) >= 0 || chunks(a.scale_b, a.n)) && (!blocks_a || chunks(a.scale_a, a.a_rows)) &&
           a.a_rows < kMostNumbered && a.m < kMostNumbered && a.n < kMostNumbered;
}

// make.operator()<a, blocks_a, b>() of the formats.
template <class Make>
Kernel by_formats(const Args& a, const Make& make) {
    constexpr DType kBf16 = DType::bf16, kF16 = DType::f16, kFp8 = DType::e4m3fnuz, kE2m1 = DType::e2m1;
    const bool fp8_b = is_fp8(a.format_b);
    if (a.format_a == kE2m1) return make.template operator()<kE2m1, true, kE2m1>();
    if (of_blocks(a.scale_a))
        return fp8_b ? make.template operator()<kFp8, true, kFp8>() : make.template operator()<kFp8, true, kE2m1>();
    if (is_fp8(a.format_a))
        return fp8_b ? make.template operator()<kFp8, false, kFp8>() : make.template operator()<kFp8, false, kE2m1>();
    if (a.format_a == kF16) return make.template operator()<kF16, false, kE2m1>();
    return fp8_b ? make.template operator()<kBf16, false, kFp8>() : make.template operator()<kBf16, false, kE2m1>();
}

Status launch_fast(const Args& a, const Executor& on) {
    const int stream = stream_form(a), form = a.expected > kTileForms[0].rows;
    const int rows = stream >= 0 ? kStreamShapes[stream].rows : kTileForms[form].rows;
    const int threads = stream >= 0 ? kWave : kTileThreads;
    const int64_t columns = ceil_div(a.n, int64_t(stream >= 0 ? kWaveColumns : kTileColumns));
    const int64_t workgroups = most_row_tiles(a, rows) * columns;
    if (workgroups * threads > kMaxThreads) return {"a and b have more rows than one launch takes"};
    const auto kernel_of = [&]<bool gated>(std::bool_constant<gated>) {
        return by_formats(a, [&]<DType format_a, bool blocks_a, DType format_b>() -> Kernel {
            if (stream >= 0)
                return kernel_at<kStreamShapeCount>(
                    stream, []<int i>() -> Kernel { return mx_gemm_stream<i, format_a, blocks_a, format_b, gated>; });
            return kernel_at<kTileFormCount>(
                form, []<int i>() -> Kernel { return mx_gemm_tiles<i, format_a, blocks_a, format_b, gated>; });
        });
    };
    const Kernel kernel = a.gated ? kernel_of(std::true_type()) : kernel_of(std::false_type());
    const Launch launch{a, divider_by(uint32_t(columns))};
    return launch_kernel(kernel, workgroups, threads, on, launch);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm::hip

namespace rocm_fp8::mx_gemm {

Status launch(const Args& args, const Executor& on) {
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    const Vendor vendor(chip.arch, on);
    return launch_by_type(
        args, vendor, [&](const Args& a) { return hip::is_fast(a); },
        [&](const Args& a, const Vendor&) { return hip::launch_fast(a, on); });
}

// A wave's exponents of 16 gates lie before the last up.
bool gates(const Args& args) {
    const ArchResult chip = current_arch();
    return chip.status.ok() && args.n >= hip::kWaveColumns && hip::is_fast(args);
}

}  // namespace rocm_fp8::mx_gemm
