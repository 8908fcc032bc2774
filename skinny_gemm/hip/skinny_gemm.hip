// C = A B^T for up to 32 rows (m) in FP8 on MI300X (gfx942) and MI350 (gfx950): the launcher.
//
// Bytes: n k of weights, read once. A (m k, at most 512 KiB at k = 16384) comes from the caches. Floor: n k at the
// read rate of HBM; estimated for an MI300X (4.0 TB/s) 9.4 us at 2304 x 16384, 54.5 us at 13312 x 16384.
//
// The kernel is common/gemm/hip/stream.h with sums over all of K. The waves of a workgroup have its blocks in turn, so
// that together they read neighbouring lines. The fallback takes any layout, with loads from any address.
//
// Files: skinny_gemm.hip   kernels;  kernel.h: their body;  launch.h: launcher;  send.hip: for sums over ranks
//        config.h          which shape and split-K, by a model
//
// Limit today: unknown, nothing has been measured on an AMD GPU. By the simulator's clock it is HBM at every size of
// the tables; at the smallest two microseconds are the launch and latencies.
//
// Steps and estimates: docs/journal/skinny_gemm-hip.md.
#include "launch.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

template <int index>
__global__ __launch_bounds__(Fast<index>::threads, Fast<index>::waves_per_simd) void skinny_gemm_stream(
    const uint8_t* a, const uint8_t* b, uint32_t a_stride, uint32_t b_stride, int m, int n, uint32_t k, int blocks,
    int longer, uint32_t divisor, uint32_t factor, uint32_t shift, StreamArgs) {
    multiply_stream<index, StreamLaunch>({a, b, a_stride, b_stride, m, n, k, blocks, longer, {divisor, factor, shift}});
}

template <int index>
__global__ __launch_bounds__(Any<index>::threads) void skinny_gemm_fallback(StreamWork work, StreamArgs,
                                                                            gemm::Operand a, gemm::Operand b) {
    multiply_any<index, StreamLaunch>(work, a, b);
}

struct Kernels {
    template <int index>
    static auto stream() {
        return skinny_gemm_stream<index>;
    }
    template <int index>
    static auto any() {
        return skinny_gemm_fallback<index>;
    }
};

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip

namespace rocm_fp8::skinny_gemm {

Status launch(const Args& args, const Executor& on) { return hip::launch_by<hip::Kernels>(args, on); }

}  // namespace rocm_fp8::skinny_gemm
