"""block_scaled_gemm against float64 with a derived bound, and what it promises about bits: same inputs, any batch, any
layout."""

import pytest
import torch

from tests.problems.block_scaled_gemm import (
    CHALLENGE,
    E8M0,
    GROUP,
    OPERANDS,
    SCALES,
    SHAPES,
    SQUARE,
    VALUES,
    Case,
    Inputs,
    K,
    M,
    N,
    Problem,
    Scaling,
    any_sign,
    by_block,
    draw,
    placed,
    powers_of_two,
    row_classes,
    run,
)
from tests.problems.buffers import LAYOUTS, Guarded, same_bytes, threads
from tests.problems.comparisons import on_hopper
from tests.problems.inputs import FLOATS, FP8, positive, random_codes, random_fp8, short
from tests.problems.pairwise import pairwise
from tests.problems.skinny_gemm import BIASES, assert_nan_stays_in_its_row_or_column, bias_of
from tests.settings import SEED

CASES = [
    Case(m, n, k, which, dtype, Scaling(*scaling[::2]), Scaling(*scaling[1::2]), *rest)
    for m, n, k, which, dtype, *scaling, bias, values, layout_a, layout_b, layout in pairwise(
        *(M, N, K, range(len(FP8)), FLOATS, tuple(SHAPES), tuple(SHAPES), VALUES, VALUES, SCALES, SCALES, BIASES),
        *((random_fp8, random_codes), OPERANDS, OPERANDS, tuple(LAYOUTS)),
        seed=SEED,
    )
    for rest in [(bias, values, layout_a, layout_b, layout)]
]


def placed_all(inputs: Inputs, device, *layouts: str) -> tuple[Inputs, list[Guarded]]:
    """Of a, b, scale_a and scale_b."""
    tensors = [placed(t, device, how) for t, how in zip(vars(inputs).values(), layouts)]
    bias = None if inputs.bias is None else inputs.bias.to(device)
    return Inputs(*(t.t for t in tensors), bias), [t.buffer for t in tensors]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_against_float64(kernel, device, generator, formats, case):
    # A GPU multiplies one format, a CPU both.
    problem = Problem(case.m, case.n, case.k, formats[case.which_format % len(formats)])
    drawn = draw(problem, generator, case.scale_a, case.scale_b, case.bias, case.values)
    layouts = (case.layout_a, case.layout_b, case.scale_a.place, case.scale_b.place)
    inputs, buffers = placed_all(drawn, device, *layouts)
    out = Guarded((case.m, case.n), case.dtype, device, **LAYOUTS[case.layout])
    assert run(kernel, inputs, out=out.t) is out.t
    inputs.assert_right(out.t, problem.id)
    out.assert_guards_intact("out")
    for read in buffers:
        read.assert_unchanged(problem.id)


