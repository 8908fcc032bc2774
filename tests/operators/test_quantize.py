"""quantize_fp8 against its definition: the same bytes, and the same scales, for every mode, type, size and layout."""

import itertools
import math

import pytest
import torch

from problems.buffers import LAYOUTS, Guarded, guarded, same_bytes
from problems.inputs import FLOATS, FP8, normal, positive, short
from problems.pairwise import SAMPLE
from problems.quantize import KINDS, SCALINGS, assert_as_defined, sample, scales_for, special_values, values

PROBLEMS = sample(SAMPLE)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
def test_as_defined(kernel, device, generator, problem):
    x = guarded(values(problem, generator), device, **LAYOUTS[problem.layout])
    out = Guarded((problem.rows, problem.d), problem.fp8, device, **LAYOUTS[problem.layout])
    scales = scales_for(problem, device)
    arguments = problem.arguments(device)
    got = kernel.quantize_fp8(
        x.t,
        **arguments,
        column_major_scales=problem.place == "columns",
        out=out.t,
        scale_out=None if scales is None else scales.t,
    )
    assert got[0] is out.t and (scales is None or got[1] is scales.t)
    assert_as_defined(got, kernel.reference.quantize_fp8(x.t, **arguments), problem.id)
    for buffer in (out, scales):
        if buffer is not None:
            buffer.assert_guards_intact(problem.id)
    x.assert_unchanged()


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
@pytest.mark.parametrize("fp8", FP8, ids=short)
@pytest.mark.parametrize("scaling", [None, *SCALINGS], ids=str)
def test_special_values_beside_ordinary_ones(kernel, device, generator, dtype, fp8, scaling):
    """Each in every place of a vector of 8, and in every lane."""
    special, d = special_values(dtype), 1024
    x = normal((len(special) + 1, d), dtype, generator)
    places = torch.rand(len(special), d, generator=generator) < 0.1
    x[:-1] = torch.where(places, special[:, None].expand(-1, d), x[:-1])
    x[-1] = special.repeat(d)[:d]
    x = x.to(device)
    arguments = dict(out_dtype=fp8)
    if scaling is None:
        arguments["scale"] = positive((1,), generator).to(device)
    else:
        arguments |= dict(scaling=scaling[0], group_size=scaling[1])
    got, wanted = (module.quantize_fp8(x, **arguments) for module in (kernel, kernel.reference))
    assert_as_defined(got, wanted, f"{dtype} {scaling}")
    assert got[1].float().isfinite().all()


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("value", [0.0, 2.0**-149, 1e-12, 448.0, 240.0, 3.3e38])
def test_maxima_at_the_ends(kernel, device, value, scaling, kind):
    """Zeros and maxima below 1e-10, powers of two that a scale already is, the largest numbers."""
    for sign, dtype in itertools.product((1.0, -1.0), (torch.float32, torch.bfloat16)):
        x = torch.full((3, 136), sign * value, dtype=dtype, device=device)
        arguments = dict(scaling=scaling[0], group_size=scaling[1], scale_dtype=kind[0], power_of_two=kind[1])
        got, wanted = (module.quantize_fp8(x, **arguments) for module in (kernel, kernel.reference))
        assert_as_defined(got, wanted, f"{value} {dtype}")


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_what_scales_promise(kernel, device, generator, dtype):
    """By the numbers, not by the reference: nothing saturates, the largest value reaches the top, powers of two are the
    least ones, and dequantising gives x within half a step."""
    x = normal((16, 512), dtype, generator).to(device)
    largest = 448.0
    for power_of_two in (False, True):
        q, scale = kernel.quantize_fp8(
            x, scaling="group", power_of_two=power_of_two, out_dtype=torch.float8_e4m3fn, fp8_max=largest
        )
        amax = x.float().unflatten(-1, (4, 128)).abs().amax(-1)
        if power_of_two:
            mantissa, _ = torch.frexp(scale)
            assert (mantissa == 0.5).all() and (scale >= amax / largest).all() and (scale / 2 < amax / largest).all()
        else:
            torch.testing.assert_close(scale, amax / largest, rtol=2**-23, atol=0)
            assert (q.float().unflatten(-1, (4, 128)).abs().amax(-1) == largest).all()
        back = q.float() * scale.repeat_interleave(128, -1)
        # Half an ulp of 4 bits, or half the smallest subnormal.
        error = torch.maximum(x.float().abs() * 2**-4, scale.repeat_interleave(128, -1) * 2**-10)
        assert ((back - x.float()).abs() <= error * (1 + 1e-5)).all()


