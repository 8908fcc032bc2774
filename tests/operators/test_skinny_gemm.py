"""skinny_gemm against float64 with a derived bound, and what it promises about bits: same inputs, any batch."""

import pytest
import torch

from tests.problems.buffers import LAYOUTS, Guarded, guarded, same_bytes, threads
from tests.problems.inputs import FLOATS, FP8, random_codes, random_fp8, short
from tests.problems.pairwise import pairwise
from tests.problems.skinny_gemm import (
    BIASES,
    SCALES,
    Case,
    Inputs,
    K,
    M,
    N,
    Problem,
    assert_nan_stays_in_its_row_or_column,
    bias_of,
    draw,
    one,
    row_classes,
    run,
)
from tests.settings import SEED

CASES = [
    Case(*case)
    for case in pairwise(
        *(M, N, K, range(len(FP8)), FLOATS, SCALES, SCALES, BIASES),
        *((random_fp8, random_codes), tuple(LAYOUTS), tuple(LAYOUTS)),
        seed=SEED,
    )
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_against_float64(kernel, device, generator, formats, case):
    # A GPU multiplies one format, a CPU both.
    problem = Problem(case.m, case.n, case.k, formats[case.which_format % len(formats)])
    inputs = draw(problem, generator, case.scale_a, case.scale_b, case.bias, case.values).to(device)
    a = guarded(inputs.a, device, **LAYOUTS[case.layout])
    b = guarded(inputs.b, device, **LAYOUTS[case.layout_of_b])
    out = Guarded((case.m, case.n), case.dtype, device, **LAYOUTS[case.layout])
    assert kernel.skinny_gemm(a.t, b.t, inputs.scale_a, inputs.scale_b, inputs.bias, out=out.t) is out.t
    inputs.assert_right(out.t, problem.id)
    out.assert_guards_intact("out")
    for read in (a, b):
        read.assert_unchanged(problem.id)


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_a_result_of_its_own(kernel, device, generator, formats, dtype):
    inputs = draw(Problem(3, 13, 100, formats[0]), generator, bias=bias_of(torch.float32)).to(device)
    out = run(kernel, inputs, out_dtype=dtype)
    assert out.dtype == dtype
    inputs.assert_right(out, short(dtype))


def test_the_default_result_is_bfloat16(kernel, device, generator, formats):
    inputs = draw(Problem(3, 5, 32, formats[0]), generator).to(device)
    assert run(kernel, inputs).dtype == torch.bfloat16
    assert same_bytes(run(kernel, inputs), run(kernel, inputs, out_dtype=torch.bfloat16))


@pytest.mark.parametrize("k", [1, 17, 300])
@pytest.mark.parametrize("m", [1, 3, 4, 5, 8, 32])
def test_nan_stays_in_its_row_or_column(kernel, device, generator, format, m, k):
    inputs = draw(Problem(m, 37, k, format), generator).to(device)
    assert_nan_stays_in_its_row_or_column(
        lambda inputs: run(kernel, inputs, out_dtype=torch.float32), inputs, generator
    )


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


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
@pytest.mark.parametrize("scale", [2.0**-16, 2.0**-24, 2.0**-120, 2.0**-140])
def test_small_results(kernel, device, generator, formats, scale, dtype):
    # Subnormal in the result's type, and in float32 itself.
    inputs = draw(Problem(3, 13, 80, formats[0]), generator, one, one).to(device)
    inputs.scale_a = torch.full((), scale, device=device)
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
        fewest = [
            run(kernel, inputs.rows([(i + r) % 32 for r in range(sizes[0])]), out_dtype=torch.float32)
            for i in range(32)
        ]
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


@pytest.mark.parametrize("m, n, k", [(1, 37, 1000), (7, 37, 272), (32, 13, 257)])
def test_layout_does_not_change_bits(kernel, device, generator, formats, m, n, k):
    # Alignment decides between fast and careful loads, never the order of the sum.
    inputs = draw(Problem(m, n, k, formats[m % len(formats)]), generator).to(device)
    wanted = run(kernel, inputs, out_dtype=torch.float32)
    for pad, shift in ((0, 1), (1, 0), (16, 0), (37, 3)):
        a, b = (guarded(t, device, pad=pad, shift=shift) for t in (inputs.a, inputs.b))
        moved = Inputs(a.t, b.t, inputs.scale_a, inputs.scale_b, None)
        assert same_bytes(run(kernel, moved, out_dtype=torch.float32), wanted), f"{pad} {shift}"


def test_expanded_rows(kernel, device, generator, formats):
    # A stride of zero between rows is a layout like any other for what is only read.
    inputs = draw(Problem(8, 16, 96, formats[0]), generator, one, one).to(device)
    inputs.a, inputs.b = inputs.a[:1].expand(8, -1), inputs.b[:1].expand(16, -1)
    got = run(kernel, inputs, out_dtype=torch.float32)
    inputs.assert_right(got, "expanded")
    assert (got == got[0, 0]).all()
