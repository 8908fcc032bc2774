// Instructions of Hopper and later chips in sources that are compiled for earlier ones as well. There they are nothing:
// kernels that cannot do without are never launched there.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define ROCM_FP8_HOPPER(...)
#else
#define ROCM_FP8_HOPPER(...) asm volatile(__VA_ARGS__)
#endif
