// How the row operators run on the CPU.
#pragma once

#include "../../types.h"
#include "../../cpu/features.h"

namespace rocm_fp8 {

// What each instruction set's translation unit hands to the launcher: computes rows [begin, end).
template <class Args>
using RowsKernel = void (*)(const Args& args, int64_t begin, int64_t end);

// The smallest part of the work for a thread, in elements: below it, starting a thread costs more than it saves.
constexpr int64_t kElementsPerPart = 32768;

// The rows of `args`, `elements_per_row` each, on the executor's threads.
template <class Args>
void run_rows(const Args& args, int64_t elements_per_row, RowsKernel<Args> kernel, const Executor& on) {
    struct Context {
        const Args* args;
        RowsKernel<Args> kernel;
    } context{&args, kernel};
    const int64_t grain = elements_per_row >= kElementsPerPart ? 1 : kElementsPerPart / elements_per_row;
    on.parallel_for(
        0, args.rows, grain,
        [](void* c, int64_t begin, int64_t end) {
            auto* context = static_cast<Context*>(c);
            context->kernel(*context->args, begin, end);
        },
        &context);
}

// Each instruction set's kernel for the arguments' types.
template <class Args>
struct RowsKernels {
    RowsKernel<Args> (*portable)(const Args&);
    RowsKernel<Args> (*avx2)(const Args&);
    RowsKernel<Args> (*avx512)(const Args&);
};

// A row operator's launch, by the instruction set of this process.
template <class Args>
Status launch_rows(const Args& args, const RowsKernels<Args>& kernels, const Executor& on) {
    if (args.rows == 0 || args.d == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    run_rows(args, args.d, of_isa(choice.isa, kernels.portable, kernels.avx2, kernels.avx512)(args), on);
    return {};
}

}  // namespace rocm_fp8
