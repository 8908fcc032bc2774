// What code shared by backends has by the same names, whatever compiles it:
//
//     global<T>(p)        memory of a launch's operands
//     load_scalar(p)      a float32 that all lanes need
//     Pairs<type>         pairs of 16-bit floats: widen (all backends); round, add, mul, ... (GPUs)
//     f32x2, both, fma, * pairs of floats                           (GPUs)
//     kLanes, uniform, sum_over_lanes, of_lane_of_sum, max_over_lanes   a wave or warp  (GPUs)
//     QuantizationScale, quantize_vector   FP8                      (GPUs)
#pragma once

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>

#include "hip/dpp.h"
#include "hip/half_pairs.h"
#include "hip/quantize.h"
#elif defined(__CUDACC__)
#include "cuda/half_pairs.h"
#include "cuda/quantize.h"
#include "cuda/vector.h"
#else
#include "cpu/half.h"
#endif
