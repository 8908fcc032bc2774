"""The fused operators with computed scales: y is what the static operator would quantise, (q, scale) exactly those that
quantize_fp8 gives of y."""

import itertools
from dataclasses import replace

import pytest
import torch

from problems.buffers import guarded, same_bytes, threads
from problems.dynamic import (
    LAYOUTS,
    LIMITS,
    NORMS,
    OPERATORS,
    SWIGLU,
    Operands,
    SwigluProblem,
    assert_norm_as_defined,
    assert_quantised_from,
    assert_same_without_y,
    assert_swiglu_as_defined,
    both_products,
    draw,
    gated,
    norm_sample,
    swiglu_sample,
)
from problems.inputs import FP8, HALF, normal, short
from problems.pairwise import SAMPLE
from problems.quantize import KINDS, SCALINGS, assert_as_defined, special_values
from tests.operators.views import VIEWS

every_scaling = pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: f"{s[0]}{s[1] if s[0] == 'group' else ''}")
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda k: short(k[0]) + ("-pow2" if k[1] else ""))
every_operator = pytest.mark.parametrize("operator", OPERATORS)
every_norm = pytest.mark.parametrize("operator", NORMS)


@pytest.mark.parametrize("problem", norm_sample(SAMPLE), ids=lambda p: p.id)
def test_a_norm_is_as_defined(kernel, device, generator, problem):
    assert_norm_as_defined(kernel, device, problem, generator)


@pytest.mark.parametrize("problem", swiglu_sample(SAMPLE), ids=lambda p: p.id)
def test_swiglu_is_as_defined(kernel, device, generator, problem):
    assert_swiglu_as_defined(kernel, device, problem, gated(problem, generator))


def plain_swiglu(dtype, fp8, rows: int, d: int, scaling, kind=KINDS[0], limit=None, layout="dense") -> SwigluProblem:
    return SwigluProblem(dtype, fp8, rows, d, scaling, kind, "rows", layout, False, False, limit)


def test_the_check_of_swiglu_finds_what_is_wrong(kernel, generator):
    """On the reference's results: a scale of another row or group, or an ulp away; a code of another scale."""
    for scaling in SCALINGS:
        problem = plain_swiglu(torch.bfloat16, torch.float8_e4m3fn, 5, 300, scaling)
        x = gated(problem, generator)
        products = both_products(x, None)
        q, scale = kernel.reference.swiglu_dynamic_fp8(x, **problem.arguments("cpu"))
        assert_quantised_from((q, scale), *products, problem)
        next_code = q.clone()
        next_code.view(torch.uint8)[3, int(torch.randint(300, (), generator=generator))] ^= 1
        wrong = [(q, torch.nextafter(scale, 2 * scale)), (next_code, scale)]
        if scaling[0] != "tensor":
            wrong += [(q.roll(1, 0), scale.roll(1, 0)), (q, scale.roll(1, 0)), (q, scale.amax() + 0 * scale)]
        for spoilt in wrong:
            with pytest.raises(AssertionError, match=r"codes|scales"):
                assert_quantised_from(spoilt, *products, problem)


# --- special values ---


