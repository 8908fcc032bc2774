// C = A B^T for up to 32 rows on NVIDIA GPUs: the launcher.
#include <cudaTypedefs.h>

#include "../common/cuda/device.h"
#include "skinny_gemm_bulk.h"
#include "skinny_gemm_cuda_config.h"
#include "skinny_gemm_forced.h"
#include "skinny_gemm_plain.h"

namespace rocm_fp8 {
namespace {

// Makes the description of a matrix [rows, k] of bytes by which the copy engine takes tiles of kRowBytes by `height`.
Status describe(CUtensorMap* map, const void* data, int64_t rows, int64_t k, int64_t stride, int height) {
    static const auto encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found{};
        const cudaError_t code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(code == cudaSuccess ? function : nullptr);
    }();
    if (!encode) return {"the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12"};
    const cuuint64_t size[] = {cuuint64_t(k), cuuint64_t(rows)}, strides[] = {cuuint64_t(stride)};
    const cuuint32_t box[] = {kRowBytes, cuuint32_t(height)}, element_strides[] = {1, 1};
    const CUresult code = encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), size, strides, box, element_strides,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return code == CUDA_SUCCESS ? Status{} : Status{"cuTensorMapEncodeTiled refuses the sizes or strides"};
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

Status launch_bulk(const SkinnyGemmArgs& a, const Chip& chip, const SkinnyGemmCudaConfig& config, const Executor& on) {
    const BulkChoice choice = bulk_kernel(config.shape, a.m);
    const int columns = kBulkShapes[config.shape].columns;
    CUtensorMap weights, rows;
    if (const Status s = describe(&weights, a.b, a.n, a.k, a.b_stride, columns); !s.ok()) return s;
    if (const Status s = describe(&rows, a.a, a.m, a.k, a.a_stride, choice.rows); !s.ok()) return s;
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
    if (config.shape != kPlain) return launch_bulk(args, chip, config, on);
    const int64_t blocks = (args.n + kMmaColumns - 1) / kMmaColumns;
    return launch(aligned ? plain_kernel<true>(args.m) : plain_kernel<false>(args.m), chip, {blocks, kPlainWarps * kWarp}, on, args);
}

}  // namespace rocm_fp8
