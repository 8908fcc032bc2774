// skinny_gemm.hip's kernels for a result that all ranks sum: what is finished leaves for the other ranks at once.
//
// Bytes: skinny_gemm.hip's, and over each link the result once. The links work while other workgroups still read
// weights; at the end of the launch the last tiles are under way. Who receives: ../../all_reduce/gemm.h, the order of
// things and why a launch may send before it knows of anybody: ../../common/comm/gpu/send.h. With split-K who adds the
// parts sends.
//
// A workgroup's part of a row has 16 or 32 numbers, 32 or 64 bytes of 16 bits: half a packet of a link, or one.
//
// Limit today: unknown, nothing has been measured on an AMD GPU. Journal: docs/journal/all_reduce.md.
#include "launch.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

template <int index>
__global__ __launch_bounds__(Fast<index>::threads, Fast<index>::waves_per_simd) void skinny_gemm_send(
    const uint8_t* a, const uint8_t* b, uint32_t a_stride, uint32_t b_stride, int m, int n, uint32_t k, int blocks,
    int longer, uint32_t divisor, uint32_t factor, uint32_t shift, StreamArgs, comm::Sending) {
    multiply_stream<index, SendLaunch>({a, b, a_stride, b_stride, m, n, k, blocks, longer, {divisor, factor, shift}});
}

template <int index>
__global__ __launch_bounds__(Any<index>::threads) void skinny_gemm_send_any(StreamWork work, StreamArgs, comm::Sending,
                                                                            gemm::Operand a, gemm::Operand b) {
    multiply_any<index, SendLaunch>(work, a, b);
}

struct Kernels {
    template <int index>
    static auto stream() {
        return skinny_gemm_send<index>;
    }
    template <int index>
    static auto any() {
        return skinny_gemm_send_any<index>;
    }
};

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip

namespace rocm_fp8::skinny_gemm {

Status launch_and_send(const Args& args, const comm::Peers& peers, uint32_t what, const Executor& on) {
    return hip::launch_by<hip::Kernels>(args, on, comm::sending_of(peers, what));
}

}  // namespace rocm_fp8::skinny_gemm
