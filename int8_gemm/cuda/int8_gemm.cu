// int8_gemm on NVIDIA GPUs: exact int32 sums and the epilogue, for every layout, size and chip.
//
//     HBM, L2 --> cp.async: 64 to 512 k of rows of both operands a stage --> ring in shared memory
//             --> mma.sync, int32 sums in registers --> shared memory (with few rows warps have parts of k: added)
//             --> epilogue.h, four columns a lane --> result
//
// Operands that are not aligned to 16 bytes are read byte by byte. It is one kernel for all chips; Hopper's wgmma would
// multiply twice as fast where there are many rows. Files: kernel.h; config.h tiles and their choice.
// Steps: docs/journal/int8_gemm-cuda.md.
#include <atomic>

#include "../../common/cuda/device.h"
#include "../../common/gpu/kernel_at.h"
#include "kernel.h"

namespace rocm_fp8::int8_gemm {
namespace {

using namespace cuda;

struct Choice {
    void (*kernel)(Args, int64_t, int64_t);
    std::atomic<uint64_t>* allowed;  // the devices, a bit each, on which the kernel may have its shared memory
};

template <bool vectors>
Choice choice_of(int tile) {
    return kernel_at<kTileCount>(tile, [&]<int i>() {
        static std::atomic<uint64_t> allowed;
        return Choice{int8_gemm_tiles<i, vectors>, &allowed};
    });
}

bool in_vectors(const Operand& x) {
    return (reinterpret_cast<uintptr_t>(x.data) | uint64_t(x.row_stride) | uint64_t(x.batch_stride)) % 16 == 0;
}

}  // namespace

Status launch(const Args& args, const Executor& on) {
    if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    const int index = pick_tile(args.batch, args.m, args.n, chip.multiprocessors);
    const Tile& tile = kTiles[index];
    const int64_t row_tiles = ceil_div(args.m, tile.rows), column_tiles = ceil_div(args.n, tile.columns);
    if (row_tiles * column_tiles > kMaxCtas / args.batch) return {"a and b have more rows than one launch takes"};
    const Choice choice = in_vectors(args.a) && in_vectors(args.b) ? choice_of<true>(index) : choice_of<false>(index);
    const uint64_t device = chip.device < 64 ? uint64_t(1) << chip.device : 0;
    if (!(choice.allowed->load(std::memory_order_relaxed) & device)) {
        const cudaError_t code = cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                      tile.shared_bytes() + 1024);
        if (code != cudaSuccess) return {cudaGetErrorString(code)};
        choice.allowed->fetch_or(device, std::memory_order_relaxed);
    }
    return launch_kernel(choice.kernel, chip,
                         {row_tiles * column_tiles * args.batch, tile.threads(), 1, tile.shared_bytes()}, on, args,
                         row_tiles, column_tiles);
}

}  // namespace rocm_fp8::int8_gemm
