#include <atomic>

#include "kernel.h"

namespace rocm_fp8::quantize {

Status launch(const Args& args, const Executor& on) {
    const RowsKernels<Job> kernels{kernel_portable, kernel_avx2, kernel_avx512};
    Job job{args, nullptr, nullptr};
    if (args.given_scale || args.scale.group != DynamicScale::kTensor) return launch_rows(job, kernels, on);

    // A maximum is the same in any order. Magnitudes have the order of their bits.
    std::atomic<uint32_t> largest{0};
    job.context = &largest;
    job.note_largest = [](void* context, float value) {
        auto& largest = *static_cast<std::atomic<uint32_t>*>(context);
        const uint32_t bits = float_bits(value);
        for (uint32_t seen = largest; seen < bits && !largest.compare_exchange_weak(seen, bits);) {
        }
    };
    if (const Status status = launch_rows(job, kernels, on); !status.ok()) return status;
    const float scale = scale_of(bits_float(largest), args.scale, upper_bound(args.scale));
    write_scale(args.scale, 0, 0, scale);
    job.note_largest = nullptr;
    job.given_scale = &scale;
    return launch_rows(job, kernels, on);
}

}  // namespace rocm_fp8::quantize
