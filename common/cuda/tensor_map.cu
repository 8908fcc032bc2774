#include "tensor_map.h"

#include <cuda_runtime.h>
#include <cudaTypedefs.h>

namespace rocm_fp8 {
namespace {

bool encode(CUtensorMap* map, const ByteMatrix& m) {
    static const auto function = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result{};
        const cudaError_t code =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(code == cudaSuccess ? found : nullptr);
    }();
    if (!function) return false;
    const int64_t stride = m.rows == 1 ? (m.k + 15) / 16 * 16 : m.stride;  // any that TMA takes
    const int64_t group_stride = m.groups <= 1 ? stride * m.rows : m.group_stride;
    // Weights of groups are read once: 256 bytes at a time from HBM, the next tile's with this one's, save 4 % (H100).
    const auto promotion = m.groups ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE;
    const cuuint64_t size[] = {cuuint64_t(m.k), cuuint64_t(m.rows), cuuint64_t(m.groups)},
                     strides[] = {cuuint64_t(stride), cuuint64_t(group_stride)};
    const cuuint32_t box[] = {cuuint32_t(m.width), cuuint32_t(m.height), 1}, element_strides[] = {1, 1, 1};
    return function(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, m.groups ? 3 : 2, const_cast<void*>(m.data), size, strides, box,
                    element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// A direct-mapped cache: a model's weights are a few hundred matrices, at addresses that are multiples of 512 bytes.
struct CachedMap {
    ByteMatrix matrix{};
    CUtensorMap map;
};
constexpr uint32_t kCachedMaps = 1024;

uint32_t set_of(const ByteMatrix& m) {
    const uint64_t mixed = (reinterpret_cast<uintptr_t>(m.data) >> 4) * 0x9E3779B97F4A7C15u + uint64_t(m.height);
    return uint32_t(mixed >> 40) % kCachedMaps;
}

}  // namespace

bool describe(CUtensorMap* map, const ByteMatrix& matrix) {
    static thread_local CachedMap* const cache =
        new CachedMap[kCachedMaps];  // 192 KiB, never freed: launching threads live long
    CachedMap& entry = cache[set_of(matrix)];
    if (!(entry.matrix == matrix)) {
        entry.matrix = {};
        if (!encode(&entry.map, matrix)) return false;
        entry.matrix = matrix;
    }
    *map = entry.map;
    return true;
}

}  // namespace rocm_fp8
