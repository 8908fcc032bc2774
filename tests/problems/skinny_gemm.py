"""Problems of skinny_gemm: sizes, kinds of scales and biases, inputs, and the check against float64."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch

from tests.problems.comparisons import assert_gemm_close
from tests.problems.inputs import FLOATS, normal, positive, random_fp8, short


@dataclass(frozen=True)
class Problem:
    m: int
    n: int
    k: int
    format: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.m}x{self.n}x{self.k}-{short(self.format)}"


# Nothing; each count that has code of its own on some backend; powers of two and what surrounds them; the most.
M = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32)
# Less than a tile of columns, a tile and one more, several, several and a remainder.
N = (1, 3, 5, 12, 13, 64, 130)
# One 16-byte load and what surrounds it; slices of 64 and 256 likewise; a model's.
K = (1, 2, 15, 16, 17, 31, 63, 64, 65, 100, 255, 256, 257, 576, 4096)


# The numbers of rows for which one configuration serves, so that a row's bits are the same.
def row_classes(backend: str) -> tuple[range, ...]:
    return (range(1, 9), range(9, 17), range(17, 33)) if backend == "rocm" else (range(1, 33),)


class Case(NamedTuple):
    """A problem, the kinds of its operands, and how they lie in memory."""

    m: int
    n: int
    k: int
    which_format: int  # of those that the device multiplies
    dtype: torch.dtype  # of the result
    scale_a: Callable
    scale_b: Callable
    bias: Callable
    values: Callable
    layout: str  # of a and the result
    layout_of_b: str

    @property
    def id(self) -> str:
        kinds = (self.scale_a, self.scale_b, self.bias, self.values)
        names = [short(self.dtype), *(kind.__name__ for kind in kinds), self.layout, self.layout_of_b]
        return f"{self.m}x{self.n}x{self.k}-{'-'.join(names)}-{self.which_format}"


@dataclass
class Inputs:
    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor
    scale_b: torch.Tensor
    bias: torch.Tensor | None

    def to(self, device) -> Self:
        return type(self)(*(None if t is None else t.to(device) for t in vars(self).values()))

    def rows(self, rows: slice | list[int]) -> Self:
        """The call of some rows alone."""
        scale_a = self.scale_a if self.scale_a.numel() == 1 else self.scale_a[rows]
        a = self.a.view(torch.uint8)[rows].view(self.a.dtype)  # a list of rows: not every torch indexes FP8 on a GPU
        return type(self)(a, self.b, scale_a, self.scale_b, self.bias)

    def assert_right(self, out: torch.Tensor, what: str) -> None:
        assert_gemm_close(out, self.a, self.b, self.scale_a, self.scale_b, self.bias, what)


# Scales: one element or a vector, the latter also as a column of a wider tensor and in one dimension.
def one(count: int, dim: int, g) -> torch.Tensor:
    return positive((), g)


def one_2d(count: int, dim: int, g) -> torch.Tensor:
    return positive((1, 1), g)


def vector(count: int, dim: int, g) -> torch.Tensor:
    return positive((count, 1) if dim == 0 else (1, count), g)


def flat(count: int, dim: int, g) -> torch.Tensor:
    return positive((count,), g)


def strided(count: int, dim: int, g) -> torch.Tensor:
    wide = positive((count, 3), g)[:, 1:2]
    return wide if dim == 0 else wide.t()


SCALES = (one, one_2d, vector, flat, strided)


def no_bias(n: int, g) -> None:
    return None


def bias_of(dtype: torch.dtype, step: int = 1):
    def bias(n: int, g) -> torch.Tensor:
        return normal((n * step,), dtype, g, 5.0)[::step]

    bias.__name__ = f"bias_{short(dtype)}{'_strided' if step > 1 else ''}"
    return bias


BIASES = (no_bias, *(bias_of(dtype) for dtype in FLOATS), *(bias_of(dtype, 3) for dtype in FLOATS))


def draw(problem: Problem, generator, scale_a=vector, scale_b=vector, bias=no_bias, values=random_fp8) -> Inputs:
    return Inputs(
        values((problem.m, problem.k), problem.format, generator),
        values((problem.n, problem.k), problem.format, generator),
        scale_a(problem.m, 0, generator),
        scale_b(problem.n, 1, generator),
        bias(problem.n, generator),
    )


def run(kernel, inputs: Inputs, **kwargs) -> torch.Tensor:
    return kernel.skinny_gemm(*vars(inputs).values(), **kwargs)


def assert_nan_stays_in_its_row_or_column(call: Callable[[Inputs], torch.Tensor], inputs: Inputs, generator) -> None:
    """One NaN in a or b: in the first, a middle and the last k. `call` gives float32."""
    of_e4m3fn, k = inputs.a.dtype == torch.float8_e4m3fn, inputs.a.shape[1]
    nan, negative_nan = (0x7F, 0xFF) if of_e4m3fn else (0x80, 0x80)
    clean = call(inputs)
    for column, code in ((0, nan), (k // 2, negative_nan), (k - 1, nan)):
        for side in (inputs.a, inputs.b):
            row = int(torch.randint(len(side), (), generator=generator))
            codes = side.view(torch.uint8)
            before = codes[row, column].clone()
            codes[row, column] = code
            # Zeros opposite do not hide it: 0 * NaN is NaN.
            got = call(inputs)
            codes[row, column] = before
            hit = torch.zeros_like(clean, dtype=torch.bool)
            (hit if side is inputs.a else hit.t())[row] = True
            assert torch.equal(got.isnan(), hit), f"k = {k}, column {column}"
            assert torch.equal(got[~hit], clean[~hit])
