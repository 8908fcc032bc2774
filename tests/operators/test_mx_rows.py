"""GEMMs with MX weights on a CPU. Few rows and many have kernels of their own: they give the same bits, and right ones,
for numbers and exponents at the ends of their types."""

import math

import pytest
import torch

from problems.buffers import same_bytes
from problems.comparisons import assert_mx_close
from problems.grouped_gemm import offsets_of
from problems.inputs import FP8, every_number, normal
from problems.mx import BLOCK, KINDS, draw, drawn, plain, values

F32, BF16, F16, U8, E8M0 = torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.float8_e8m0fnu
ONE = 2  # the code of 1 in e2m1
each_kind = pytest.mark.parametrize("kinds", KINDS, ids="-".join)


@pytest.fixture(autouse=True)
def cpu_only(backend):
    if backend != "cpu":
        pytest.skip("a GPU's kernels: test_mx.py")


def bytes_of(shape: tuple[int, ...], low: int, high: int, generator) -> torch.Tensor:
    return torch.randint(low, high + 1, shape, generator=generator).to(U8)


def of_any_size(rows: torch.Tensor, generator) -> torch.Tensor:
    """Eight kinds of rows in turn."""
    rows, bits = rows.clone(), torch.randint(-(2**15), 2**15, rows.shape, generator=generator).to(torch.int16)
    rows[1::8] = bits.view(rows.dtype)[1::8]  # any bits, NaN and infinities included
    rows[2::8] *= 2.0 ** (-120 if rows.dtype == BF16 else -20)
    rows[3::8] *= 2.0 ** (115 if rows.dtype == BF16 else 10)
    rows[4::8] = 0
    rows[5::8, ::7] = torch.tensor(3, dtype=torch.int16).view(rows.dtype)  # subnormal
    rows[6::16, 5], rows[14::16, 20] = math.inf, math.nan
    return rows


def exponents_of_any_size(shape: tuple[int, int], generator) -> torch.Tensor:
    """Seven kinds of rows in turn, for runs of 16 that are ordinary, too."""
    e = bytes_of(shape, 117, 130, generator)
    kind = torch.arange(shape[0]) // 5 % 14
    for at, (low, high) in enumerate(((0, 255), (0, 30), (220, 254), (0, 0), (254, 254), (60, 70))):
        e[kind == 2 * at + 1] = bytes_of(shape, low, high, generator)[kind == 2 * at + 1]
    e[::23, -1] = 255
    return e.view(E8M0)


def same_but_for_nan(a: torch.Tensor, b: torch.Tensor) -> bool:
    nan = a.isnan()
    return torch.equal(nan, b.isnan()) and same_bytes(a.masked_fill(nan, 0), b.masked_fill(nan, 0))


