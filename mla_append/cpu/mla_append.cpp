#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::mla_append {

Status launch(const Args& args, const Executor& on) {
    if (args.tokens == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    struct Context {
        const Args& args;
        RowsKernel<Args> rows;
    } context{args, of_isa(choice.isa, pick<Lanes<Portable>>, kernel_avx2, kernel_avx512)(args)};
    constexpr int64_t kGrain = 32;
    on.parallel_for(
        0, args.tokens, kGrain,
        [](void* c, int64_t begin, int64_t end) {
            const auto& context = *static_cast<Context*>(c);
            context.rows(context.args, begin, end);
        },
        &context);
    return {};
}

}  // namespace rocm_fp8::mla_append
