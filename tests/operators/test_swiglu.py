"""swiglu_fp8 against the reference, and its silu against float64 over every 16-bit gate."""

import pytest
import torch

from problems import fp8_by_definition as definition
from problems.buffers import LAYOUTS, Guarded, guarded, raw, same_bytes, threads
from problems.comparisons import assert_rounded_alike
from problems.inputs import FP8, HALF, every_number, normal, positive, short
from problems.pairwise import SAMPLE, pairwise
from problems.swiglu import FORMS, ROWS, WIDTHS, Problem, assert_every_gate_within_two_ulps
from tests.operators.views import VIEWS

# From here downwards exp(-gate) overflows float32, and torch's silu gives -0 where the true value is some 1e-37.
TORCH_LOSES_BELOW = -88.0


PROBLEMS = [Problem(*case) for case in pairwise(FORMS, ROWS, WIDTHS, tuple(LAYOUTS), seed=SAMPLE)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
def test_against_the_reference(kernel, device, generator, problem):
    (dtype, fp8), layout = problem.form, LAYOUTS[problem.layout]
    values = normal((problem.rows, 2 * problem.d), dtype, generator, 3.0)
    scale = positive((1,), generator).to(device)
    wanted = kernel.reference.swiglu_fp8(values.to(device), scale, out_dtype=fp8)
    x, out = guarded(values, device, **layout), Guarded((problem.rows, problem.d), fp8, device, **layout)
    assert kernel.swiglu_fp8(x.t, scale, out=out.t) is out.t
    assert_rounded_alike(out.t, wanted, problem.id)
    out.assert_guards_intact("out")
    x.assert_unchanged("x")


@pytest.mark.parametrize("fp8", FP8, ids=short)
@pytest.mark.parametrize("shape", VIEWS)
def test_leading_dimensions(kernel, device, generator, shape, fp8):
    x = VIEWS[shape](normal((3, 5, 48), torch.bfloat16, generator, 3.0).to(device))
    scale = positive((), generator).to(device)
    wanted = kernel.reference.swiglu_fp8(x.contiguous(), scale, out_dtype=fp8)
    assert_rounded_alike(kernel.swiglu_fp8(x, scale, out_dtype=fp8), wanted, shape)


@pytest.mark.parametrize("fp8", FP8, ids=short)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_every_gate_is_within_two_ulps(kernel, device, generator, dtype, fp8):
    assert_every_gate_within_two_ulps(kernel, device, generator, dtype, fp8)


@pytest.mark.parametrize("fp8", FP8, ids=short)
@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_every_gate_as_in_torch(kernel, device, generator, spread, dtype, fp8):
    gates = every_number(dtype)
    gates = gates[~(gates < TORCH_LOSES_BELOW) | (gates == -torch.inf)]
    x = torch.cat([gates, normal(gates.shape, dtype, generator, spread)])[None].to(device)
    scale = positive((1,), generator).to(device)
    wanted = kernel.reference.swiglu_fp8(x, scale, out_dtype=fp8)
    assert_rounded_alike(kernel.swiglu_fp8(x, scale, out_dtype=fp8), wanted, f"spread {spread}")


@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_every_quotient(kernel, device, generator, dtype):
    """Every 16-bit number divided by scales around the powers of two, and others: the GPUs do not divide."""
    gate = 32.0  # silu(32) = 32
    up = every_number(dtype)
    up = up[up.abs() <= torch.finfo(dtype).max / gate]
    below, above = (torch.nextafter(torch.ones(()), torch.tensor(end)) for end in (0.0, 2.0))
    scales = torch.cat(
        [torch.stack([below, above, below / 2, above * 4]), torch.tensor([1.0, 3.0, 1 / 3, 448.0, 1e-3])]
    )
    x = torch.cat([torch.full_like(up, gate), up])[None]
    for scale in (*scales, *positive((4,), generator)):
        for fp8 in FP8:
            wanted = definition.encode((gate * up.float()) / scale, fp8)
            got = raw(kernel.swiglu_fp8(x.to(device), scale.to(device), out_dtype=fp8)[0].cpu())
            wrong = up[got != wanted]
            assert not len(wrong), f"{gate * wrong[0].item()!r} / {scale.item()!r}: {len(wrong)} wrong"


@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_gates_at_the_edge(kernel, device, dtype):
    largest = torch.finfo(dtype).max
    # Around exp's overflow (88.72) and underflow (-103.97); infinities; signed zeros.
    gates = [largest, 100.0, 88.0, 0.0, -0.0, -87.0, -88.0, -89.0, -100.0, -104.0, -1000.0, -largest]
    one, x = torch.ones(1, device=device), torch.tensor([*gates, *[1.0] * len(gates)]).to(dtype).to(device)
    got = kernel.swiglu_fp8(x, one, out_dtype=torch.float8_e4m3fn)
    assert raw(got).tolist() == [0x7E, 0x6C, 0x6B, 0x00, *[0x80] * 8]
    for fp8 in FP8:
        # inf * 1; silu(-inf), NaN as in torch; NaN; inf * 0
        x = torch.tensor([torch.inf, -torch.inf, torch.nan, torch.inf, 1.0, 1.0, 1.0, 0.0])
        got = kernel.swiglu_fp8(x.to(dtype).to(device), one, out_dtype=fp8).float().cpu()
        assert got[0] == torch.finfo(fp8).max
        assert got[1:].isnan().all()
        # NaN and infinity in `up`
        x = torch.tensor([1.0, 1.0, -1.0, 0.0, torch.nan, torch.inf, torch.inf, torch.inf])
        got = kernel.swiglu_fp8(x.to(dtype).to(device), one, out_dtype=fp8).float().cpu()
        assert got[0].isnan() and got[3].isnan()
        assert got[1] == torch.finfo(fp8).max == -got[2]


@pytest.mark.parametrize("fp8", FP8, ids=short)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_products_that_leave_the_16_bit_range(kernel, device, generator, dtype, fp8):
    # g * up is rounded to the input's type before the division: what overflows is infinity and saturates although
    # the quotient would fit, what is subnormal has lost digits although a small scale makes it large.
    info = torch.finfo(dtype)
    for size, divisor in ((info.max, info.max / 100), (info.tiny, info.tiny / 50)):
        gate, up = normal((8, 333), dtype, generator), normal((8, 333), torch.float32, generator)
        up = (up * size).clamp(-info.max, info.max).to(dtype)
        x = torch.cat([gate, up], dim=1).to(device)
        scale = torch.tensor([divisor], device=device)
        wanted = kernel.reference.swiglu_fp8(x, scale, out_dtype=fp8)
        assert_rounded_alike(kernel.swiglu_fp8(x, scale, out_dtype=fp8), wanted, f"{size}")
        assert wanted.float().unique().numel() > 20


def test_nan_stays_in_its_element(kernel, device, generator):
    values = normal((5, 2 * 77), torch.bfloat16, generator).to(device)
    scale = positive((1,), generator).to(device)
    clean = kernel.swiglu_fp8(values, scale)
    for column in (0, 40, 76, 77, 150, 153):
        x = values.clone()
        x[2, column] = torch.nan
        got = kernel.swiglu_fp8(x, scale)
        hit = torch.zeros(5, 77, dtype=torch.bool, device=device)
        hit[2, column % 77] = True
        assert torch.equal(got.float().isnan(), hit)
        assert torch.equal(got.view(torch.uint8)[~hit], clean.view(torch.uint8)[~hit])


@pytest.mark.parametrize("rows, d", [(33, 2880), (67, 1535), (3, 14336)])
def test_same_bytes_whatever_the_threads_and_the_batch(kernel, device, generator, rows, d):
    scale = positive((1,), generator).to(device)
    x = normal((rows, 2 * d), torch.bfloat16, generator, 3.0).to(device)
    results = []
    for count in (1, 2, 3):
        with threads(count):
            results.append(kernel.swiglu_fp8(x, scale))
    assert same_bytes(results[0], results[1]) and same_bytes(results[0], results[2])
    for row in range(rows):
        assert same_bytes(kernel.swiglu_fp8(x[row], scale), results[0][row])


def test_the_default_format_is_the_devices(kernel, device, generator):
    x, scale = normal((2, 16), torch.bfloat16, generator).to(device), torch.ones((), device=device)
    for module in (kernel, kernel.reference):
        assert module.swiglu_fp8(x, scale).dtype == kernel.fp8_dtype(device)


def by_gates(kernel, device, gates: torch.Tensor, fp8: torch.dtype) -> torch.Tensor:
    """swiglu_fp8's bytes for rows of gates, each beside an `up` of 1."""
    x = torch.cat([gates, torch.ones_like(gates)], dim=-1).to(device)
    return raw(kernel.swiglu_fp8(x, torch.tensor([0.05], device=device), out_dtype=fp8)).reshape(gates.shape)


def shown(gates: torch.Tensor, where: torch.Tensor) -> list[str]:
    return [hex(int(bits) & 0xFFFF) for bits in gates.view(torch.int16)[where][:8]]


@pytest.mark.parametrize("fp8", FP8, ids=short)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_every_pattern_beside_any_other(kernel, device, generator, dtype, fp8):
    """All 16-bit gates in a random order give the bytes that they give in sorted order."""
    gates = every_number(dtype)
    order = torch.randperm(len(gates), generator=generator)
    mixed = gates.view(torch.int16)[order].view(dtype)
    wrong = by_gates(kernel, device, mixed[None], fp8)[0] != by_gates(kernel, device, gates[None], fp8)[0][order]
    assert not wrong.any(), f"{int(wrong.sum())} gates differ: {shown(mixed, wrong)}"


# Signalling and quiet NaNs of both signs.
NANS = {torch.bfloat16: (0x7F81, 0xFFBF, 0x7FC0, 0xFFC1), torch.float16: (0x7C01, 0xFDFF, 0x7E00, 0xFE01)}


@pytest.mark.parametrize("fp8", FP8, ids=short)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_a_nan_does_not_hide_its_neighbours(kernel, device, generator, dtype, fp8):
    """One gate that needs the careful silu and one NaN near it, in a row of usual gates: a wave decides for all of its
    lanes, so that nothing else may make it careful."""
    width, infinity = 1024, torch.inf
    odd = torch.tensor(
        [-200.0, infinity, -infinity, -87.0, 21.0, torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype
    )
    nans = torch.tensor(NANS[dtype]).to(torch.int16).view(dtype)
    # Every odd gate with every NaN, before and behind it, one to three places away.
    cases = [(o, n, step) for o in range(len(odd)) for n in range(len(nans)) for step in (-3, -2, -1, 1, 2, 3)]
    gates = normal((len(cases), width), dtype, generator)
    at = torch.randint(3, width - 3, (len(cases),), generator=generator)
    alone = gates.clone()
    for row, (o, n, step) in enumerate(cases):
        alone.view(torch.int16)[row, at[row]] = odd.view(torch.int16)[o]
        gates.view(torch.int16)[row] = alone.view(torch.int16)[row]
        gates.view(torch.int16)[row, at[row] + step] = nans.view(torch.int16)[n]
    wrong = by_gates(kernel, device, gates, fp8) != by_gates(kernel, device, alone, fp8)
    wrong &= ~gates.isnan()
    assert not wrong.any(), f"{int(wrong.sum())} gates differ: {shown(gates, wrong)}"
