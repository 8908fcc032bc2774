// MX weights on the CPU: one group after the other, each on all threads.
#include <cstring>

#include "../../common/cpu/features.h"
#include "../../common/cpu/simd_portable.h"
#include "../../common/gemm/cpu/gemm.h"
#include "amx.h"
#include "kernel.h"

namespace rocm_fp8::mx_gemm {
namespace {

int64_t bytes_of(DType t) { return t == DType::f32 ? 4 : t == DType::e8m0 ? 1 : 2; }

// Matrix e's own.
gemm::Scales scales_of(const Args& a, int64_t e) {
    gemm::Scales s = a.scale_b;
    s.data = static_cast<const char*>(s.data) + e * s.group_stride;
    return s;
}
gemm::Bias bias_of(const Args& a, int64_t e) {
    gemm::Bias bias = a.bias;
    if (bias.data) bias.data = static_cast<const char*>(bias.data) + e * a.bias_group_stride * bytes_of(bias.dtype);
    return bias;
}

// The rows [begin, end) of the result, all of group e.
Status multiply(const Args& a, const Kernel& kernel, int64_t e, int64_t begin, int64_t end, const Executor& on) {
    static thread_local KeptMemory kept_rows, kept_scales;
    const int64_t blocks = a.k / kMxBlock, most = std::min<int64_t>(kMostRows, end - begin);
    auto* wide = reinterpret_cast<float*>(kept_rows.at_least(most * a.k * sizeof(float)));
    auto* scales = reinterpret_cast<float*>(kept_scales.at_least(most * blocks * sizeof(float)));
    const bool by_blocks = of_blocks(a.scale_a), by_rows = a.scale_a.data && !by_blocks;
    for (int64_t first = begin; first < end; first += kMostRows) {
        const int64_t count = std::min<int64_t>(kMostRows, end - first);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t found = source(a, first + i), row = std::max<int64_t>(found, 0);
            if (found < 0) std::fill_n(wide + i * a.k, a.k, 0.0f);
            else kernel.widen(a, a.a.data + row * a.a.row_stride, wide + i * a.k);
            const auto* of_row =
                static_cast<const char*>(a.scale_a.data) + row * a.scale_a.row_stride * bytes_of(a.scale_a.dtype);
            if (by_rows) std::memcpy(scales + i, of_row, sizeof(float));
            for (int64_t j = 0; by_blocks && j < blocks; ++j)
                scales[i * blocks + j] = e8m0_value(uint8_t(of_row[j * a.scale_a.block_stride]));
        }
        struct Context {
            const Kernel& kernel;
            Rows rows;
        } context{kernel,
                  {wide, by_blocks ? scales : nullptr, by_rows ? scales : nullptr, count,
                   a.b.data + e * a.b.group_stride, scales_of(a, e), bias_of(a, e),
                   static_cast<char*>(a.out.data) + first * a.out.row_stride * bytes_of(a.out.dtype), a}};
        on.parallel_for(
            0, a.n, std::max<int64_t>(12, 131072 / a.k / count),
            [](void* c, int64_t from, int64_t to) {
                const auto* context = static_cast<Context*>(c);
                context->kernel.columns(context->rows, from, to);
            },
            &context);
    }
    return {};
}

Status multiply(const Args& a, const TileKernel& kernel, int64_t e, int64_t begin, int64_t end, const Executor& on) {
    static thread_local KeptMemory kept_operands, kept_ranges, kept_factors;
    const int64_t most = rows_of_chunks(end - begin, 2 * a.k, 2 * kRowsOfTile, kMostRowsOfChunk);
    for (int64_t first = begin; first < end; first += most) {
        const int64_t count = std::min(most, end - first);
        struct Context {
            const TileKernel& kernel;
            Chunk chunk;
        } context{kernel,
                  {a, a.b.data + e * a.b.group_stride, scales_of(a, e), bias_of(a, e), first, count,
                   kept_operands.at_least(kernel.operand_bytes(a, count)),
                   reinterpret_cast<Range*>(kept_ranges.at_least(count * int64_t(sizeof(Range)))),
                   reinterpret_cast<float*>(kept_factors.at_least(count * int64_t(sizeof(float))))}};
        on.parallel_for(
            0, (count + kRowsOfTile - 1) / kRowsOfTile, std::max<int64_t>(1, 32768 / a.k),
            [](void* c, int64_t from, int64_t to) {
                const auto* context = static_cast<Context*>(c);
                const Chunk& chunk = context->chunk;
                context->kernel.pack(chunk, from * kRowsOfTile, std::min(to * kRowsOfTile, chunk.count));
            },
            &context);
        on.parallel_for(
            0, a.n, std::max<int64_t>(2 * kRowsOfTile, 131072 / a.k),
            [](void* c, int64_t from, int64_t to) {
                const auto* context = static_cast<Context*>(c);
                context->kernel.columns(context->chunk, from, to);
            },
            &context);
    }
    return {};
}

// body(e, begin, end): the rows of each matrix that has some. Offsets that fall, or leave [0, m], give none.
template <class Body>
Status each_matrix(const Args& a, const Body& body) {
    if (!a.offsets) return body(0, 0, a.m);
    Status status;
    for (int64_t e = 0; e < a.groups && status.ok(); ++e) {
        const int64_t begin = std::max<int64_t>(a.offsets[e], 0), end = std::min<int64_t>(a.offsets[e + 1], a.m);
        if (begin < end) status = body(e, begin, end);
    }
    return status;
}

}  // namespace

Status launch(const Args& args, const Executor& on) {
    if (args.m == 0 || args.n == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    const auto by = [&](const auto& kernel) {
        return each_matrix(
            args, [&](int64_t e, int64_t begin, int64_t end) { return multiply(args, kernel, e, begin, end, on); });
    };
    if (choice.tiles && args.format_a != DType::f16) return by(kernel_amx(args));
    return by(of_isa(choice.isa, pick<Portable>, kernel_avx2, kernel_avx512)(args));
}

}  // namespace rocm_fp8::mx_gemm
