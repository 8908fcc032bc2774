"""Problems of the int8 operators: sizes, values, scales, how operands lie in memory."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from tests.problems.buffers import Guarded
from tests.problems.inputs import normal, short

INT8 = torch.int8
RESULTS = (torch.bfloat16, torch.float16, torch.float32, INT8)
# More products of -128 and -128 do not fit into int32.
MOST_K = 131071

# Nothing; few rows, which are computed alone; tiles and remainders; more than one block of rows of a GPU.
M = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 65, 130, 260)
# Less than a tile; a CPU's block of columns and what surrounds it; head sizes; a GPU's tile and what surrounds it.
N = (1, 3, 11, 12, 13, 24, 37, 64, 80, 127, 128, 129, 200)
# An operand's step and what surrounds it; head sizes; a block and what surrounds it; several.
K = (1, 15, 16, 17, 31, 63, 64, 65, 80, 128, 130, 255, 256, 257, 512, 513, 1100, 2048, 2049, 4100)


# --- values ---


def any_bytes(shape, generator) -> torch.Tensor:
    return torch.randint(-128, 128, tuple(shape), generator=generator).to(INT8)


def extremes(shape, generator) -> torch.Tensor:
    """-128 and 127: the largest products, which instructions with saturating sums get wrong."""
    return torch.where(torch.rand(tuple(shape), generator=generator) < 0.7, -128, 127).to(INT8)


def lowest(shape, generator) -> torch.Tensor:
    return torch.full(tuple(shape), -128, dtype=INT8)


VALUES = (any_bytes, any_bytes, extremes, lowest)

# --- scales: shapes of an operand's with so many rows ---

SHAPES: dict[str, Callable[[int, bool], tuple[int, ...]]] = {
    "zero-dim": lambda rows, column: (),
    "one": lambda rows, column: (1,),
    "flat": lambda rows, column: (rows,),
    "vector": lambda rows, column: (rows, 1) if column else (1, rows),
}


def spread(shape, generator, k: int) -> torch.Tensor:
    """Scales of both signs by which most results of K products are neither 0 nor saturated."""
    return torch.randn(tuple(shape), generator=generator) * (0.1 / k**0.25)


# How a tensor of rows lies: dense; rows apart; off any alignment.
LAYOUTS = {"dense": {}, "apart": dict(pad=64), "padded": dict(pad=37, shift=3)}


class Case(NamedTuple):
    """Sizes, types and kinds of one call."""

    m: int
    n: int
    k: int
    dtype: torch.dtype  # of the result
    scale_a: str
    scale_b: str
    bias: torch.dtype | None
    zero: str | None  # the shape of zero_a
    activation: str | None
    divided: bool  # by scale_out, where the result is int8
    values: Callable
    layout_a: str
    layout_b: str
    layout: str

    @property
    def id(self) -> str:
        bias = "nobias" if self.bias is None else short(self.bias)
        names = (short(self.dtype), self.scale_a, self.scale_b, bias, self.zero, self.activation, self.divided)
        layouts = (self.values.__name__, self.layout_a, self.layout_b, self.layout)
        return f"{self.m}x{self.n}x{self.k}-" + "-".join(map(str, (*names, *layouts)))


class Inputs(NamedTuple):
    """Arguments of int8_gemm: the first five are positional."""

    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor
    scale_b: torch.Tensor
    bias: torch.Tensor | None
    options: dict

    def to(self, device) -> "Inputs":
        moved = (None if t is None else t.to(device) for t in self[:5])
        kept = {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in self.options.items()}
        return Inputs(*moved, kept)


def draw(case: Case, generator) -> Inputs:
    a, b = (case.values((rows, case.k), generator) for rows in (case.m, case.n))
    scale_a = spread(SHAPES[case.scale_a](case.m, True), generator, case.k)
    scale_b = spread(SHAPES[case.scale_b](case.n, False), generator, case.k)
    options: dict = dict(activation=case.activation)
    if case.zero is not None:
        options["zero_a"] = torch.randint(-128, 128, SHAPES[case.zero](case.m, True), generator=generator).int()
        options["sum_b"] = b.sum(-1, dtype=torch.int32)
    if case.divided and case.dtype == INT8:
        options["scale_out"] = torch.rand(1, generator=generator) + 0.3
    bias = None if case.bias is None else normal((case.n,), case.bias, generator, 20.0)
    return Inputs(a, b, scale_a, scale_b, bias, options)


def run(module, inputs: Inputs, **kwargs) -> torch.Tensor:
    """By the kernel or by its reference."""
    return module.int8_gemm(*inputs[:5], **inputs.options, **kwargs)


def placed(values: torch.Tensor, device, how: str) -> Guarded:
    return Guarded(values.shape, values.dtype, device, **LAYOUTS[how]).holding(values.to(device))


def special_rows(dtype: torch.dtype, d: int, generator) -> torch.Tensor:
    """Rows for quantisation: of both signs, of one, of zeros, tiny, with NaN and infinities, of the largest."""
    x = normal((10, d), torch.float32, generator, 3.0)
    x[1], x[2], x[3] = x[1].abs() + 1, -x[2].abs() - 1, 0
    x[4] *= 1e-12
    x[5, :: max(1, d // 3)] = torch.nan
    x[6, 0], x[6, -1] = torch.inf, -torch.inf
    x[7] = torch.nan
    x[8] = torch.tensor([torch.finfo(dtype).max, -torch.finfo(dtype).max]).repeat(d)[:d]
    x[9, 0] = -0.0
    return x.to(dtype)
