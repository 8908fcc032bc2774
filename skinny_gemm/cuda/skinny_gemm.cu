// C = A B^T for up to 32 rows (m) in FP8 on NVIDIA GPUs: the launcher.
//
// Bytes: n k of weights, read once. A (m k, at most 512 KiB at k = 16384) comes from L2. Floor: n k at the read rate
// of HBM; on an H200 (4.47 TB/s) 8.4 us at 2304 x 16384, 48.8 us at 13312 x 16384.
//
//     HBM --> TMA: 10 to 32 KiB of weights a stage --+
//     L2  --> TMA: the same k of A's rows -----------+--> ring in shared memory --> 8 or 16 warps: FP8 -> f16, mma.sync
//                                                                                    |
//     result <-- scales, bias, rounding <-- cluster (split-K), through DSMEM <-- sums of the warps, in shared memory
//
//     kernel before  |== work =====|
//     this kernel        |launch|weights|wait|== work ==|     PDL; weights before the wait only where b is constant
//
// One CTA has a partition of the columns, all of K or a part of it. Partitions have even sizes, as many as there are
// CTA stages. With split-K the CTAs of a cluster share a partition, and each finishes some of its columns.
//
// Files: skinny_gemm.cu   kernels;  launch.h: launcher;  send.cu: for sums over ranks
//        bulk.h           the main kernel (Hopper and later): TMA ring, main loop, reduction
//        end.h            what becomes of a number;  fours.h: in wide CTAs, four columns a thread
//        fallback.h       the simple kernel: other chips, odd strides, small K
//        common/cuda/mma.h  matrix instructions and fragment maps
//        config.h         which kernel, with which tile, partitions and split-K
//
// Limit today: where every CTA stage is taken, memory is busy 95 to 98 % of the time between the ends. What is left is
// 0.8 to 1.1 us from one kernel's end to the end of the next one's wait, and at m = 32 power and the widening of FP8.
//
// How it came to this, what was tried and dropped, and the figures: docs/journal/skinny_gemm-cuda.md.
#include "launch.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

template <int kColumns, int kRowTiles, int kStages, int kConsumers, bool kClusters>
__global__ __launch_bounds__(Bulk<kColumns, kRowTiles, kStages, kConsumers, kClusters>::kMostThreads,
                             Bulk<kColumns, kRowTiles, kStages, kConsumers, kClusters>::kShape.slots()) void
skinny_gemm_bulk(Args a, const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap rows,
                 Pieces pieces, Overlap overlap) {
#if __CUDA_ARCH__ >= 900
    using B = Bulk<kColumns, kRowTiles, kStages, kConsumers, kClusters>;
    multiply_bulk<B>(a, weights, rows, pieces, overlap, comm::NoSender{});
#endif
}

template <int kRowTiles, bool aligned>
__global__ __launch_bounds__(kFallbackWarps* kWarp) void skinny_gemm_fallback(Args a) {
    multiply_and_finish<kRowTiles, aligned>(a, comm::NoSender{});
}

struct Kernels {
    static constexpr int kApiece = 1;
    template <int kColumns, int kRowTiles, int kStages, int kConsumers, bool kClusters>
    static auto bulk() {
        return skinny_gemm_bulk<kColumns, kRowTiles, kStages, kConsumers, kClusters>;
    }
    template <int kRowTiles, bool aligned>
    static auto fallback() {
        return skinny_gemm_fallback<kRowTiles, aligned>;
    }
};

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda

namespace rocm_fp8::skinny_gemm {

Status launch(const Args& args, const Executor& on) { return cuda::Launcher<cuda::Kernels>::launch(args, on); }

}  // namespace rocm_fp8::skinny_gemm
