"""Problems of the int8 operators: sizes, values, scales, how operands lie in memory."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from problems import gemm
from problems.buffers import same_bytes
from problems.gemm import Gemm, Problem, no_bias
from problems.inputs import FLOATS, normal, short
from problems.pairwise import SAMPLE, pairwise

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
LAYOUTS = ("dense", "apart", "padded")


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

    @property
    def layouts(self) -> tuple[str, ...]:
        return self.layout_a, self.layout_b, "dense", "dense"


@dataclass
class Inputs(gemm.Inputs):
    options: dict = field(default_factory=dict)


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


def simple(m: int, n: int, k: int, dtype=torch.float32, **changes) -> Case:
    case = Case(m, n, k, dtype, "vector", "vector", None, None, None, False, any_bytes, "dense", "dense", "dense")
    return case._replace(**changes)


def _draw_problem(problem: Problem, generator, scale_a="vector", scale_b="vector", bias=no_bias) -> Inputs:
    case = simple(problem.m, problem.n, problem.k, scale_a=scale_a, scale_b=scale_b)
    return replace(draw(case, generator), bias=bias(problem.n, generator))


def _assert_the_references_bytes(kernel, inputs: Inputs, out: torch.Tensor, what: str) -> None:
    assert same_bytes(out, GEMM.run(kernel.reference, inputs.to("cpu"), out_dtype=out.dtype)), what


GEMM = Gemm(
    name="int8_gemm",
    draw=_draw_problem,
    draw_case=lambda case, formats, generator: draw(case, generator),
    assert_right=_assert_the_references_bytes,
    cases=tuple(
        Case(*axes)
        for axes in pairwise(
            *(M, N, K, RESULTS, tuple(SHAPES), tuple(SHAPES), (None, *FLOATS), (None, None, *SHAPES), (None, "relu")),
            *((False, True), VALUES, LAYOUTS, LAYOUTS, LAYOUTS),
            seed=SAMPLE,
        )
    ),
    rows=(1, 3, 4, 5, 33, 130),
    inner=(1, 17, 128, 300),
    row_classes=lambda backend: ((1, 2, 3, 4, 5, 31, 64, 129, 200),),
    of_a_row=((60, 600),),
    uneven=((1, 1000, 4096), (4, 515, 1031), (33, 1000, 520), (600, 270, 700)),
    moved=((1, 37, 1000), (7, 37, 272), (33, 13, 257), (130, 140, 400)),
    one="zero-dim",
    vector="vector",
    of_rows=("vector",),
    results=RESULTS,
    own_format=INT8,
)
run = GEMM.run


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


def with_scale(made: torch.nn.Module, scale: float = 0.0125, zero: int = -37) -> torch.nn.Module:
    """An Int8Linear with a scale and a zero point of its own."""
    device = made.weight.device
    made.static, made.input_scale = True, torch.tensor([scale], device=device)
    made.input_zero_point = None if made.symmetric else torch.tensor([zero], dtype=torch.int32, device=device)
    return made
