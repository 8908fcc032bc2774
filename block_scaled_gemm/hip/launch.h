// What the launchers of all kernels share.
#pragma once

#include "../../common/gemm/hip/work.h"
#include "../block_scaled_gemm.h"
#include "config.h"

namespace rocm_fp8::block_scaled_gemm::hip {

// mode: whether scale_b is a scale a channel, which the epilogue multiplies by.
using Launch = gemm::hip::TileLaunch<Args>;
using TileKernel = void (*)(Launch);

// How a kernel reads operands and scales. fast: 128-bit loads, scale_b of squares, of channels, or one. transposed: the
// same, with rows instead of k contiguous in one operand or both. per_column: 128-bit loads, scale_b of single columns of
// a block. strided: any strides and alignment, any scales.
enum class Access { fast, transposed, per_column, strided };

// transposed.hip: of kTileShapes[shape]; at least one operand is transposed.
const void* transposed_kernel(int shape, bool transposed_a, bool transposed_b);

// direct.hip: of kDirectShapes[shape], on gfx950.
const void* direct_kernel(int shape);

// stream.hip. config: of a stream. Access::fast: float32 scales, none of channels.
Status launch_stream(const Args& args, Access access, const Config& config, bool channels, const Executor& on);

}  // namespace rocm_fp8::block_scaled_gemm::hip