@pytest.mark.parametrize("m, n, k", CHALLENGE)
def test_the_challenge(kernel, device, generator, formats, m, n, k):
    """Its inputs and its check: everything column-major, scales of both signs."""
    a, b = (torch.randn(k, rows, generator=generator).bfloat16().to(formats[-1]).to(device).t() for rows in (m, n))
    blocks = k // 128
    scale_a, scale_b = (torch.randn(blocks, rows, generator=generator).to(device).t() for rows in (m, -(-n // 128)))
    out = torch.zeros(m, n, dtype=torch.bfloat16, device=device)
    kernel.block_scaled_gemm(a, b, scale_a, scale_b, out=out)
    # Float64 where theirs is float32: its errors are not ours.
    whole_a = a.double() * scale_a.double().repeat_interleave(128, 1)
    whole_b = b.double() * scale_b.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)
    wanted = (whole_a @ whole_b.t()).to(torch.bfloat16)
    if not on_hopper(out):  # whose sums have fewer bits: where thousands of products cancel, 1e-3 is too little
        torch.testing.assert_close(out, wanted, rtol=2e-2, atol=1e-3)
    Inputs(a, b, scale_a, scale_b, None).assert_right(out, "the bound")


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_a_result_of_its_own(kernel, device, generator, formats, dtype):
    inputs = draw(Problem(3, 13, 300, formats[0]), generator, bias=bias_of(torch.float32)).to(device)
    out = run(kernel, inputs, out_dtype=dtype)
    assert out.dtype == dtype
    inputs.assert_right(out, short(dtype))


def test_the_default_result_is_bfloat16(kernel, device, generator, formats):
    inputs = draw(Problem(3, 5, 160, formats[0]), generator).to(device)
    assert run(kernel, inputs).dtype == torch.bfloat16
    assert same_bytes(run(kernel, inputs), run(kernel, inputs, out_dtype=torch.bfloat16))


def test_without_rows_or_columns(kernel, device, generator, formats):
    for m, n in ((0, 5), (5, 0), (0, 0)):
        inputs = draw(Problem(m, n, 200, formats[0]), generator).to(device)
        assert run(kernel, inputs).shape == (m, n)
        columns = Inputs(inputs.a.t().contiguous().t(), inputs.b.t().contiguous().t(), *list(vars(inputs).values())[2:])
        assert run(kernel, columns).shape == (m, n)


# --- what a shape of scales means ---


def test_a_row_of_scales_that_could_be_blocks(kernel, device, generator, formats):
    """scale_b [1, N] with as many blocks of k as columns: blocks where a's scales are blocks, else channels."""
    inputs = draw(Problem(5, 4, 512, formats[0]), generator).to(device)
    row = torch.tensor([[1.0, 2.0, 4.0, 8.0]], device=device)
    a, b = inputs.a.double(), inputs.b.double()
    for a_shape, of_blocks in (("one", False), ("flat", False), ("vector", False), ("group", True), ("square", True)):
        scale_a = Scaling(a_shape, positive).draw(5, 512, 0, generator).to(device)
        of_a = by_block(scale_a, 5, 512, (5, 1), blocks_first=True)
        of_b = row.double().expand(4, 4) if of_blocks else row.double().t().expand(4, 4)
        parts = list(zip(a.split(128, 1), b.split(128, 1), of_a.t(), of_b.t()))
        wanted = sum(x @ y.t() * s[:, None] * t for x, y, s, t in parts)
        terms = sum(x.abs() @ y.abs().t() * s[:, None] * t for x, y, s, t in parts)
        got = run(kernel, Inputs(inputs.a, inputs.b, scale_a, row, None), out_dtype=torch.float32)
        # Sums of FP8 products on Hopper keep 14 bits.
        assert ((got.double() - wanted).abs() <= 2.0**-12 * terms).all()
        # Said without a doubt, the same bits.
        plain = row.expand(4, 4) if of_blocks else row[0]
        assert same_bytes(run(kernel, Inputs(inputs.a, inputs.b, scale_a, plain, None), out_dtype=torch.float32), got)


@pytest.mark.parametrize("m, n, k", [(3, 130, 300), (130, 37, 513)])
def test_each_scale_multiplies_its_own_block(kernel, device, generator, formats, m, n, k):
    """Ones times ones: each result is a sum of products of scales, exact in float32."""
    a, b = (torch.ones(rows, k).to(formats[0]).to(device) for rows in (m, n))
    blocks = -(-k // 128)
    lengths = torch.full((blocks,), 128.0, dtype=torch.float64)
    lengths[-1] = k - 128 * (blocks - 1)
    for of_a in ("vector", "group", "square"):
        for of_b in ("vector", "group", "square"):
            shapes = SHAPES[of_a](m, blocks, 0), SHAPES[of_b](n, blocks, 1)
            scale_a, scale_b = (torch.randint(-8, 9, shape, generator=generator).float() for shape in shapes)
            inputs = Inputs(a, b, scale_a.to(device), scale_b.to(device), None)
            sa, sb = inputs.scales()
            wanted = (sa * lengths.to(device)) @ sb.t()
            assert torch.equal(run(kernel, inputs, out_dtype=torch.float32).double(), wanted), f"{of_a} {of_b}"


def test_the_least_and_the_greatest_power_of_two(kernel, device, formats):
    """2^-127, which is subnormal in float32, and 2^127."""
    a, b = (torch.ones(rows, 128).to(formats[0]).to(device) for rows in (3, 5))
    least, greatest, one = (torch.tensor(code, dtype=torch.uint8, device=device).view(E8M0) for code in (0, 254, 127))
    for x, y, wanted in ((least, one, 2.0**-120), (one, least, 2.0**-120), (least, greatest, 128.0)):
        got = run(kernel, Inputs(a, b, x.reshape(1), y.reshape(1, 1), None), out_dtype=torch.float32)
        assert (got == wanted).all(), wanted
    assert run(kernel, Inputs(a, b, greatest.reshape(1), one.reshape(1), None), out_dtype=torch.float32).isinf().all()


def test_powers_of_two_of_either_type_give_the_same_bits(kernel, device, generator, formats):
    group, square = (Scaling(shape, powers_of_two) for shape in ("group", "square"))
    inputs = draw(Problem(33, 200, 513, formats[0]), generator, group, square).to(device)
    wanted = run(kernel, inputs, out_dtype=torch.float32)
    for of_a, of_b in ((True, False), (False, True), (True, True)):
        scales = (s.float() if wide else s for s, wide in ((inputs.scale_a, of_a), (inputs.scale_b, of_b)))
        got = run(kernel, Inputs(inputs.a, inputs.b, *scales, None), out_dtype=torch.float32)
        assert same_bytes(got, wanted)


# --- special values ---


@pytest.mark.parametrize("layout", ["dense", "columns"])
@pytest.mark.parametrize("k", [1, 17, 128, 300])
@pytest.mark.parametrize("m", [1, 3, 5, 33, 130])
def test_nan_stays_in_its_row_or_column(kernel, device, generator, format, m, k, layout):
    inputs, _ = placed_all(draw(Problem(m, 37, k, format), generator), device, layout, layout, "dense", "dense")
    assert_nan_stays_in_its_row_or_column(
        lambda inputs: run(kernel, inputs, out_dtype=torch.float32), inputs, generator
    )


@pytest.mark.parametrize("m", [3, 40])
def test_nan_times_zero_is_nan(kernel, device, format, m):
    one = torch.ones((), device=device)
    nan = torch.tensor([[0.0] * 150 + [torch.nan] + [0.0] * 49]).to(format).to(device)
    zeros = torch.zeros(m, 200).to(format).to(device)
    assert run(kernel, Inputs(nan, zeros, one, one, None)).isnan().all()
    assert run(kernel, Inputs(zeros, nan, one, one, None)).isnan().all()
    # By a scale of zero, too.
    assert run(kernel, Inputs(zeros, nan, one, 0 * one, None)).isnan().all()
    assert run(kernel, Inputs(zeros, zeros, one, one * torch.nan, None)).isnan().all()


@pytest.mark.parametrize("values", [positive, powers_of_two])
@pytest.mark.parametrize("m", [5, 130])
def test_nan_in_scales(kernel, device, generator, formats, m, values):
    n, k = 150, 300
    for shape_a, shape_b in (("group", "square"), ("square", "group"), ("vector", "vector"), ("flat", "flat")):
        scalings = Scaling(shape_a, values), Scaling(shape_b, values)
        inputs = draw(Problem(m, n, k, formats[0]), generator, *scalings).to(device)
        clean = run(kernel, inputs, out_dtype=torch.float32)
        for scale, rows, shape, is_a in (
            (inputs.scale_a, m, shape_a, True),
            (inputs.scale_b, n, shape_b, False),
        ):
            last = tuple(size - 1 for size in scale.shape)  # of a square block: the short one
            codes = scale.view(torch.uint8) if scale.dtype == E8M0 else scale
            before = codes[last].clone()
            codes[last] = 255 if scale.dtype == E8M0 else torch.nan
            got = run(kernel, inputs, out_dtype=torch.float32)
            codes[last] = before
            hit = torch.zeros_like(clean, dtype=torch.bool)
            first = (rows - 1) // 128 * 128 if shape == "square" else rows - 1
            (hit if is_a else hit.t())[first:] = True
            assert torch.equal(got.isnan(), hit), f"{shape} of {'a' if is_a else 'b'}"
            assert torch.equal(got[~hit], clean[~hit])


def test_infinity_in_scales_and_special_biases(kernel, device, generator, formats):
    inputs = draw(Problem(5, 13, 300, formats[0]), generator, bias=bias_of(torch.float32)).to(device)
    inputs.scale_a[2, 1], inputs.bias[4], inputs.bias[7] = torch.inf, torch.nan, torch.inf
    got = run(kernel, inputs, out_dtype=torch.float32)
    finite = torch.ones(5, 13, dtype=torch.bool, device=device)
    finite[2] = finite[:, 4] = finite[:, 7] = False
    assert torch.equal(got.isfinite(), finite)
    assert got[:, 4].isnan().all()


@pytest.mark.parametrize("m", [1, 4, 40])
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
    # Blocks that cancel by their scales.
    blocks = torch.where(torch.arange(128) % 2 == 0, 1.0, -1.0).expand(m, 128).to(device)
    inputs = Inputs(a, b, blocks, one, None)
    assert (run(kernel, inputs, out_dtype=torch.float32) == 0).all()
    # A scale brings a sum beyond float16 back into its range before it is rounded.
    small = torch.full((), 2.0**-20, device=device)
    inputs = Inputs(a, b, one, small, None)
    got = run(kernel, inputs, out_dtype=torch.float16)
    assert got.isfinite().all()
    inputs.assert_right(got, "scaled")


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
@pytest.mark.parametrize("scale", [2.0**-16, 2.0**-24, 2.0**-120, 2.0**-140])
def test_small_results(kernel, device, generator, formats, scale, dtype):
    # Subnormal in the result's type, and in float32 itself.
    one = Scaling("one", positive)
    inputs = draw(Problem(3, 13, 300, formats[0]), generator, one, one).to(device)
    inputs.scale_a, inputs.scale_b = torch.full((), scale, device=device), torch.ones((), device=device)
    inputs.assert_right(run(kernel, inputs, out_dtype=dtype), f"{scale} {short(dtype)}")


# --- the same bits ---


# Sizes where one part of the work, several, and uneven parts go to the threads.
@pytest.mark.parametrize("m, n, k", [(1, 1000, 4096), (4, 515, 1031), (33, 1000, 520), (300, 270, 700)])
def test_same_bytes_whatever_the_threads(kernel, device, generator, formats, m, n, k):
    inputs = draw(Problem(m, n, k, formats[n % len(formats)]), generator, bias=bias_of(torch.float16)).to(device)
    results = []
    for count in (1, 2, 3, 2):
        with threads(count):
            results.append(run(kernel, inputs, out_dtype=torch.float32))
    inputs.assert_right(results[0], "one thread")
    assert all(same_bytes(results[0], other) for other in results[1:])


@pytest.mark.parametrize("shape", ["vector", "group"])
@pytest.mark.parametrize("n, k", [(13, 1), (12, 100), (130, 257), (5, 1024)])
def test_a_row_does_not_depend_on_its_batch(kernel, device, backend, generator, format, n, k, shape):
    total = max(m for sizes in row_classes(backend) for m in sizes)
    scaling = Scaling(shape, any_sign)
    inputs = draw(Problem(total, n, k, format), generator, scaling, bias=bias_of(torch.bfloat16)).to(device)
    looked_at = (0, 1, 15, 31, 32, 64, 127, total - 17, total - 16, total - 1)
    for sizes in row_classes(backend):
        # Each as the first of as few rows as the class has: the row itself and the ones after it, around the end.
        wanted = {
            i: run(kernel, inputs.rows([(i + r) % total for r in range(sizes[0])]), out_dtype=torch.float32)[0]
            for i in looked_at
        }
        for m in sizes:
            # The first m rows, and the last.
            for begin in (0, total - m):
                got = run(kernel, inputs.rows(slice(begin, begin + m)), out_dtype=torch.float32)
                for i in set(looked_at) & set(range(begin, begin + m)):
                    assert same_bytes(got[i - begin], wanted[i]), f"row {i} of {m} from {begin}"


def test_other_rows_do_not_matter(kernel, device, generator, formats):
    """The same row among others, whose numbers, scales and NaN codes differ."""
    for m in (2, 20, 40, 70, 130):
        one, other = (draw(Problem(m, 40, 300, formats[0]), generator).to(device) for _ in range(2))
        other.a.view(torch.uint8)[:] = 0x80 if formats[0] == torch.float8_e4m3fnuz else 0x7F
        row = m // 2
        other.a.view(torch.uint8)[row] = one.a.view(torch.uint8)[row]
        other.scale_a[row] = one.scale_a[row]
        other.b, other.scale_b = one.b, one.scale_b
        got, wanted = (run(kernel, inputs, out_dtype=torch.float32)[row] for inputs in (other, one))
        assert same_bytes(got, wanted), m


@pytest.mark.parametrize("m, n, k", [(1, 37, 1000), (7, 37, 272), (33, 13, 257), (130, 140, 400)])
def test_layout_does_not_change_bits(kernel, device, generator, formats, m, n, k):
    # Alignment and order decide between fast and careful loads, never the order of the sum.
    inputs = draw(Problem(m, n, k, formats[m % len(formats)]), generator)
    wanted = run(kernel, inputs.to(device), out_dtype=torch.float32)
    for layouts in [
        *((how, how, "dense", "dense") for how in OPERANDS),
        *((how, "dense", "dense", "dense") for how in OPERANDS),
        *(("dense", how, "dense", "dense") for how in OPERANDS),
        *(("dense", "dense", how, how) for how in SCALES if not how.startswith("one")),
    ]:
        moved, _ = placed_all(inputs, device, *layouts)
        assert same_bytes(run(kernel, moved, out_dtype=torch.float32), wanted), str(layouts)


def test_the_results_layout_does_not_change_bits(kernel, device, generator, formats):
    for dtype in FLOATS:
        inputs = draw(Problem(21, 37, 300, formats[0]), generator, bias=bias_of(torch.float32)).to(device)
        wanted = run(kernel, inputs, out_dtype=dtype)
        for pad, shift in ((0, 1), (1, 0), (16, 0), (37, 3)):
            out = Guarded((21, 37), dtype, device, pad=pad, shift=shift)
            assert same_bytes(run(kernel, inputs, out=out.t), wanted), f"{pad} {shift}"


def test_expanded_operands(kernel, device, generator, formats):
    # A stride of zero between rows is a layout like any other for what is only read.
    inputs = draw(Problem(8, 16, 160, formats[0]), generator, GROUP, SQUARE).to(device)
    inputs.a, inputs.b = inputs.a[:1].expand(8, -1), inputs.b[:1].expand(16, -1)
    inputs.scale_a, inputs.scale_b = inputs.scale_a[:1].expand(8, -1), inputs.scale_b[:1, :1].expand(1, 2)
    got = run(kernel, inputs, out_dtype=torch.float32)
    inputs.assert_right(got, "expanded")
    assert (got == got[0, 0]).all()


def test_a_format_that_the_device_does_not_multiply(kernel, device, generator, formats):
    for format in FP8:
        inputs = draw(Problem(3, 5, 64, format), generator).to(device)
        if format in formats:
            run(kernel, inputs)
            continue
        with pytest.raises(RuntimeError, match=f"a: dtype {short(format)}|a: dtype float8_{short(format)}"):
            run(kernel, inputs)
