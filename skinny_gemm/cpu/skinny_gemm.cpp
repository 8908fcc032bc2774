#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

#include "../../common/cpu/features.h"
#include "../../common/cpu/kept_memory.h"

namespace rocm_fp8::skinny_gemm {

Status launch(const Args& args, const Executor& on) {
    if (args.m == 0 || args.n == 0) return {};
    if (args.m > kMaxRows) return {"a has more rows than one launch takes"};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    const Kernel kernel = of_isa(choice.isa, pick_skinny_gemm<Portable>, kernel_avx2, kernel_avx512, kernel_amx)(args);

    static thread_local KeptMemory memory;
    char* operands = memory.at_least(kernel.operand_bytes);
    bool has_nan[kMaxRows];
    kernel.decode_rows(args, operands, has_nan);

    struct Context {
        const Args& args;
        const Kernel& kernel;
        const char* operands;
        const bool* has_nan;
    } context{args, kernel, operands, has_nan};
    // Parts of about 256 KiB of weights, in whole tiles.
    const int64_t tiles = 262144 / args.k / kernel.part_columns;
    on.parallel_for(
        0, args.n, (tiles > 1 ? tiles : 1) * kernel.part_columns,
        [](void* c, int64_t begin, int64_t end) {
            const auto* context = static_cast<Context*>(c);
            context->kernel.columns(context->args, context->operands, context->has_nan, begin, end);
        },
        &context);
    return {};
}

}  // namespace rocm_fp8::skinny_gemm
