"""skinny_gemm against float64 with a derived bound, and what it promises about bits: same inputs, any batch."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from helpers import (
    FLOATS,
    FP8,
    LAYOUTS,
    Guarded,
    assert_gemm_close,
    guarded,
    normal,
    positive,
    random_codes,
    random_fp8,
    same_bytes,
    short,
    threads,
)


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


@pytest.fixture(params=FP8, ids=short)
def format(request, formats) -> torch.dtype:
    if request.param not in formats:
        pytest.skip("not this GPU's format: test_a_format_that_the_device_does_not_multiply has it")
    return request.param


# The numbers of rows for which one configuration serves, so that a row's bits are the same.
def row_classes(backend: str) -> tuple[range, ...]:
    return (range(1, 9), range(9, 17), range(17, 33)) if backend == "rocm" else (range(1, 33),)


@dataclass
class Inputs:
    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor
    scale_b: torch.Tensor
    bias: torch.Tensor | None

    def to(self, device) -> "Inputs":
        return Inputs(*(None if t is None else t.to(device) for t in vars(self).values()))

    def rows(self, rows: slice | list[int]) -> "Inputs":
        """The call of some rows alone."""
        scale_a = self.scale_a if self.scale_a.numel() == 1 else self.scale_a[rows]
        a = self.a.view(torch.uint8)[rows].view(self.a.dtype)  # a list of rows: not every torch indexes FP8 on a GPU
        return Inputs(a, self.b, scale_a, self.scale_b, self.bias)

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


@pytest.mark.parametrize("k", K)
def test_shapes(kernel, device, generator, format, k):
    # One drawn kind of everything else for each shape: all its kinds meet in the test below.
    def pick(kinds):
        return kinds[int(torch.randint(len(kinds), (), generator=generator))]

    for m, n in itertools.product(M, N):
        problem = Problem(m, n, k, format)
        values = pick((random_fp8, random_codes))
        inputs = draw(problem, generator, pick(SCALES), pick(SCALES), pick(BIASES), values).to(device)
        layout = pick(tuple(LAYOUTS))
        a = guarded(inputs.a, device, **LAYOUTS[layout])
        b = guarded(inputs.b, device, **LAYOUTS[pick(tuple(LAYOUTS))])
        for dtype in FLOATS:
            out = Guarded((m, n), dtype, device, **LAYOUTS[layout])
            given = kernel.skinny_gemm(a.t, b.t, inputs.scale_a, inputs.scale_b, inputs.bias, out=out.t)
            assert given is out.t
            inputs.assert_right(out.t, f"{problem.id} {short(dtype)} {layout}")
            out.assert_guards_intact(problem.id)
        for read in (a, b):
            read.assert_unchanged(problem.id)


@pytest.mark.parametrize("bias", BIASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("scale_b", SCALES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("scale_a", SCALES, ids=lambda f: f.__name__)
def test_scales_and_biases(kernel, device, generator, formats, scale_a, scale_b, bias):
    # Through the paths of few rows and of many; 13 columns are a tile and one more.
    for m, format, dtype in itertools.product((1, 2, 9), formats, FLOATS):
        inputs = draw(Problem(m, 13, 100, format), generator, scale_a, scale_b, bias).to(device)
        out = run(kernel, inputs, out_dtype=dtype)
        assert out.dtype == dtype
        inputs.assert_right(out, f"m = {m} {short(format)} {short(dtype)}")


def test_the_default_result_is_bfloat16(kernel, device, generator, formats):
    inputs = draw(Problem(3, 5, 32, formats[0]), generator).to(device)
    assert run(kernel, inputs).dtype == torch.bfloat16
    assert same_bytes(run(kernel, inputs), run(kernel, inputs, out_dtype=torch.bfloat16))


@pytest.mark.parametrize("m", [1, 3, 4, 5, 8, 32])
def test_nan_stays_in_its_row_or_column(kernel, device, generator, format, m):
    nan = 0x7F if format == torch.float8_e4m3fn else 0x80
    negative_nan = 0xFF if format == torch.float8_e4m3fn else 0x80
    for k in (1, 17, 300):
        inputs = draw(Problem(m, 37, k, format), generator).to(device)
        clean = run(kernel, inputs, out_dtype=torch.float32)
        for column, code in ((0, nan), (k // 2, negative_nan), (k - 1, nan)):
            for side, rows in ((inputs.a, m), (inputs.b, 37)):
                row = int(torch.randint(rows, (), generator=generator))
                codes = side.view(torch.uint8)
                before = codes[row, column].clone()
                codes[row, column] = code
                # Zeros opposite do not hide it: 0 * NaN is NaN.
                got = run(kernel, inputs, out_dtype=torch.float32)
                codes[row, column] = before
                hit = torch.zeros_like(clean, dtype=torch.bool)
                (hit if side is inputs.a else hit.t())[row] = True
                assert torch.equal(got.isnan(), hit), f"k = {k}, column {column}"
                assert torch.equal(got[~hit], clean[~hit])


def test_nan_times_zero_is_nan(kernel, device, format):
    one = torch.ones((), device=device)
    nan = torch.tensor([[torch.nan] + [0.0] * 63]).to(format).to(device)
    zeros = torch.zeros(3, 64).to(format).to(device)
    assert run(kernel, Inputs(nan, zeros, one, one, None)).isnan().all()
    assert run(kernel, Inputs(zeros, nan, one, one, None)).isnan().all()


def test_nan_and_infinity_in_scales_and_bias(kernel, device, generator, formats):
    inputs = draw(Problem(5, 13, 64, formats[0]), generator, bias=bias_of(torch.float32)).to(device)
    inputs.scale_a[2], inputs.scale_b[0, 7], inputs.bias[4] = torch.nan, torch.inf, torch.nan
    got = run(kernel, inputs, out_dtype=torch.float32)
    hit = torch.zeros(5, 13, dtype=torch.bool, device=device)
    hit[2] = hit[:, 4] = True
    assert torch.equal(got.isnan(), hit)
    hit[:, 7] = True
    assert torch.equal(got.isfinite(), ~hit)


@pytest.mark.parametrize("m", [1, 4, 32])
def test_large_sums(kernel, device, generator, format, m):
    largest = torch.finfo(format).max
    one = torch.ones((), device=device)
    a, b = (torch.full((rows, 16384), largest).to(format).to(device) for rows in (m, 9))
    for dtype in FLOATS:
        got = run(kernel, Inputs(a, b, one, one, None), out_dtype=dtype)
        assert got.isinf().all() if dtype == torch.float16 else got.isfinite().all()
        Inputs(a, b, one, one, None).assert_right(got, short(dtype))
    # Sums that cancel: only the order of the additions is left, within the bound.
    signs = torch.where(torch.rand(9, 16384, generator=generator) < 0.5, -1.0, 1.0).to(device)
    inputs = Inputs(a, (b.float() * signs).to(format), one, one, None)
    inputs.assert_right(run(kernel, inputs, out_dtype=torch.float32), "cancelling")
    # A scale brings a sum beyond float16 back into its range before it is rounded.
    small = torch.full((), 2.0**-20, device=device)
    inputs = Inputs(a, b, one, small, None)
    got = run(kernel, inputs, out_dtype=torch.float16)
    assert got.isfinite().all()
    inputs.assert_right(got, "scaled")


def test_small_results(kernel, device, generator, formats):
    # Subnormal in the result's type, and in float32 itself.
    for scale in (2.0**-16, 2.0**-24, 2.0**-120, 2.0**-140):
        inputs = draw(Problem(3, 13, 80, formats[0]), generator, one, one).to(device)
        inputs.scale_a = torch.full((), scale, device=device)
        for dtype in FLOATS:
            inputs.assert_right(run(kernel, inputs, out_dtype=dtype), f"{scale} {short(dtype)}")


# Sizes where one part of the work, several, and uneven parts go to the threads.
@pytest.mark.parametrize("m, n, k", [(1, 1000, 4096), (4, 515, 1031), (32, 700, 2049)])
def test_same_bytes_whatever_the_threads(kernel, device, generator, formats, m, n, k):
    inputs = draw(Problem(m, n, k, formats[n % len(formats)]), generator, bias=bias_of(torch.float16)).to(device)
    results = []
    for count in (1, 2, 3, 2):
        with threads(count):
            results.append(run(kernel, inputs, out_dtype=torch.float32))
    inputs.assert_right(results[0], "one thread")
    assert all(same_bytes(results[0], other) for other in results[1:])


@pytest.mark.parametrize("n, k", [(13, 1), (12, 100), (130, 257), (37, 4096), (5, 8191)])
def test_a_row_does_not_depend_on_its_batch(kernel, device, backend, generator, format, n, k):
    inputs = draw(Problem(32, n, k, format), generator, bias=bias_of(torch.bfloat16)).to(device)
    for sizes in row_classes(backend):
        # Each row among as few others as the class has: the row itself and the ones after it, around the end.
        fewest = [run(kernel, inputs.rows([(i + r) % 32 for r in range(sizes[0])]), out_dtype=torch.float32) for i in range(32)]
        wanted = torch.stack([rows[0] for rows in fewest])
        for m in sizes:
            # The first m rows, and the last.
            for rows in (slice(0, m), slice(32 - m, 32)):
                got = run(kernel, inputs.rows(rows), out_dtype=torch.float32)
                assert same_bytes(got, wanted[rows]), f"{rows}"


def test_a_format_that_the_device_does_not_multiply(kernel, device, generator, formats):
    for format in FP8:
        inputs = draw(Problem(3, 5, 64, format), generator).to(device)
        if format in formats:
            run(kernel, inputs)
            continue
        with pytest.raises(RuntimeError, match=f"a: dtype {short(format)}|a: dtype float8_{short(format)}"):
            run(kernel, inputs)


def test_layout_does_not_change_bits(kernel, device, generator, formats):
    # Alignment decides between fast and careful loads, never the order of the sum.
    first, last = formats[0], formats[-1]
    for problem in (Problem(1, 37, 1000, first), Problem(7, 37, 272, last), Problem(32, 13, 257, first)):
        inputs = draw(problem, generator).to(device)
        wanted = run(kernel, inputs, out_dtype=torch.float32)
        for pad, shift in ((0, 1), (1, 0), (16, 0), (37, 3)):
            a, b = (guarded(t, device, pad=pad, shift=shift) for t in (inputs.a, inputs.b))
            moved = Inputs(a.t, b.t, inputs.scale_a, inputs.scale_b, None)
            assert same_bytes(run(kernel, moved, out_dtype=torch.float32), wanted), f"{problem.id} {pad} {shift}"


def test_expanded_rows(kernel, device, generator, formats):
    # A stride of zero between rows is a layout like any other for what is only read.
    inputs = draw(Problem(8, 16, 96, formats[0]), generator, one, one).to(device)
    inputs.a, inputs.b = inputs.a[:1].expand(8, -1), inputs.b[:1].expand(16, -1)
    got = run(kernel, inputs, out_dtype=torch.float32)
    inputs.assert_right(got, "expanded")
    assert (got == got[0, 0]).all()