def beside(special: torch.Tensor, ordinary: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Row i is ordinary but for special[i] in a tenth of its places; the last row holds all of them in turn."""
    rows, d = len(special) + 1, ordinary.shape[-1]
    places = torch.rand(rows - 1, d, generator=generator) < 0.1
    mixed = ordinary.clone()
    # As bits: a signalling NaN stays one.
    bits = {2: torch.int16, 4: torch.int32}[ordinary.element_size()]
    mixed.view(bits)[:-1] = torch.where(places, special.view(bits)[:, None], mixed.view(bits)[:-1])
    mixed.view(bits)[-1] = special.view(bits).repeat(d)[:d]
    return mixed


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("fp8", FP8, ids=short)
@every_scaling
@pytest.mark.parametrize("limit", LIMITS[:2], ids=str)
def test_special_values_in_swiglu(kernel, device, generator, dtype, fp8, scaling, limit):
    """As gates, as `up`, and as both: beside ordinary values, in every lane."""
    special, d = special_values(dtype), 1032
    rows = len(special) + 1
    ordinary = normal((4, rows, d), dtype, generator, 2.0)
    gates, ups = (beside(special, part, generator) for part in ordinary[:2])
    both = torch.cat([torch.cat(pair, -1) for pair in ((gates, ordinary[2]), (ordinary[3], ups), (gates, ups.flip(0)))])
    problem = plain_swiglu(dtype, fp8, 3 * rows, d, scaling, limit=limit)
    assert_swiglu_as_defined(kernel, device, problem, both)


@pytest.mark.parametrize("wide_weight", [False, True], ids=["own", "f32"])
@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("fp8", FP8, ids=short)
@every_scaling
@every_norm
def test_special_values_in_norms(kernel, device, generator, operator, dtype, fp8, wide_weight, scaling):
    """In x, in the residual or in the weights. NaN in x is NaN in its row, in a weight in its column."""
    weight_dtype = torch.float32 if wide_weight else dtype
    special, of_weights = special_values(dtype), special_values(weight_dtype)
    usual = draw(operator, (len(special) + 1, 1032), dtype, generator, weight_dtype)
    cases = [replace(usual, x=beside(special, usual.x, generator))]
    odd = beside(of_weights, usual.weight.expand(len(of_weights) + 1, -1), generator)
    cases += [replace(usual, weight=weight) for weight in odd]
    if usual.residual is not None:
        cases.append(replace(usual, residual=beside(special, usual.residual, generator)))
    options = dict(scaling=scaling[0], group_size=scaling[1], out_dtype=fp8)
    for i, operands in enumerate(case.to(device) for case in cases):
        assert_same_without_y(kernel, operands, f"case {i}", **options)
        assert operands.call(kernel, **options)[1].isfinite().all()


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-15, 1e-10, 2.0**-24, 2.0**-14, 1.0, 240.0, 448.0, 3e4])
@every_kind
@every_scaling
def test_maxima_at_the_ends(kernel, device, generator, scaling, kind, size):
    """Zeros; y below 1e-10; float16's subnormal numbers; where a scale is a power of two already."""
    options = dict(scaling=scaling[0], group_size=scaling[1], scale_dtype=kind[0], power_of_two=kind[1])
    for dtype, fp8 in itertools.product(HALF, FP8):
        # silu(32) is 32.
        y = normal((4, 136), torch.float32, generator).clamp(-1, 1)
        y[:, ::40], y[1] = 1.0, 0.0
        y = (y * size).to(dtype)
        x = torch.cat([torch.full_like(y, 32.0), y / 32], dim=-1)
        assert_swiglu_as_defined(kernel, device, plain_swiglu(dtype, fp8, 4, 136, scaling, kind), x)
        # Norms of 1, of 0 and of others, times a weight of `size`.
        rows = torch.cat([torch.ones(2, 136), torch.zeros(2, 136), normal((2, 136), torch.float32, generator)])
        for operator in NORMS:
            residual = torch.zeros_like(rows).to(dtype) if operator == NORMS[1] else None
            operands = Operands(operator, rows.to(dtype), residual, torch.full((136,), size)).to(device)
            assert_same_without_y(kernel, operands, f"{operator} {dtype}", **options, out_dtype=fp8)


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("limit", [1, 7.0, 0.1, 1e-7, 6.9e4, 1e39])
def test_a_limit_clamps_before_silu(kernel, device, generator, limit, dtype):
    """It is rounded to the type: to a subnormal number, or to infinity."""
    x = normal((5, 2 * 300), dtype, generator, 8.0)
    x[1, ::7] *= 1000
    x[2, ::9], x[3, ::5] = torch.inf, -torch.inf
    problem = plain_swiglu(dtype, torch.float8_e4m3fn, 5, 300, ("row", 128), limit=limit)
    assert_swiglu_as_defined(kernel, device, problem, x)
    wanted = kernel.reference.swiglu_dynamic_fp8(x, limit=limit, **problem.arguments("cpu"))
    assert_quantised_from(wanted, *both_products(x, limit), problem)


# --- shapes, layouts, repetitions ---


@pytest.mark.parametrize("shape", [each for each in VIEWS if each != "expanded"])
@every_operator
def test_leading_dimensions(kernel, device, generator, operator, shape):
    """The bytes of the same rows, dense; the residual is updated through its strides."""
    operands = draw(operator, (3, 5, 320), torch.bfloat16, generator).to(device).rows(VIEWS[shape])
    flat = operands.rows(lambda t: t.reshape(-1, t.shape[-1]))
    leading = operands.x.shape[:-1]
    for scaling, kind, column_major in itertools.product(SCALINGS, KINDS, (False, True)):
        options = dict(scaling=scaling[0], group_size=scaling[1], scale_dtype=kind[0], power_of_two=kind[1])
        q, scale = operands.call(kernel, **options, column_major_scales=column_major)
        flat_q, flat_scale = flat.call(kernel, **options)
        assert q.shape == (*leading, flat_q.shape[-1]) and same_bytes(q.reshape(flat_q.shape), flat_q)
        assert scale.shape == ((1,) if scaling[0] == "tensor" else (*leading, flat_scale.shape[-1]))
        assert same_bytes(scale.reshape(flat_scale.shape), flat_scale), str(options)
    if operands.residual is not None:
        summed = operands.normalised()
        kernel.add_rms_norm_dynamic_fp8(operands.x, operands.residual, operands.weight)
        assert same_bytes(operands.residual, summed)


@pytest.mark.parametrize("shape", [(0, 300), (2, 0), (0, 0), (2, 0, 300)], ids=str)
@every_operator
def test_an_empty_x(kernel, device, generator, operator, shape):
    """Its scales are those of zeros."""
    operands = draw(operator, shape, torch.float16, generator).to(device)
    for scaling, kind, fp8 in itertools.product(SCALINGS, KINDS, FP8):
        options = dict(scaling=scaling[0], group_size=scaling[1], scale_dtype=kind[0], power_of_two=kind[1])
        if operator != SWIGLU:
            options["normalized_out"] = torch.empty(shape, dtype=torch.float16, device=device)
        q, scale = operands.call(kernel, **options, out_dtype=fp8)
        options.pop("normalized_out", None)
        zeros = torch.zeros(shape, device=device)
        assert q.shape == shape and q.dtype == fp8
        assert_as_defined((q, scale), kernel.reference.quantize_fp8(zeros, **options, out_dtype=fp8), str(options))


@every_scaling
@every_operator
def test_the_same_bits_again_and_alone(kernel, device, generator, operator, scaling):
    """Of a row, however many rows and threads there are; of a tensor, again."""
    for dtype, d in itertools.product(HALF, (136, 2880)):
        operands = draw(operator, (41, d), dtype, generator).to(device)
        options = dict(scaling=scaling[0], group_size=scaling[1])
        first, *others = results_by_threads(kernel, operands, **options)
        for other in others:
            assert all(map(same_bytes, first, other))
        if scaling[0] == "tensor":
            continue
        for some in (slice(7, 8), slice(40, 41), slice(3, 20)):
            alone = operands.rows(lambda t: t[some]).call(kernel, **options)
            assert all(same_bytes(a, b[some]) for a, b in zip(alone, first)), f"rows {some}"


def results_by_threads(kernel, operands: Operands, **options) -> list[tuple[torch.Tensor, torch.Tensor]]:
    results = []
    for count in (1, 1, 2, 3):
        with threads(count):
            results.append(operands.call(kernel, **options))
    return results


@every_scaling
@every_operator
def test_the_layout_changes_no_bit(kernel, device, generator, operator, scaling):
    options = dict(scaling=scaling[0], group_size=scaling[1], scale_ub=torch.tensor([4.0], device=device))
    for dtype, d in itertools.product(HALF, (7, 1032, 4096)):
        operands = draw(operator, (5, d), dtype, generator).to(device)
        wanted = operands.call(kernel, **options)
        for name, layout in LAYOUTS.items():
            placed = operands.rows(lambda t: guarded(t, device, **layout).t)
            assert all(map(same_bytes, placed.call(kernel, **options), wanted)), f"{dtype} {d} {name}"


def test_the_default_format_is_the_devices(kernel, device, generator):
    for operator in OPERATORS:
        operands = draw(operator, (2, 16), torch.bfloat16, generator).to(device)
        for module in (kernel, kernel.reference):
            assert operands.call(module)[0].dtype == kernel.fp8_dtype(device)
