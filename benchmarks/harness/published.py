"""Microseconds that others have published for these operators on an MI300X: facts to compare with.

Source: "Creating custom kernels for the AMD MI300", Hugging Face and AMD, 2025, the tables of its three sections
"Results". GEMM: FP8 weights, a graph over weights in turn, 500 launches to warm up, 2000 timed. Rows: float16, a graph
that repeats one call on the same tensors. RMSNorm has rows of 16384. Of SwiGLU the width is not certain: the article
says 16384 for the input, the scripts 13312; simulator/calibration/sources.py says what speaks for the latter.
"""

from dataclasses import dataclass

SOURCE = '"Creating custom kernels for the AMD MI300" (Hugging Face and AMD, 2025)'
SWIGLU_WIDTH = 6656  # of the result


@dataclass(frozen=True)
class Published:
    kernel_us: float  # the article's own kernel
    torch_us: float
    vllm_us: float | None = None
    kernel_spread_us: float | None = None
    torch_spread_us: float | None = None


ROWS = tuple(2**i for i in range(12))

# Residual + RMSNorm + FP8, by rows.
ADD_RMS_NORM_FP8 = {
    1: Published(4.18138, 38.8998, 5.5145),
    2: Published(4.36976, 43.2469, 5.65645),
    4: Published(4.37628, 41.1304, 5.6893),
    8: Published(4.39081, 43.8883, 5.72275),
    16: Published(4.48165, 46.8876, 5.85667),
    32: Published(4.72017, 55.2276, 6.08502),
    64: Published(5.54214, 75.6086, 6.4629),
    128: Published(6.27341, 98.1122, 7.49166),
    256: Published(10.739, 119.727, 11.8812),
    512: Published(18.5549, 195.782, 23.1595),
    1024: Published(34.7204, 355.42, 44.8143),
    2048: Published(73.35, 671.513, 81.2089),
}

# SwiGLU + FP8, by rows.
SWIGLU_FP8 = {
    1: Published(1.92981, 40.2731, 3.84116),
    2: Published(1.93904, 29.923, 3.86192),
    4: Published(1.93524, 35.305, 3.92937),
    8: Published(1.99316, 23.5763, 3.94151),
    16: Published(2.00415, 22.4738, 4.01047),
    32: Published(1.91563, 25.3445, 4.02421),
    64: Published(2.04498, 31.5829, 4.08943),
    128: Published(2.61763, 40.3194, 4.20317),
    256: Published(3.57726, 53.5369, 4.48755),
    512: Published(5.47608, 79.8037, 7.48465),
    1024: Published(10.0482, 124.873, 13.7389),
    2048: Published(19.8957, 243.202, 25.4306),
}

# Skinny GEMM, by (M, N, K).
SKINNY_GEMM = {
    (1, 2304, 16384): Published(11.685, 14.938, None, 0.299, 0.292),
    (8, 2304, 16384): Published(12.342, 16.300, None, 0.375, 0.282),
    (16, 2304, 16384): Published(13.909, 16.693, None, 0.295, 0.233),
    (32, 2304, 16384): Published(17.021, 16.817, None, 0.133, 0.124),
    (1, 13312, 16384): Published(54.717, 77.636, None, 0.628, 0.364),
    (8, 13312, 16384): Published(58.355, 80.031, None, 0.612, 0.449),
    (16, 13312, 16384): Published(59.973, 75.236, None, 1.922, 0.378),
    (32, 13312, 16384): Published(69.483, 82.198, None, 1.672, 0.590),
    (1, 16384, 6656): Published(27.613, 31.066, None, 0.218, 0.193),
    (8, 16384, 6656): Published(28.134, 31.559, None, 0.209, 0.200),
    (16, 16384, 6656): Published(30.233, 31.671, None, 0.267, 0.250),
    (32, 16384, 6656): Published(35.052, 35.561, None, 1.365, 0.335),
}
