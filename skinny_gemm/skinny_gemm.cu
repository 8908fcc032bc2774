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
// H200, microseconds a launch in a graph, m = 1 / 8 / 16 / 32 (2026-11-21; floor at 4.47 TB/s; as shipped, benchmarks/cuda.py):
//   n x k           floor   as shipped, b constant     b may change               torch._scaled_mm
//   2304 x 16384     8.4    11.3  11.5  12.0  13.2     12.4  12.3  12.9  14.4     15.3  15.4  15.6  15.4
//   4096 x 4096      3.8     6.0   6.0   6.1   6.5      5.9   5.8   6.1   7.1      7.3   7.1   7.2   7.3
//   13312 x 16384   48.8    54.2  53.4  54.6  63.2     54.2  53.5  55.0  64.5     56.1  52.9  53.7  54.9
//   16384 x 6656    24.4    24.6  25.0  25.8  29.6     26.3  26.7  27.6  31.9     27.4  27.5  27.8  28.3
//   28672 x 4096    26.3    27.6  28.2  29.1  36.3     30.2  30.3  32.0  37.7     29.5  29.6  29.9  30.5
//
// Versions, 16384 x 6656, m = 1 and 32 (b constant from 3 on):
//   1  four warps, 128 columns a block, K split over a cluster                27.0   34.2
//   2  eight warps of 32 columns and 64 k each; two blocks a multiprocessor   26.5   31.9
//   3  the first round of weights before the wait for the kernel before       24.7   29.4
//   4  the next kernel may start in the tail instead of at once               24.3   31.2 (4096 x 4096: 8.3 -> 6.6)
// Tried and dropped: stream-K over all multiprocessors with hand-over through memory (28.3, 37.9: its tail costs 2 us);
// wgmma with the rows widened once a block (25.3, 35.6: more shared memory, so less in flight); blocks starting at
// different k (25.1, 32.7); fetching to L2 before the wait without the promise (no change).
//
// What is left at m = 32: with all kernels overlapping (a test without the wait, not a right kernel) m = 1 runs at 4.7 TB/s
// and m = 32 at 3.1 to 4.2: the multiplying warps, not memory, set the pace; 80 % of a multiprocessor's time is used
// because blocks end at different times.
#include <cudaTypedefs.h>

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

using BulkKernel = void (*)(SkinnyGemmArgs, CUtensorMap, CUtensorMap);

struct BulkChoice {
    BulkKernel kernel;
    int threads, shared_bytes, rows;
};

template <int columns, int row_tiles, int slots>
BulkChoice bulk_choice() {
    using B = Bulk<columns, row_tiles, slots>;
    constexpr int kAlignment = 1024;
    return {skinny_gemm_bulk<columns, row_tiles, slots>, B::kThreads, int(sizeof(typename B::Shared)) + kAlignment, B::kRows};
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
    const cudaError_t code = cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, choice.shared_bytes);
    if (code != cudaSuccess) return {cudaGetErrorString(code)};
    const int64_t blocks = (a.n + columns - 1) / columns * config.splits;
    return launch(choice.kernel, chip, {blocks, choice.threads, config.splits, choice.shared_bytes}, on, a, weights, rows);
}

}  // namespace

Status launch_skinny_gemm(const SkinnyGemmArgs& args, const Executor& on) {
    if (args.m == 0 || args.n == 0) return {};
    if (args.m > kSkinnyGemmMaxRows) return {"a has more rows than one launch takes"};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    if (args.format != DType::e4m3fn) return {"a: dtype float8_e4m3fnuz; NVIDIA GPUs multiply float8_e4m3fn"};
    const bool aligned = args.k % kChunk == 0 && rows_aligned(args.a, args.a_stride) && rows_aligned(args.b, args.b_stride);
    SkinnyGemmCudaConfig config = pick_cuda_config(args.n, args.k, chip.multiprocessors, aligned && chip.hopper());
    const SkinnyGemmCudaConfig own = config;
    if (const Status s = read_forced_config(kBulkShapeCount, kMaxClusterSplits, &config.shape, &config.splits); !s.ok()) return s;
    if (own.shape == kPlain && config.shape != kPlain) {
        return {"ROCM_FP8_KERNELS_GEMM names a shape that cannot take these arguments"};
    }
    return config.shape == kPlain ? launch_plain(args, chip, aligned, on) : launch_bulk(args, chip, config, on);
}

}  // namespace rocm_fp8
