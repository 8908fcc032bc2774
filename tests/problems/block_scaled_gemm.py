"""Problems of block_scaled_gemm: sizes, kinds of scales, how operands lie in memory, and the check against float64."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from tests.problems import skinny_gemm
from tests.problems.buffers import Guarded
from tests.problems.comparisons import assert_block_scaled_gemm_close
from tests.problems.inputs import positive, random_fp8, short
from tests.problems.skinny_gemm import Problem, no_bias

BLOCK = 128  # k of a block; rows of an operand that may share a scale
E8M0 = torch.float8_e8m0fnu


# Nothing; few rows; each end of a row class and what surrounds it; more than one block of rows.
M = (0, 1, 2, 3, 5, 8, 16, 17, 32, 33, 64, 65, 128, 129, 200)
# Less than a tile of columns; a block of columns and what surrounds it; several and a remainder.
N = (1, 3, 4, 13, 48, 64, 127, 128, 129, 200, 272)
# One 16-byte load and what surrounds it; a block and what surrounds it; several blocks, whole or not.
K = (1, 15, 16, 17, 64, 100, 127, 128, 129, 144, 255, 256, 384, 512, 650)


def row_classes(backend: str) -> tuple[tuple[int, ...], ...]:
    """Numbers of rows for which a row has the same bits: the ends of each class and some between."""
    if backend == "cpu":
        return ((1, 2, 3, 4, 5, 15, 16, 17, 32, 33, 64, 100, 128, 129, 200),)
    return (1, 2, 7, 16), (17, 25, 32), (33, 50, 64), (65, 100, 128), (129, 200)


# The AMD FP8 GEMM challenge's tests (gpu-mode/reference-kernels, problems/amd/fp8-mm): the linears of DeepSeek-V3 on 8
# devices, with 64 to 512 rows. Columns and K of the linears: queries down and up, keys and values down, both MLPs.
CHALLENGE = [
    (64, 64, 128),
    *((64, n, k) for n, k in ((1536, 7168), (3072, 1536), (576, 7168))),
    *((96, n, k) for n, k in ((7168, 256), (7168, 2048), (4608, 7168))),
    *((128, n, k) for n, k in ((7168, 2304), (512, 7168))),
    *((512, n, k) for n, k in ((4096, 512), (1536, 7168))),
]


class Inputs(skinny_gemm.Inputs):
    """`rows` is not for scales of square blocks of a."""

    def scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """In float64 [M, blocks] and [N, blocks]: what the shapes of the scales say."""
        (m, k), n = self.a.shape, len(self.b)
        blocks_first = self.scale_a.dim() == 2 and self.scale_a.shape[1] > 1
        of_a = by_block(self.scale_a, m, k, (m, 1), blocks_first=True)
        return of_a, by_block(self.scale_b, n, k, (1, n), blocks_first=blocks_first)

    def assert_right(self, out: torch.Tensor, what: str) -> None:
        assert_block_scaled_gemm_close(out, self.a, self.b, *self.scales(), self.bias, what)


def by_block(scale: torch.Tensor, rows: int, k: int, vector: tuple[int, int], blocks_first: bool) -> torch.Tensor:
    """float64 [rows, blocks]. `vector`: the shape of a scale a row in two dimensions; with `blocks_first` a shape that
    could be blocks as well is blocks."""
    blocks, row_blocks = -(-k // BLOCK), -(-rows // BLOCK)
    shape, values = tuple(scale.shape), scale.float().double()
    squares = shape == (row_blocks, blocks)
    if scale.numel() == 1:
        return values.reshape(1, 1).expand(rows, blocks)
    if shape == (rows,) or (shape == vector and not (squares and blocks_first)):
        return values.reshape(rows, 1).expand(rows, blocks)
    if shape == (rows, blocks):
        return values
    assert squares, f"{shape} for {rows} rows and {blocks} blocks"
    return values[torch.arange(rows, device=scale.device) // BLOCK]


# Shapes of scales: of an operand with so many rows and blocks; `dim` is 0 for a, 1 for b.
SHAPES: dict[str, Callable[[int, int, int], tuple[int, ...]]] = {
    "one": lambda rows, blocks, dim: (),
    "one-2d": lambda rows, blocks, dim: (1, 1),
    "flat": lambda rows, blocks, dim: (rows,),
    "vector": lambda rows, blocks, dim: (1, rows) if dim else (rows, 1),
    "group": lambda rows, blocks, dim: (rows, blocks),
    "square": lambda rows, blocks, dim: (-(-rows // BLOCK), blocks),
}


# Their values: products of two of them keep float32's normal range.
def any_sign(shape, generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def powers_of_two(shape, generator) -> torch.Tensor:
    """float8_e8m0fnu."""
    return torch.ldexp(torch.ones(shape), torch.randint(-12, 4, tuple(shape), generator=generator)).to(E8M0)


VALUES = (positive, any_sign, powers_of_two)

# How a tensor of rows lies: K contiguous or (columns) the other dimension; 16-byte aligned or off any alignment.
OPERANDS = ("dense", "apart", "padded", "columns", "columns-apart", "columns-padded")
SCALES = ("dense", "padded", "columns", "strided", "one-row", "one-block")


class Placed(NamedTuple):
    buffer: Guarded
    t: torch.Tensor


def placed(values: torch.Tensor, device, how: str) -> Placed:
    """`values` among poison. "one-row" and "one-block" repeat the first by a stride of 0: other values."""
    values = values.to(device)
    if values.dim() == 0:
        values, how = values.reshape(1), "zero-dim"
    if how == "strided":
        buffer = Guarded((*values.shape[:-1], 3 * values.shape[-1]), values.dtype, device, pad=2)
        t = buffer.t[..., 1::3]
        t.copy_(values)
        buffer.holding(buffer.t.clone())
        return Placed(buffer, t)
    if how == "one-row":
        buffer = Guarded(values[:1].shape, values.dtype, device).holding(values[:1])
        return Placed(buffer, buffer.t.expand(values.shape))
    if how == "one-block":
        buffer = Guarded(values[..., :1].shape, values.dtype, device).holding(values[..., :1])
        return Placed(buffer, buffer.t.expand(values.shape))
    turned = how.startswith("columns") and values.dim() == 2
    extra = dict(pad=37, shift=3) if how.endswith("padded") else dict(pad=64) if how.endswith("apart") else {}
    shape = tuple(reversed(values.shape)) if turned else tuple(values.shape)
    buffer = Guarded(shape, values.dtype, device, **extra).holding(values.t() if turned else values)
    return Placed(buffer, buffer.t[0] if how == "zero-dim" else buffer.t.t() if turned else buffer.t)


class Scaling(NamedTuple):
    """An operand's scales."""

    shape: str
    values: Callable
    place: str = "dense"

    def draw(self, rows: int, k: int, dim: int, generator) -> torch.Tensor:
        return self.values(SHAPES[self.shape](rows, -(-k // BLOCK), dim), generator)

    def __str__(self) -> str:
        return f"{self.shape}_{self.values.__name__}_{self.place}"


class Case(NamedTuple):
    """A problem, the kinds of its operands, and how they lie in memory."""

    m: int
    n: int
    k: int
    which_format: int  # of those that the device multiplies
    dtype: torch.dtype  # of the result
    scale_a: Scaling
    scale_b: Scaling
    bias: Callable
    values: Callable
    layout_a: str
    layout_b: str
    layout: str  # of the result

    @property
    def id(self) -> str:
        names = (short(self.dtype), self.scale_a, self.scale_b, self.bias.__name__, self.values.__name__)
        return f"{self.m}x{self.n}x{self.k}-{'-'.join(map(str, (*names, *self[9:])))}-{self.which_format}"


GROUP, SQUARE = Scaling("group", positive), Scaling("square", positive)


def draw(problem: Problem, generator, scale_a=GROUP, scale_b=SQUARE, bias=no_bias, values=random_fp8) -> Inputs:
    return Inputs(
        values((problem.m, problem.k), problem.format, generator),
        values((problem.n, problem.k), problem.format, generator),
        scale_a.draw(problem.m, problem.k, 0, generator),
        scale_b.draw(problem.n, problem.k, 1, generator),
        bias(problem.n, generator),
    )


def run(kernel, inputs: Inputs, **kwargs) -> torch.Tensor:
    return kernel.block_scaled_gemm(*vars(inputs).values(), **kwargs)
