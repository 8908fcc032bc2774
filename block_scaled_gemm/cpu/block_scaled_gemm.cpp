#include <algorithm>

#include "../../common/cpu/simd_portable.h"
#include "../../common/cpu/features.h"
#include "kernel.h"

namespace rocm_fp8::block_scaled_gemm {
Status launch(const Args& args, const Executor& on, const Portion&) {
    if (args.m == 0 || args.n == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    const Kernel kernel =
        of_isa(choice.isa, pick_block_scaled_gemm<Portable>, kernel_avx2, kernel_avx512, kernel_amx)(args);

    const int64_t row_bytes = kernel.operand_bytes(args.k), blocks = blocks_of(args.k);
    constexpr int64_t kTile = 4;  // rows of a tile in registers
    const int64_t tile = std::max(kTile, kernel.rows_at_once);
    const int64_t rows = rows_of_chunks(args.m, row_bytes, tile, kMaxChunk);
    static thread_local KeptMemory operands, scales, flags;
    struct Context {
        const Args& args;
        const Kernel& kernel;
        Chunk a;
        int64_t unit;  // columns
    } context{args, kernel, {}, args.b.k_contiguous() ? kernel.columns_at_once : kernel.strip};
    context.a.operands = operands.at_least(rows * row_bytes);
    context.a.scales = reinterpret_cast<float*>(scales.at_least(rows * blocks * sizeof(float)));
    context.a.has_nan = reinterpret_cast<bool*>(flags.at_least(rows));

    for (int64_t first = 0; first < args.m; first += rows) {
        context.a.first = first;
        context.a.count = std::min(rows, args.m - first);
        // Parts of 128 KiB of codes at least; of weights with as many multiplications as 256 KiB of a few rows' have.
        const int64_t at_once = kernel.rows_at_once, decoded = std::max<int64_t>(131072 / args.k / at_once, 1);
        on.parallel_for(
            0, (context.a.count + at_once - 1) / at_once, decoded,
            [](void* c, int64_t begin, int64_t end) {
                const auto* context = static_cast<Context*>(c);
                const int64_t unit = context->kernel.rows_at_once;
                context->kernel.decode_rows(context->args, context->a, begin * unit,
                                            std::min(end * unit, context->a.count));
            },
            &context);
        const int64_t work = args.k * context.unit * ((context.a.count + 3) / 4);
        on.parallel_for(
            0, (args.n + context.unit - 1) / context.unit, std::max<int64_t>(262144 / work, 1),
            [](void* c, int64_t begin, int64_t end) {
                const auto* context = static_cast<Context*>(c);
                context->kernel.columns(context->args, context->a, begin * context->unit,
                                        std::min(end * context->unit, context->args.n));
            },
            &context);
    }
    return {};
}

}  // namespace rocm_fp8::block_scaled_gemm
