#include <algorithm>

#include "../../common/cpu/features.h"
#include "kernel.h"

namespace rocm_fp8::int8_gemm {
namespace {

// One batch, on the threads of `on`.
void multiply(const Args& args, const Kernel& kernel, int64_t batch, const Executor& on) {
    const int64_t row_bytes = kernel.operand_bytes(args.k);
    constexpr int64_t kTile = 4;  // rows of a tile in registers
    const int64_t tile = std::max(kTile, kernel.rows_at_once);
    const int64_t rows = rows_of_chunks(args.m, row_bytes, tile, kMaxChunk);
    static thread_local KeptMemory operands, surplus;
    struct Context {
        const Args& args;
        const Kernel& kernel;
        Chunk a;
    } context{args, kernel, {}};
    context.a.batch = batch;
    context.a.operands = operands.at_least(rows * row_bytes);
    context.a.surplus = reinterpret_cast<int32_t*>(surplus.at_least(rows * sizeof(int32_t)));

    for (int64_t first = 0; first < args.m; first += rows) {
        context.a.first = first;
        context.a.count = std::min(rows, args.m - first);
        // Parts of 128 KiB at least; of B with as many multiplications as 256 KiB of a few rows' have.
        const int64_t at_once = kernel.rows_at_once, unit = kernel.columns_at_once;
        on.parallel_for(
            0, (context.a.count + at_once - 1) / at_once, std::max<int64_t>(131072 / args.k / at_once, 1),
            [](void* c, int64_t begin, int64_t end) {
                const auto* context = static_cast<Context*>(c);
                const int64_t rows = context->kernel.rows_at_once;
                context->kernel.decode_rows(context->args, context->a, begin * rows,
                                            std::min(end * rows, context->a.count));
            },
            &context);
        const int64_t work = args.k * unit * ((context.a.count + 3) / 4);
        on.parallel_for(
            0, (args.n + unit - 1) / unit, std::max<int64_t>(262144 / work, 1),
            [](void* c, int64_t begin, int64_t end) {
                const auto* context = static_cast<Context*>(c);
                const int64_t unit = context->kernel.columns_at_once;
                context->kernel.columns(context->args, context->a, begin * unit, std::min(end * unit, context->args.n));
            },
            &context);
    }
}

}  // namespace

Status launch(const Args& args, const Executor& on) {
    if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    const Kernel kernel = of_isa(choice.isa, kernel_portable, kernel_avx2, kernel_avx512, kernel_amx)(args);
    // Few batches take turns on all threads; of many a thread has some of its own.
    constexpr int64_t kFew = 8;
    if (args.batch < kFew) {
        for (int64_t i = 0; i < args.batch; ++i) multiply(args, kernel, i, on);
        return {};
    }
    struct Context {
        const Args& args;
        const Kernel& kernel;
    } context{args, kernel};
    const int64_t work = args.k * args.n * ((args.m + 3) / 4);
    on.parallel_for(
        0, args.batch, std::max<int64_t>(262144 / work, 1),
        [](void* c, int64_t begin, int64_t end) {
            const auto* context = static_cast<Context*>(c);
            Executor alone;
            alone.parallel_for = [](int64_t first, int64_t last, int64_t, RangeBody body, void* of) {
                body(of, first, last);
            };
            for (int64_t i = begin; i < end; ++i) multiply(context->args, context->kernel, i, alone);
        },
        &context);
    return {};
}

}  // namespace rocm_fp8::int8_gemm
