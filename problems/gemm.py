"""What problems of all GEMMs share: sizes, operands and how they lie in memory, scales, biases; and `Gemm`, the
description by which tests/operators/test_gemm_contract.py tests an operator. skinny_gemm.py, block_scaled_gemm.py and
int8.py beside this file describe theirs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch

from problems.buffers import Guarded
from problems.inputs import FLOATS, FP8, normal, positive, random_codes, random_fp8, short
from problems.pairwise import SAMPLE, pairwise

BLOCK = 128  # k of a block of block_scaled_gemm; rows of an operand that may share a scale
E8M0 = torch.float8_e8m0fnu


@dataclass(frozen=True)
class Problem:
    m: int
    n: int
    k: int
    format: torch.dtype  # of a and b

    @property
    def id(self) -> str:
        return f"{self.m}x{self.n}x{self.k}-{short(self.format)}"


# --- how a tensor lies in memory ---

# Rows: dense; off 16-byte alignment, at first or row by row; apart, aligned or not.
ROWS = {
    "dense": {},
    "shifted": dict(shift=1),
    "odd": dict(pad=1),
    "near": dict(pad=16),
    "apart": dict(pad=64),
    "padded": dict(pad=37, shift=3),
}


class Placed(NamedTuple):
    buffer: Guarded
    t: torch.Tensor


def placed(values: torch.Tensor, device, how: str) -> Placed:
    """`values` among poison: rows as ROWS says; columns likewise ("columns", "columns-apart", ...); "strided" in both
    dimensions. "one-row" and "one-block" repeat the first by a stride of 0: other values."""
    values = values.to(device)
    if values.dim() == 0:
        values, how = values.reshape(1), "zero-dim"
    if how == "strided":
        buffer = Guarded((*values.shape[:-1], 3 * values.shape[-1]), values.dtype, device, pad=2)
        t = buffer.t[..., 1::3]
        t.copy_(values)
        buffer.holding(buffer.t.clone())
        return Placed(buffer, t)
    if how in ("one-row", "one-block"):
        first = values[:1] if how == "one-row" else values[..., :1]
        buffer = Guarded(first.shape, values.dtype, device).holding(first)
        return Placed(buffer, buffer.t.expand(values.shape))
    turned = how.startswith("columns") and values.dim() == 2
    rows = ROWS.get(how.removeprefix("columns").removeprefix("-"), {})
    shape = tuple(reversed(values.shape)) if turned else tuple(values.shape)
    buffer = Guarded(shape, values.dtype, device, **rows).holding(values.t() if turned else values)
    return Placed(buffer, buffer.t[0] if how == "zero-dim" else buffer.t.t() if turned else buffer.t)


# --- operands ---


@dataclass
class Inputs:
    """Arguments of one call. Each operator's own class checks results."""

    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor
    scale_b: torch.Tensor
    bias: torch.Tensor | None
    options: ClassVar[dict] = {}  # keywords, of operators that have some

    def operands(self) -> tuple[torch.Tensor | None, ...]:
        return self.a, self.b, self.scale_a, self.scale_b, self.bias

    def to(self, device) -> Self:
        def moved(value):
            if isinstance(value, dict):
                return {name: moved(of_it) for name, of_it in value.items()}
            return value.to(device) if isinstance(value, torch.Tensor) else value

        return replace(self, **moved(vars(self)))

    def rows(self, rows: slice | list[int]) -> Self:
        """The call of some rows alone. Not for scales of square blocks of a, nor for options."""
        assert not any(isinstance(value, torch.Tensor) for value in self.options.values())
        scale_a = self.scale_a if self.scale_a.numel() == 1 else self.scale_a[rows]
        a = self.a.view(torch.uint8)[rows].view(self.a.dtype)  # a list of rows: not every torch indexes FP8 on a GPU
        return replace(self, a=a, scale_a=scale_a)

    def placed(self, device, *layouts: str) -> tuple[Self, list[Guarded]]:
        """With a, b, scale_a and scale_b, or the first of them, among poison; what holds them."""
        names = ("a", "b", "scale_a", "scale_b")[: len(layouts)]
        tensors = {name: placed(getattr(self, name), device, how) for name, how in zip(names, layouts)}
        moved = replace(self.to(device), **{name: each.t for name, each in tensors.items()})
        return moved, [each.buffer for each in tensors.values()]


def no_bias(n: int, g) -> None:
    return None


def bias_of(dtype: torch.dtype, step: int = 1):
    def bias(n: int, g) -> torch.Tensor:
        return normal((n * step,), dtype, g, 5.0)[::step]

    bias.__name__ = f"bias_{short(dtype)}{'_strided' if step > 1 else ''}"
    return bias


BIASES = (no_bias, *(bias_of(dtype) for dtype in FLOATS), *(bias_of(dtype, 3) for dtype in FLOATS))

# --- scales of FP8 operands ---

# Their shapes: of an operand with so many rows and blocks; `dim` is 0 for a, 1 for b.
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


