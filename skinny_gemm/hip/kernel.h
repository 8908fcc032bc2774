// The body of skinny_gemm's kernels on AMD GPUs: common/gemm/hip/stream.h with sums over all of K, then scales, bias
// and the result, which may leave for other ranks as well. skinny_gemm.hip and send.hip name the kernels.
#pragma once

#include "../../common/gemm/hip/stream_end.h"
#include "../skinny_gemm.h"
#include "config.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

using namespace gemm::hip;

struct StreamArgs {
    gemm::Epilogue epilogue;
    SplitK split;
};
// A kernel's arguments as they lie in memory: of one whose result stays here, and of one that sends it, too.
struct StreamLaunch {
    StreamWork work;
    StreamArgs rest;
    using To = comm::NoSender;
    __device__ To to() const { return {}; }
};
struct SendLaunch {
    StreamWork work;
    StreamArgs rest;
    comm::Sending sending;
    using To = comm::Sender;
    __device__ To to() const { return To(sending); }
};
static_assert(sizeof(StreamWork) == 14 * sizeof(uint32_t));

struct Scaled {
    static constexpr bool kRows = true, kColumns = true, kSplits = true, kEarly = true;
    const gemm::Epilogue& e;
    __device__ float row(int m) const { return gemm::scale_at(e.scale_a, m); }
    __device__ float column(int n) const { return gemm::scale_at(e.scale_b, n); }
};

template <class S, class A, class B, class Launch, class Start>
__device__ inline void multiply_and_finish(const StreamWork& work, const Start& start) {
    __shared__ alignas(16) float regions[S::waves][S::sums];
    const int wave = uniform(threadIdx.x / kWave);
    const int tile = int(divide(blockIdx.x, work.parts)), part = int(blockIdx.x) - tile * int(work.parts.divisor);
    const int column = tile * S::columns, first = work.begin(part) + wave, end = work.begin(part + 1);
    StreamSlice<S, S::waves * gemm::kBlock, A, B, RunningSums<S>> slice;
    start(slice, column);
    slice.start(uint32_t(first) * gemm::kBlock, int(uint32_t(end - first + S::waves - 1) / S::waves), work.k);
    // What the end needs is asked for when the weights are.
    const Launch& launch = arguments<Launch>();
    const StreamArgs& rest = launch.rest;
    const gemm::Epilogue& e = rest.epilogue;
    const Scaled scaled{e};
    using To = typename Launch::To;
    StreamEnd<S, Scaled, S::threads, To> ending(scaled, e.bias, e.out, rest.split, work.m, work.n, column, tile, part,
                                                launch.to());
    ending.finish(slice, regions, wave, S::waves);
}

template <int index>
using Fast = Stream<kStreamShapes[index]>;
// The kernel names what `work` holds one by one.
template <int index, class Launch>
__device__ inline void multiply_stream(const StreamWork& work) {
    using S = Fast<index>;
    using A = AlignedFragments<S::rows, kPlainAccess>;
    using B = AlignedFragments<S::columns, kNonTemporal>;
    multiply_and_finish<S, A, B, Launch>(work, [&](auto& slice, int column) {
        slice.load_b.start(work.b, work.b_stride, column, work.n);
        slice.load_a.start(work.a, work.a_stride, 0, work.m);
    });
}

template <int index>
using Any = Stream<kFallbackShapes[index]>;
template <int index, class Launch>
__device__ inline void multiply_any(const StreamWork& work, const gemm::Operand& a, const gemm::Operand& b) {
    using S = Any<index>;
    multiply_and_finish<S, AnyFragments<S::rows>, AnyFragments<S::columns>, Launch>(work, [&](auto& slice, int column) {
        slice.load_b.start(b, column, work.n);
        slice.load_a.start(a, 0, work.m);
    });
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip
