// C = A B^T for up to 32 rows on NVIDIA GPUs: the launcher.
//
// Bytes: n k of weights, read once; A (m k at most 512 KiB at k = 16384) comes from L2.
//
//   skinny_gemm_bulk.h          Hopper and later: the copy engine fills a ring in shared memory
//   skinny_gemm_plain.h         the simple kernel: other chips, odd strides, small k
//   skinny_gemm_mma.h           matrix instructions and layouts;  skinny_gemm_finish.h: scales, bias, the result
//   skinny_gemm_cuda_config.h   which of them, with how many splits of K
//
// A decoding step is kernel after kernel, and each has to fill the memory's queues again: a launch, a ring's set-up and
// one latency, some 3 us here. Where the caller promises that b is constant, all of that and the first 80 KiB of weights
// a block happen while the kernel before ends.
//
// Versions, 16384 x 6656, microseconds on an H200, m = 1 and 32 (b constant from 3 on):
//   1  four warps, 128 columns a block, K split over a cluster                27.0   34.2
//   2  eight warps of 32 columns and 64 k each; two blocks a multiprocessor   26.5   31.9
//   3  the first round of weights before the wait for the kernel before       24.7   29.4
//   4  the next kernel may start in the tail instead of at once               24.3   31.2 (4096 x 4096: 8.3 -> 6.6)
//   5  scales of A read before they are needed, not in the last microsecond   24.6   31.0 (4096 x 4096: 5.9 -> 5.6)
//   6  at once where no multiprocessor is idle; two slots more into L2        24.3   30.0 (13312 x 16384: 54.4 -> 51.0)
//   7  warps of all 64 columns and 32 k: half the widening of rows; a slot is
//      free once it is read; no ninth warp where a thread needs registers     24.4   27.8
// (Runs on different days differ by up to 3 %; each step was seen in one run beside the step before.)
//
// Tried and dropped: stream-K over all multiprocessors with hand-over through memory (28.3, 37.9: its tail costs 2 us);
// wgmma with the rows widened once a block, by way of the copy engine (25.3, 35.6) or of registers (30.6, 39.7: one
// warp group in step with itself waits at every slot); as many blocks as multiprocessors, all of one size (27.2, 33.6:
// eight warps take 0.35 us a slot, one after the other; 4096 x 4096: no change); 128 columns a block (13 % less at
// 28672 x 4096, m = 32, but other bits than with fewer rows); the rows' first chunks by loads instead of the copy
// engine (4096 x 4096: 5.5 -> 5.7, m = 32: 6.1 -> 8.3); the warp that is last out of a slot refills it, found by a
// counter (5 % slower than a barrier); blocks starting at different k (25.1, 32.7).
//
// What is left: blocks start 0.5 us after the kernel before has ended and have the rows 0.7 us later; m = 32 runs at 83 to
// 88 % of the read rate because its multiplications (a third of what the tensor cores can do) overlap the copies
// imperfectly: without them the same copies take 25.4 us here.
#include <cudaTypedefs.h>

#include <atomic>

#include "../common/cuda/device.h"
#include "skinny_gemm_bulk.h"
#include "skinny_gemm_cuda_config.h"
#include "skinny_gemm_forced.h"
#include "skinny_gemm_plain.h"