class Scaling(NamedTuple):
    """An operand's scales."""

    shape: str
    values: Callable = positive
    place: str = "dense"

    def draw(self, rows: int, k: int, dim: int, generator) -> torch.Tensor:
        return self.values(SHAPES[self.shape](rows, -(-k // BLOCK), dim), generator)

    def __str__(self) -> str:
        return f"{self.shape}_{self.values.__name__}_{self.place}"


ONE, VECTOR = Scaling("one"), Scaling("vector")


class Case(NamedTuple):
    """An FP8 problem, the kinds of its operands, and how they lie in memory."""

    m: int
    n: int
    k: int
    which_format: int  # of those that the device multiplies: a GPU multiplies one, a CPU both
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

    @property
    def layouts(self) -> tuple[str, ...]:
        return self.layout_a, self.layout_b, self.scale_a.place, self.scale_b.place


def fp8_cases(m, n, k, *, shapes, values, places, operands) -> tuple[Case, ...]:
    """Any two sizes or kinds meet in one of them."""
    return tuple(
        Case(m, n, k, which, dtype, Scaling(*scaling[::2]), Scaling(*scaling[1::2]), bias, codes, *layouts)
        for m, n, k, which, dtype, *scaling, bias, codes, a, b, out in pairwise(
            *(m, n, k, range(len(FP8)), FLOATS, shapes, shapes, values, values, places, places, BIASES),
            *((random_fp8, random_codes), operands, operands, ("dense", "padded")),
            seed=SAMPLE,
        )
        for layouts in [(a, b, out)]
    )


def draw_fp8(inputs: type[Inputs], problem: Problem, generator, scale_a, scale_b, bias, values) -> Inputs:
    return inputs(
        values((problem.m, problem.k), problem.format, generator),
        values((problem.n, problem.k), problem.format, generator),
        scale_a.draw(problem.m, problem.k, 0, generator),
        scale_b.draw(problem.n, problem.k, 1, generator),
        bias(problem.n, generator),
    )


# --- the description of an operator ---


@dataclass(frozen=True, repr=False)
class Gemm:
    """What the contract's tests must know. Kinds of scales are the operator's own: its `draw` takes them."""

    name: str
    draw: Callable[..., Inputs]  # (problem, generator, [scale_a, scale_b, bias=...])
    draw_case: Callable[[Any, tuple[torch.dtype, ...], torch.Generator], Inputs]  # of `cases`; formats
    assert_right: Callable[[Any, Inputs, torch.Tensor, str], None]  # within the bound, or the reference's bytes
    cases: tuple  # each with m, n, k, dtype, layouts, layout and id
    rows: tuple[int, ...]  # one for each way in which few or many rows are computed
    inner: tuple[int, ...]  # K: one product, odd, blocks
    row_classes: Callable[[str], tuple[tuple[int, ...], ...]]  # M of the same bits, by backend; the least first
    of_a_row: tuple[tuple[int, int], ...]  # N and K of the tests of those
    uneven: tuple[tuple[int, int, int], ...]  # where one part of the work, several, uneven parts go to the threads
    moved: tuple[tuple[int, int, int], ...]  # on which layouts are tried
    one: Any = ONE  # the scale of all rows
    vector: Any = VECTOR  # a scale a row
    of_rows: tuple = (VECTOR,)  # scales of a that go with its rows
    operands: tuple[str, ...] = ("dense", "shifted", "odd", "near", "padded")  # how a and b may lie
    orders: tuple[str, ...] = ("dense",)  # those of them that are read in different orders
    places: tuple[str, ...] = ("dense", "strided")  # how scales may lie
    alignment_counts: tuple[str, ...] = ()  # backends on which it changes bits (docs/numerics.md)
    results: tuple[torch.dtype, ...] = FLOATS
    own_format: torch.dtype | None = None  # of a and b, where it is not the device's FP8
    # Scales multiply parts of sums. The product of two must be normal; an infinite one may give NaN: a part may be 0.
    scales_parts: bool = False

    def __repr__(self) -> str:
        return self.name

    def formats(self, fp8: tuple[torch.dtype, ...]) -> tuple[torch.dtype, ...]:
        return fp8 if self.own_format is None else (self.own_format,)

    def run(self, module, inputs: Inputs, **kwargs) -> torch.Tensor:
        """By the kernel, or by its reference."""
        return getattr(module, self.name)(*inputs.operands(), **inputs.options, **kwargs)


def draw_fp8_case(draw: Callable[..., Inputs]) -> Callable[..., Inputs]:
    def draw_case(case: Case, formats: tuple[torch.dtype, ...], generator) -> Inputs:
        problem = Problem(case.m, case.n, case.k, formats[case.which_format % len(formats)])
        return draw(problem, generator, case.scale_a, case.scale_b, case.bias, case.values)

    return draw_case


def assert_close(kernel, inputs: Inputs, out: torch.Tensor, what: str) -> None:
    inputs.assert_right(out, what)


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
