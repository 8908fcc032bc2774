"""Problems of skinny_gemm: sizes, kinds of scales, inputs, and the check against float64."""

import torch

from problems import gemm
from problems.comparisons import assert_gemm_close
from problems.gemm import VECTOR, Gemm, Problem, Scaling, assert_close, draw_fp8_case, fp8_cases, no_bias
from problems.inputs import positive, random_fp8

# Nothing; each count that has code of its own on some backend; powers of two and what surrounds them; the most.
M = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32)
# Less than a tile of columns, a tile and one more, several, several and a remainder.
N = (1, 3, 5, 12, 13, 64, 130)
# One 16-byte load and what surrounds it; slices of 64 and 256 likewise; a model's.
K = (1, 2, 15, 16, 17, 31, 63, 64, 65, 100, 255, 256, 257, 576, 4096)

SHAPES, PLACES = ("one", "one-2d", "flat", "vector"), ("dense", "strided")
SCALES = (*map(Scaling, SHAPES), Scaling("vector", positive, "strided"))


# The numbers of rows for which one configuration serves, so that a row's bits are the same.
def row_classes(backend: str) -> tuple[tuple[int, ...], ...]:
    ends = ((1, 8), (9, 16), (17, 32)) if backend == "rocm" else ((1, 32),)
    return tuple(tuple(range(least, most + 1)) for least, most in ends)


class Inputs(gemm.Inputs):
    def assert_right(self, out: torch.Tensor, what: str) -> None:
        assert_gemm_close(out, *self.operands(), what)


def draw(problem: Problem, generator, scale_a=VECTOR, scale_b=VECTOR, bias=no_bias, values=random_fp8) -> Inputs:
    return gemm.draw_fp8(Inputs, problem, generator, scale_a, scale_b, bias, values)


GEMM = Gemm(
    name="skinny_gemm",
    draw=draw,
    draw_case=draw_fp8_case(draw),
    assert_right=assert_close,
    cases=fp8_cases(M, N, K, shapes=SHAPES, values=(positive,), places=PLACES, operands=("dense", "padded")),
    rows=(1, 3, 4, 5, 8, 32),
    inner=(1, 17, 300),
    row_classes=row_classes,
    of_a_row=((13, 1), (12, 100), (130, 257), (37, 4096), (5, 8191)),
    uneven=((1, 1000, 4096), (4, 515, 1031), (32, 700, 2049)),
    alignment_counts=("rocm",),
    moved=((1, 37, 1000), (7, 37, 272), (32, 13, 257)),
)
run = GEMM.run
