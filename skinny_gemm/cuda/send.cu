// skinny_gemm.cu's kernels for a result that all ranks sum: what is finished leaves for the other ranks at once.
//
// Bytes: skinny_gemm.cu's, and over each link the result once. The links work while other CTAs still read weights; at
// the end of the launch a last tile is under way. Who receives: ../../all_reduce/gemm.h, the order of things and why a
// launch may send before it knows of anybody: ../../common/comm/gpu/send.h.
//
// A word of the link holds two columns of 16 bits, so pieces of the columns begin with even ones, and a thread finishes
// two. The sums are those of skinny_gemm.cu: the same splits, the same order.
//
// Limit today: not measured. Journal: docs/journal/all_reduce.md.
#include "launch.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

constexpr int kSentApiece = kApieceOf<comm::Sender>;

// The communicator is used where it lies: a copy of its pointers would be on the stack.
template <int kColumns, int kRowTiles, int kStages, int kConsumers, bool kClusters>
__global__ __launch_bounds__(Bulk<kColumns, kRowTiles, kStages, kConsumers, kClusters>::kMostThreads,
                             Bulk<kColumns, kRowTiles, kStages, kConsumers, kClusters>::kShape.slots()) void
skinny_gemm_send(Args a, const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap rows,
                 Pieces pieces, Overlap overlap, const __grid_constant__ comm::Sending to) {
#if __CUDA_ARCH__ >= 900
    using B = Bulk<kColumns, kRowTiles, kStages, kConsumers, kClusters, kSentApiece>;
    multiply_bulk<B>(a, weights, rows, pieces, overlap, comm::Sender(to));
#endif
}

template <int kRowTiles, bool aligned>
__global__ __launch_bounds__(kFallbackWarps* kWarp) void skinny_gemm_send_any(
    Args a, const __grid_constant__ comm::Sending to) {
    multiply_and_finish<kRowTiles, aligned>(a, comm::Sender(to));
}

struct Kernels {
    static constexpr int kApiece = kSentApiece;
    template <int kColumns, int kRowTiles, int kStages, int kConsumers, bool kClusters>
    static auto bulk() {
        return skinny_gemm_send<kColumns, kRowTiles, kStages, kConsumers, kClusters>;
    }
    template <int kRowTiles, bool aligned>
    static auto fallback() {
        return skinny_gemm_send_any<kRowTiles, aligned>;
    }
};

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda

namespace rocm_fp8::skinny_gemm {

Status launch_and_send(const Args& args, const comm::Peers& peers, uint32_t what, const Executor& on) {
    return cuda::Launcher<cuda::Kernels, comm::Sending>::launch(args, on, comm::sending_of(peers, what));
}

}  // namespace rocm_fp8::skinny_gemm
