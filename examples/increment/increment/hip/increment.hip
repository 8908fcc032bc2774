// increment on AMD GPUs (gfx942, gfx950).
//
// Bytes: 4 read and 4 written an element; the floor is those bytes at the memory rate.
//
//     aligned    | vec4 0 | vec4 1 | ... | rest |    a vec4 (16 bytes) a thread; three threads take the rest
//     else       an element a thread, so that neighbouring lanes still read neighbouring bytes

#include <hip/hip_runtime.h>

#include "../increment.h"

namespace increment {
namespace {

constexpr int kThreads = 256, kVector = 4;
constexpr int64_t kMaxBlocks = ((int64_t(1) << 32) - 1) / kThreads;  // HIP counts a grid in threads

__global__ __launch_bounds__(kThreads) void increment_vectors(const float* __restrict__ x, float* __restrict__ out,
                                                              int64_t count) {
    const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x, vectors = count / kVector;
    if (thread < vectors) {
        const float4 v = reinterpret_cast<const float4*>(x)[thread];
        reinterpret_cast<float4*>(out)[thread] = make_float4(v.x + 1.0f, v.y + 1.0f, v.z + 1.0f, v.w + 1.0f);
    }
    const int64_t rest = vectors * kVector + thread;
    if (rest < count) out[rest] = x[rest] + 1.0f;
}

__global__ __launch_bounds__(kThreads) void increment_elements(const float* __restrict__ x, float* __restrict__ out,
                                                               int64_t count) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) out[i] = x[i] + 1.0f;
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % (kVector * sizeof(float)) == 0; }

}  // namespace

Status launch_increment(const IncrementArgs& args, const Executor& on) {
    const bool vectors = aligned(args.x) && aligned(args.out);
    const int64_t per_block = vectors ? kThreads * kVector : kThreads;
    const int64_t blocks = (args.count + per_block - 1) / per_block;
    if (blocks > kMaxBlocks) return {"x has more elements than one launch takes"};
    IncrementArgs a = args;
    void* arguments[] = {&a.x, &a.out, &a.count};
    const auto kernel = reinterpret_cast<const void*>(vectors ? increment_vectors : increment_elements);
    // Not <<< >>>: what hipGetLastError says after it may be the error of any earlier call.
    const hipError_t code = hipLaunchKernel(kernel, dim3(uint32_t(blocks)), dim3(kThreads), arguments, 0,
                                            static_cast<hipStream_t>(on.stream));
    return {code == hipSuccess ? nullptr : hipGetErrorString(code)};
}

}  // namespace increment
