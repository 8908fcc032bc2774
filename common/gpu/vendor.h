// What HIP and CUDA kernels have by the same names, so that what is the same in both stands once:
//
//     f32x2, both, fma, *   pairs of floats           Pairs<type>       pairs of 16-bit floats
//     global<T>(p)          global memory             kLanes, uniform, sum_over_lanes, kLaneOfSum
#pragma once

#if defined(__HIPCC__)
#include "../hip/half_pairs.h"
#include "../hip/dpp.h"
#else
#include "../cuda/half_pairs.h"
#include "../cuda/vector.h"
#endif
