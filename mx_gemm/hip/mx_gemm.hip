// MX weights on MI300X (gfx942) and MI350 (gfx950): the launcher.
//
//     stream.h    weights from memory to registers, past LDS; however many rows, so that a row's bits are the same
//     ../gpu.h    else: any strides, alignment, sizes and formats
//
// Files: mx_gemm.hip (launcher), config.h (compiled forms), stream.h, decode.h (numbers and scales), products.h (of ../gpu.h).
#include "../../common/gemm/hip/launch.h"
#include "../../common/gpu/kernel_at.h"
#include "../../common/rows/hip/vendor.h"
#include "products.h"
#include "stream.h"
#include "../gpu.h"

namespace rocm_fp8::mx_gemm::hip {
namespace {

// Whether 128-bit loads with offsets of 32 bits take the operands, and a workgroup's exponents lie in one piece.
bool streams(const Args& a, DType fp8) {
    const StreamShape& shape = kStreamShapes[0];
    const auto is_own = [&](DType format) { return is_fp8(format) && format == fp8; };
    const bool half_a = a.format_a == DType::bf16 || a.format_a == DType::f16;
    const bool fp8_a = is_own(a.format_a) && !of_blocks(a.scale_a), fp8_b = is_own(a.format_b);
    const int64_t blocks = a.k / kMxBlock, rows_of_a = a.rows ? a.a_rows : std::min<int64_t>(a.a_rows, shape.rows);
    return (half_a || fp8_a) && (fp8_b ? a.format_a != DType::f16 : a.format_b == DType::e2m1) &&
           blocks <= kMostBlocks[kStreamShapeCount - 1] && (a.scale_b.block_stride == 1 || blocks == 1) &&
           (a.scale_b.row_stride == blocks || a.n == 1) && rows_aligned(a.a.data, a.a.row_stride) &&
           rows_aligned(a.b.data, a.b.row_stride) && a.b.group_stride % kChunk == 0 &&
           gemm::hip::in_reach(rows_of_a, a.a.row_stride, a.bytes_of(a.format_a)) &&
           gemm::hip::in_reach(std::min<int64_t>(a.n, shape.columns), a.b.row_stride, a.bytes_of(a.format_b)) &&
           a.a_rows < kMostNumbered && a.m < kMostNumbered && a.n < kMostNumbered;
}

template <int index>
auto stream_kernel(const Args& a) {
    const bool fp8_a = is_fp8(a.format_a), fp8_b = is_fp8(a.format_b);
    return fp8_a                      ? fp8_b ? mx_gemm_stream<index, DType::bf16, true, true>
                                              : mx_gemm_stream<index, DType::bf16, true, false>
           : fp8_b                    ? mx_gemm_stream<index, DType::bf16, false, true>
           : a.format_a == DType::f16 ? mx_gemm_stream<index, DType::f16, false, false>
                                      : mx_gemm_stream<index, DType::bf16, false, false>;
}

Status launch_stream(const Args& a, const Executor& on) {
    const int index = a.k / kMxBlock > kMostBlocks[0];
    const StreamShape& shape = kStreamShapes[index];
    const int64_t columns = ceil_div(a.n, int64_t(shape.columns)), items = most_row_tiles(a, shape.rows) * columns;
    if (items * kWave > kMaxThreads) return {"a and b have more rows than one launch takes"};
    const StreamLaunch launch{a, divider_by(uint32_t(columns)), divider_by(uint32_t(a.slots))};
    const auto kernel = kernel_at<kStreamShapeCount>(index, [&]<int i>() { return stream_kernel<i>(a); });
    return launch_kernel(kernel, items, kWave, on, launch);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm::hip

namespace rocm_fp8::mx_gemm {

Status launch(const Args& args, const Executor& on) {
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    const Vendor vendor(chip.arch, on);
    return launch_by_type(
        args, vendor, [&](const Args& a) { return hip::streams(a, vendor.fp8); },
        [&](const Args& a, const Vendor&) { return hip::launch_stream(a, on); });
}

}  // namespace rocm_fp8::mx_gemm
