// Instructions of Hopper and later, in sources that are compiled for earlier chips as well. There they compile to
// nothing. Kernels that depend on them are never launched there.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define ROCM_FP8_HOPPER(...)
#else
#define ROCM_FP8_HOPPER(...) asm volatile(__VA_ARGS__)
#endif
