// Grouped GEMM on the CPU: one expert after the other, each on all threads. FP8 rows are those of block_scaled_gemm, whose
// operands are gathered first: 1 / n of the bytes of the weights that they are multiplied with. 16-bit ones: half.h.
#include <cstring>

#include "../../common/cpu/kept_memory.h"
#include "../../common/cpu/simd_portable.h"
#include "../../block_scaled_gemm/block_scaled_gemm.h"
#include "../../common/cpu/features.h"
#include "../../common/cpu/half.h"
#include "../../common/gemm/cpu/gemm.h"
#include "../../common/gemm/cpu/groups.h"
#include "half.h"

namespace rocm_fp8::grouped_gemm {
namespace {

using gemm::bias_of, gemm::bytes_of, gemm::each_group, gemm::Part, gemm::source;

// Gathers rows of A, and their scales.
class Gathered {
  public:
    Gathered(const Args& a, const Part& part) : a(a), part(part) {}

    gemm::Operand codes() {
        gemm::Operand x = a.a;
        if (!a.rows) {
            x.data += part.begin * x.row_stride;
            return x;
        }
        static thread_local KeptMemory memory;
        auto* to = reinterpret_cast<uint8_t*>(memory.at_least(part.rows() * a.k));
        for (int64_t i = 0; i < part.rows(); ++i) {
            const int64_t row = source(a, part.begin + i);
            if (row < 0) std::memset(to + i * a.k, 0, a.k);
            else std::memcpy(to + i * a.k, a.a.data + row * a.a.row_stride, a.k);
        }
        return {0, to, a.k, 1};
    }

    gemm::Scales scales() {
        gemm::Scales s = a.scale_a;
        const int64_t size = bytes_of(s.dtype), blocks = s.block_stride ? gemm::blocks_of(a.k) : 1;
        if (s.row_stride == 0) return s;
        if (!a.rows) {
            s.data = static_cast<const char*>(s.data) + part.begin * s.row_stride * size;
            return s;
        }
        static thread_local KeptMemory memory;
        char* to = memory.at_least(part.rows() * blocks * size);
        for (int64_t i = 0; i < part.rows(); ++i) {
            const int64_t row = std::max<int64_t>(source(a, part.begin + i), 0);
            for (int64_t j = 0; j < blocks; ++j)
                std::memcpy(to + (i * blocks + j) * size,
                            static_cast<const char*>(s.data) + (row * s.row_stride + j * s.block_stride) * size, size);
        }
        s.data = to, s.row_stride = blocks, s.block_stride = blocks > 1;
        return s;
    }

  private:
    const Args& a;
    const Part& part;
};

Status multiply_fp8(const Args& a, const Part& part, void* out, const Executor& on) {
    Gathered gathered(a, part);
    block_scaled_gemm::Args args{};
    args.a = gathered.codes();
    args.b = {0, a.b.data + part.e * a.b.group_stride, a.b.row_stride, 1};
    args.m = part.rows(), args.n = a.n, args.k = a.k;
    args.scale_a = gathered.scales();
    args.scale_b = gemm::scales_of(a.scale_b, part.e);
    args.bias = bias_of(a, part.e);
    args.out = a.out;
    args.out.data = out;
    args.format = a.format;
    return block_scaled_gemm::launch(args, on);
}

Status multiply_half(const Args& a, const Part& part, void* out, const Executor& on) {
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    const HalfKernel kernel = of_isa(choice.isa, pick_half<Portable>, half_avx2, half_avx512)(a);
    static thread_local KeptMemory memory;
    const int64_t width = half_row(a.k);
    auto* wide = reinterpret_cast<float*>(memory.at_least(std::min<int64_t>(kMostRows, part.rows()) * width * 4));
    for (int64_t first = part.begin; first < part.end; first += kMostRows) {
        const int64_t count = std::min<int64_t>(kMostRows, part.end - first);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = source(a, first + i);
            if (row < 0) std::fill_n(wide + i * width, width, 0.0f);
            else kernel.widen(a.a.data + row * a.a.row_stride, a.k, wide + i * width);
        }
        struct Context {
            const HalfKernel& kernel;
            HalfRows rows;
        } context{kernel,
                  {wide, count, a.b.data + part.e * a.b.group_stride, bias_of(a, part.e),
                   static_cast<char*>(out) + (first - part.begin) * a.out.row_stride * bytes_of(a.out.dtype), a}};
        on.parallel_for(
            0, a.n, std::max<int64_t>(12, 131072 / a.k),
            [](void* c, int64_t begin, int64_t end) {
                const auto* context = static_cast<Context*>(c);
                context->kernel.columns(context->rows, begin, end);
            },
            &context);
    }
    return {};
}

Status multiply(const Args& a, const Part& part, void* out, const Executor& on) {
    return is_fp8(a.format) ? multiply_fp8(a, part, out, on) : multiply_half(a, part, out, on);
}

}  // namespace

Status launch(const Args& args, const Executor& on) {
    if (args.m == 0 || args.n == 0) return {};
    return each_group(args, [&](const Part& part) {
        char* out = static_cast<char*>(args.out.data) + part.begin * args.out.row_stride * bytes_of(args.out.dtype);
        return multiply(args, part, out, on);
    });
}

Status launch_swiglu(const Args& args, const swiglu::Args& gated, const Executor& on) {
    if (args.m == 0 || args.n == 0) return {};
    static thread_local KeptMemory memory;
    Args product = args;
    product.out = {0, nullptr, args.n, gated.dtype};
    return each_group(args, [&](const Part& part) -> Status {
        void* c = memory.at_least(part.rows() * args.n * 2);
        if (const Status status = multiply(product, part, c, on); !status.ok()) return status;
        swiglu::Args rows = gated;
        rows.x = c, rows.x_stride = args.n, rows.rows = part.rows();
        rows.out = static_cast<char*>(gated.out) + part.begin * gated.out_stride;
        if (!gated.scale) {
            const int64_t size = gated.dynamic.exponents ? 1 : 4;
            rows.dynamic.data = static_cast<char*>(gated.dynamic.data) + part.begin * gated.dynamic.row_stride * size;
        }
        return swiglu::launch(rows, on);
    });
}

}  // namespace rocm_fp8::grouped_gemm