namespace rocm_fp8 {
namespace {

// Makes the description of a matrix [rows, k] of bytes by which the copy engine takes tiles of kRowBytes by `height`; false
// where it takes none (an overlapping layout, a driver older than CUDA 12).
bool describe(CUtensorMap* map, const void* data, int64_t rows, int64_t k, int64_t stride, int height) {
    static const auto encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found{};
        const cudaError_t code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(code == cudaSuccess ? function : nullptr);
    }();
    if (!encode) return false;
    const cuuint64_t size[] = {cuuint64_t(k), cuuint64_t(rows)}, strides[] = {cuuint64_t(stride)};
    const cuuint32_t box[] = {kRowBytes, cuuint32_t(height)}, element_strides[] = {1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), size, strides, box, element_strides,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

using BulkKernel = void (*)(SkinnyGemmArgs, CUtensorMap, CUtensorMap, bool);

struct BulkChoice {
    BulkKernel kernel;
    int threads, shared_bytes, rows;
    std::atomic<uint64_t>* allowed;  // the devices, a bit each, on which the kernel may have that much shared memory
};

template <int columns, int row_tiles, int slots>
BulkChoice bulk_choice() {
    using B = Bulk<columns, row_tiles, slots>;
    constexpr int kAlignment = 1024;
    static std::atomic<uint64_t> allowed;
    return {skinny_gemm_bulk<columns, row_tiles, slots>, B::kThreads, int(sizeof(typename B::Shared)) + kAlignment, B::kRows,
            &allowed};
}

template <int index = 0>
BulkChoice bulk_kernel(int shape, int64_t m) {
    if constexpr (index < kBulkShapeCount) {
        if (shape != index) return bulk_kernel<index + 1>(shape, m);
        constexpr BulkShape s = kBulkShapes[index];
        return m <= 8    ? bulk_choice<s.columns, 1, s.slots8>()
               : m <= 16 ? bulk_choice<s.columns, 2, s.slots16>()
                         : bulk_choice<s.columns, 4, s.slots32>();
    } else {
        return {};
    }
}

template <bool aligned>
void (*plain_kernel(int64_t m))(SkinnyGemmArgs) {
    return m <= 8 ? skinny_gemm_plain<1, aligned> : m <= 16 ? skinny_gemm_plain<2, aligned> : skinny_gemm_plain<4, aligned>;
}

Status launch_plain(const SkinnyGemmArgs& a, const Chip& chip, bool aligned, const Executor& on) {
    const int64_t blocks = (a.n + kMmaColumns - 1) / kMmaColumns;
    return launch(aligned ? plain_kernel<true>(a.m) : plain_kernel<false>(a.m), chip, {blocks, kPlainWarps * kWarp}, on, a);
}

Status launch_bulk(const SkinnyGemmArgs& a, const Chip& chip, const SkinnyGemmCudaConfig& config, const Executor& on) {
    const BulkChoice choice = bulk_kernel(config.shape, a.m);
    const int columns = kBulkShapes[config.shape].columns;
    CUtensorMap weights, rows;
    if (!describe(&weights, a.b, a.n, a.k, a.b_stride, columns) || !describe(&rows, a.a, a.m, a.k, a.a_stride, choice.rows)) {
        return launch_plain(a, chip, true, on);
    }
    const uint64_t device = chip.device < 64 ? uint64_t(1) << chip.device : 0;
    if (!(choice.allowed->load(std::memory_order_relaxed) & device)) {
        const cudaError_t code =
            cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, choice.shared_bytes);
        if (code != cudaSuccess) return {cudaGetErrorString(code)};
        choice.allowed->fetch_or(device, std::memory_order_relaxed);
    }
    const int64_t blocks = (a.n + columns - 1) / columns * config.splits;
    // Where the next kernel finds idle multiprocessors it would put two of its blocks there: in the tail only.
    const bool early = blocks > chip.multiprocessors;
    return launch(choice.kernel, chip, {blocks, choice.threads, config.splits, choice.shared_bytes}, on, a, weights, rows, early);
}

}  // namespace

Status launch_skinny_gemm(const SkinnyGemmArgs& args, const Executor& on) {
    if (args.m == 0 || args.n == 0) return {};
    if (args.m > kSkinnyGemmMaxRows) return {"a has more rows than one launch takes"};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    if (args.format != DType::e4m3fn) return {"a: dtype float8_e4m3fnuz; NVIDIA GPUs multiply float8_e4m3fn"};
    const bool aligned = args.k % kChunk == 0 && rows_aligned(args.a, args.a_stride) && rows_aligned(args.b, args.b_stride);
    SkinnyGemmCudaConfig config = pick_cuda_config(args.m, args.n, args.k, chip.multiprocessors, aligned && chip.hopper());
    const SkinnyGemmCudaConfig own = config;
    if (const Status s = read_forced_config(kBulkShapeCount, kMaxClusterSplits, &config.shape, &config.splits); !s.ok()) return s;
    if (own.shape == kPlain && config.shape != kPlain) {
        return {"ROCM_FP8_KERNELS_GEMM names a shape that cannot take these arguments"};
    }
    return config.shape == kPlain ? launch_plain(args, chip, aligned, on) : launch_bulk(args, chip, config, on);
}

}  // namespace rocm_fp8