@pytest.mark.parametrize("leading", [(), (2, 3), (4, 1, 3), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("column_major", [False, True])
def test_leading_dimensions_and_empty_ones(kernel, device, generator, leading, column_major):
    for scaling, groups in (("row", 1), ("group", 3), ("tensor", None)):
        x = normal((*leading, 300), torch.bfloat16, generator).to(device)
        for scale_dtype in (torch.float32, torch.float8_e8m0fnu):
            options = dict(scaling=scaling, scale_dtype=scale_dtype)
            got = kernel.quantize_fp8(x, **options, column_major_scales=column_major)
            assert got[1].shape == ((1,) if groups is None else (*leading, groups))
            assert_as_defined(got, kernel.reference.quantize_fp8(x, **options), f"{leading} {scaling}")
            if column_major and groups == 3 and math.prod(leading):
                step = got[1].stride(-1) * scale_dtype.itemsize
                assert step % 16 == 0 and step >= math.prod(leading) * scale_dtype.itemsize
                if len(leading) == 2:
                    assert got[1].stride()[:2] == (leading[1], 1)
    q, scale = kernel.quantize_fp8(torch.empty(2, 0, device=device), scaling="row")
    assert q.shape == (2, 0) and same_bytes(scale, kernel.quantize_fp8(torch.zeros(2, 8, device=device))[1])


def test_a_transposed_batch_and_a_given_scale(kernel, device, generator):
    x = normal((4, 6, 64), torch.float16, generator).to(device).transpose(0, 1)
    scale = positive((1,), generator).to(device)
    for arguments in (dict(scale=scale), dict(scaling="row"), dict(scaling="group", group_size=32)):
        got, wanted = (module.quantize_fp8(x, **arguments) for module in (kernel, kernel.reference))
        assert_as_defined(got, wanted, str(arguments))
    assert kernel.quantize_fp8(x, scale)[1] is scale


def test_the_same_bits_again_and_alone(kernel, device, generator):
    """Of a row, however many rows there are."""
    x = normal((40, 2048), torch.bfloat16, generator).to(device)
    for scaling in ("row", "group"):
        first, again = (kernel.quantize_fp8(x, scaling=scaling) for _ in range(2))
        alone = kernel.quantize_fp8(x[7:8], scaling=scaling)
        for a, b, c in zip(first, again, alone):
            assert same_bytes(a, b) and same_bytes(a[7:8], c)


def test_to_fnuz_is_exact(kernel, device):
    """Every byte: the same numbers at twice the scale."""
    q = torch.arange(256, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    for scale in (torch.tensor([0.3]), torch.tensor([0.25]).to(torch.float8_e8m0fnu)):
        converted, twice = kernel.to_fnuz(q, scale.to(device))
        assert converted.dtype == torch.float8_e4m3fnuz and twice.dtype == scale.dtype
        before, after = (a.float().cpu() * b.float().cpu() for a, b in ((q, scale), (converted, twice)))
        assert torch.equal(before.isnan(), after.isnan()) and int(after.isnan().sum()) == 2
        assert torch.equal(before.nan_to_num(7.0), after.nan_to_num(7.0))
    transposed = kernel.to_fnuz(q.view(16, 16).t(), torch.ones(16, 1, device=device))[0]
    assert torch.equal(
        transposed.t().reshape(-1).view(torch.uint8), kernel.to_fnuz(q, torch.ones(1))[0].view(torch.uint8)
    )
    with pytest.raises(RuntimeError, match="to_fnuz: q: dtype torch.float8_e4m3fnuz"):
        kernel.to_fnuz(converted, twice)
    with pytest.raises(RuntimeError, match="to_fnuz: scale: dtype torch.float16"):
        kernel.to_fnuz(q, torch.ones(1, dtype=torch.float16))
