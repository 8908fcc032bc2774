// What the launchers of both kernels share.
#pragma once

#include "../../common/gemm/hip/split_k.h"
#include "../block_scaled_gemm.h"
#include "config.h"

namespace rocm_fp8::block_scaled_gemm::hip {

// fast: 128-bit loads, scale_b of squares, of channels, or one. turned: the same, with rows instead of k contiguous in
// one operand or both (turned.h). per_column: 128-bit loads, scale_b of single columns of a block. careful: any strides
// and alignment, any scales.
enum class Form { fast, turned, per_column, careful };

// turned.hip: of kTileShapes[shape]; at least one operand is turned.
const void* turned_kernel(int shape, bool turned_a, bool turned_b);

// direct.hip: of kDirectShapes[shape], on gfx950.
const void* direct_kernel(int shape);

// stream.hip. config: of a stream. units: workgroups, by launched_size. Form::fast: float32 scales, none of channels.
// partial, arrived: where parts of K meet (SplitK).
Status launch_stream(const Args& args, Form form, const Config& config, int units, bool channels, float* partial,
                     uint32_t* arrived, const Executor& on);

}  // namespace rocm_fp8::block_scaled_gemm::hip
