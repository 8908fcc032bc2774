// MX weights on the CPU: one group after the other, each on all threads.
#include <cstring>

#include "../../common/cpu/features.h"
#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::mx_gemm {
namespace {

int64_t bytes_of(DType t) { return t == DType::f32 ? 4 : t == DType::e8m0 ? 1 : 2; }

// -1 where a row has no source.
int64_t source(const Args& a, int64_t i) {
    const int64_t row = a.rows ? a.rows[i] / a.slots : i;
    return row >= 0 && row < a.a_rows ? row : -1;
}

// The rows [begin, end) of the result, all of group e.
Status multiply(const Args& a, const Kernel& kernel, int64_t e, int64_t begin, int64_t end, const Executor& on) {
    static thread_local KeptMemory kept_rows, kept_scales;
    const int64_t blocks = a.k / kMxBlock, most = std::min<int64_t>(kMostRows, end - begin);
    auto* wide = reinterpret_cast<float*>(kept_rows.at_least(most * a.k * sizeof(float)));
    auto* scales = reinterpret_cast<float*>(kept_scales.at_least(most * blocks * sizeof(float)));
    const bool by_blocks = of_blocks(a.scale_a), by_rows = a.scale_a.data && !by_blocks;
    gemm::Scales scale_b = a.scale_b;
    scale_b.data = static_cast<const char*>(scale_b.data) + e * scale_b.group_stride;
    gemm::Bias bias = a.bias;
    if (bias.data) bias.data = static_cast<const char*>(bias.data) + e * a.bias_group_stride * bytes_of(bias.dtype);
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
        } context{
            kernel,
            {wide, by_blocks ? scales : nullptr, by_rows ? scales : nullptr, count, a.b.data + e * a.b.group_stride,
             scale_b, bias, static_cast<char*>(a.out.data) + first * a.out.row_stride * bytes_of(a.out.dtype), a}};
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

}  // namespace

Status launch(const Args& args, const Executor& on) {
    if (args.m == 0 || args.n == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    const Kernel kernel = of_isa(choice.isa, pick<Portable>, kernel_avx2, kernel_avx512)(args);
    if (!args.offsets) return multiply(args, kernel, 0, 0, args.m, on);
    // Offsets that fall, or leave [0, m], give no rows.
    Status status;
    for (int64_t e = 0; e < args.groups && status.ok(); ++e) {
        const int64_t begin = std::max<int64_t>(args.offsets[e], 0),
                      end = std::min<int64_t>(args.offsets[e + 1], args.m);
        if (begin < end) status = multiply(args, kernel, e, begin, end, on);
    }
    return status;
}

}  // namespace rocm_fp8::mx_gemm
