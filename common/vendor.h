// What code shared by backends has by the same names, whatever compiles it:
//
//     global<T>(p)        memory of a launch's operands
//     Pairs<type>         pairs of 16-bit floats: widen (all backends); round, add, mul, ... (GPUs)
//     f32x2, both, fma, * pairs of floats                           (GPUs)
//     kLanes, uniform, sum_over_lanes, kLaneOfSum   a wave or warp  (GPUs)
#pragma once

#if defined(__HIPCC__)
#include "hip/dpp.h"
#include "hip/half_pairs.h"
#elif defined(__CUDACC__)
#include "cuda/half_pairs.h"
#include "cuda/vector.h"
#else
#include "cpu/half.h"
#endif