@each_kind
@pytest.mark.parametrize("k", (32, 288))
@pytest.mark.parametrize("fp8", FP8, ids=str)
def test_a_rows_bits_are_its_own_whatever_it_holds(kernel, generator, kinds, k, fp8):
    rows, n = 70, 103
    (a, scale_a), (b, scale_b) = drawn(kinds[0], (rows, k), fp8, generator), drawn(kinds[1], (n, k), fp8, generator)
    scale_b = exponents_of_any_size(scale_b.shape, generator)
    b.view(U8)[7:60:9, : b.shape[1] // 2] = 0
    if a.dtype in (BF16, F16):
        a = of_any_size(a, generator)
    elif kinds[0].startswith("mx"):
        scale_a = exponents_of_any_size(scale_a.shape, generator)
        a.view(U8)[3::8, : a.shape[1] // 2] = 0
    if a.dtype in FP8:
        a.view(U8)[6::16, 5] = 0x7F if fp8 == FP8[0] else 0x80
    if b.dtype in FP8:
        b.view(U8)[50, 5] = 0xFF if fp8 == FP8[0] else 0x80

    def part(t: torch.Tensor | None, begin: int, end: int) -> torch.Tensor | None:
        return t if t is None or len(t) == 1 else t.view(U8)[begin:end].view(t.dtype)

    def product(begin: int, end: int) -> torch.Tensor:
        return kernel.block_scaled_gemm(part(a, begin, end), b, part(scale_a, begin, end), scale_b, out_dtype=F32)

    whole = product(0, rows)
    for step in (1, 2, 3, 17, 33):
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            assert same_but_for_nan(whole[begin:end].contiguous(), product(begin, end)), (step, begin)

    # Where float32 holds products of two scales, and blocks' sums with and without them.
    wide_a, wide_b, of_b = values(a), values(b), scale_b.view(U8).double() - 127
    by_blocks = scale_a is not None and scale_a.dtype == E8M0
    of_a = scale_a.view(U8).double() - 127 if by_blocks else torch.zeros(rows, k // BLOCK).double()
    held = torch.ones(rows, n, dtype=torch.bool)
    for j in range(k // BLOCK):
        block = slice(j * BLOCK, (j + 1) * BLOCK)
        exponent = of_a[:, j, None] + of_b[:, j]
        size = wide_a[:, block].abs() @ wide_b[:, block].abs().t()
        held &= (exponent.abs() < 126) & (size < 2.0**126) & (size * torch.exp2(exponent) < 2.0**120)
    exact_a, exact_b = values(a, scale_a), values(b, scale_b)
    exact = exact_a @ exact_b.t()
    assert bool(whole[exact.isnan()].isnan().all())
    held &= ~exact.isnan()
    assert held.float().mean() > 0.1 and not whole[held].isnan().any()
    for row in range(rows):
        columns = held[row]
        if columns.any():
            assert_mx_close(whole[row : row + 1, columns], exact_a[row : row + 1], exact_b[columns], None, f"row {row}")


@pytest.mark.parametrize("scale", (1, 60, 127, 140, 240))
@pytest.mark.parametrize("rows", (1, 2, 40, None), ids=str)
def test_every_finite_bfloat16_is_multiplied_exactly(kernel, generator, rows, scale):
    """Column j is 1 at k = j alone."""
    a = every_number(BF16)
    a = a[a.isfinite()].view(-1, BLOCK)
    if rows is not None:
        a = a[torch.randint(len(a), (rows,), generator=generator)]
    b = torch.zeros(BLOCK, BLOCK // 2, dtype=U8)
    at = torch.arange(BLOCK)
    b[at, at // 2] = torch.where(at % 2 == 0, ONE, ONE << 4).to(U8)
    exponents = torch.full((BLOCK, 1), scale, dtype=U8).view(E8M0)
    got = kernel.block_scaled_gemm(a, b, None, exponents, out_dtype=F32)
    assert torch.equal(got, (a.double() * 2.0 ** (scale - 127)).float())


@pytest.mark.parametrize("fp8", FP8, ids=str)
@pytest.mark.parametrize("rows", (1, 2, 256))
def test_every_fp8_code_with_every_exponent(kernel, generator, rows, fp8):
    """Column e has all codes and the exponent e; row i of A is 1 at one place."""
    k = 256
    codes = torch.arange(k).to(U8)
    codes = torch.where(codes.view(fp8).float().isnan(), 1, codes)
    places = torch.randperm(k, generator=generator)[:rows]
    a = torch.zeros(rows, k, dtype=BF16)
    a[torch.arange(rows), places] = 1
    b, exponents = codes.expand(256, k).contiguous().view(fp8), torch.arange(256).to(U8)
    scales = exponents[:, None].expand(-1, k // BLOCK).contiguous().view(E8M0)
    got = kernel.block_scaled_gemm(a, b, None, scales, out_dtype=F32)
    assert bool(got[:, 255].isnan().all())
    assert torch.equal(got[:, :255], values(b[:255], scales[:255])[:, places].t().float())


@pytest.mark.parametrize("rows", (1, 2, 64))
def test_what_cancels_is_not_flushed(kernel, generator, rows):
    """Two products of each row and column, one of which is a bit larger: their sum is exact, and often subnormal."""
    n, least = 48, torch.randint(-126, -60, (rows, 1), generator=generator)
    one_more = 1 + torch.randint(1, 128, (rows, 1), generator=generator) / 128
    a = torch.zeros(rows, BLOCK, dtype=BF16)
    first, second = torch.randperm(BLOCK, generator=generator)[:2].tolist()
    a[:, first : first + 1], a[:, second : second + 1] = (x.to(BF16) for x in (torch.exp2(least), -torch.exp2(least)))
    a[:, first] *= one_more[:, 0].to(BF16)
    b = torch.full((n, BLOCK // 2), ONE | ONE << 4, dtype=U8)
    scales = bytes_of((n, 1), 120, 190, generator).view(E8M0)
    got = kernel.block_scaled_gemm(a, b, None, scales, out_dtype=F32)
    assert torch.equal(got, (values(a) @ values(b, scales).t()).float())


@pytest.mark.parametrize("weights", ("mxfp4", "mxfp8"))
def test_rows_of_several_chunks(kernel, generator, weights):
    """More than what is packed at a time, in two experts, whose last columns fill no tile; K ends within a slice."""
    case = plain(1100, 150, 352, ("bf16", weights), experts=2, biased=F32)
    inputs = draw(case, FP8[0], generator)
    inputs.offsets = offsets_of([547, 553])
    got = inputs.call(kernel, out_dtype=F32)
    inputs.assert_right(got, case.id)
    for row in (0, 511, 512, 546, 547, 1099):
        e = int(row >= 547)
        alone = kernel.block_scaled_gemm(
            inputs.a[row : row + 1], inputs.b[e], None, inputs.scale_b[e], inputs.bias[e], out_dtype=F32
        )
        assert same_bytes(alone, got[row : row + 1].contiguous())


def test_zeros_may_have_any_small_exponent(kernel, generator):
    """What quantisers give a block of zeros; on both sides, beside large numbers."""
    (a, scale_a), (b, scale_b) = (drawn("mxfp4", (rows, 96), FP8[0], generator) for rows in (40, 33))
    for codes, scales in ((a, scale_a), (b, scale_b)):
        codes[::3, 16:32] = 0x80
        scales.view(U8)[::3, 1] = 0
    x = normal((40, 96), BF16, generator) * 2.0**100
    for operand, scale in ((a, scale_a), (x, None)):
        got = kernel.block_scaled_gemm(operand, b, scale, scale_b, out_dtype=F32)
        assert_mx_close(got, values(operand, scale), values(b, scale_b), None, str(operand.dtype))
