"""quantize_int8, layer_norm_int8 and softmax_int8 against the reference and against what defines them."""

import pytest
import torch

from problems.buffers import LAYOUTS, Guarded, guarded, same_bytes, threads
from problems.inputs import FLOATS, normal, short, weights
from problems.int8 import INT8, special_rows
from problems.pairwise import SAMPLE, pairwise

WIDTHS = (1, 7, 8, 31, 32, 33, 100, 768, 1023, 1024, 1025, 2560, 5120)
ROWS = (1, 3, 33)
KINDS = ("symmetric", "asymmetric", "static", "static-zero")


def arguments(kind: str, device) -> tuple[tuple, dict]:
    """Of a call: scale and zero point, keywords."""
    if not kind.startswith("static"):
        return (None, None), dict(symmetric=kind == "symmetric")
    zero = torch.tensor([-17], dtype=torch.int32, device=device) if kind == "static-zero" else None
    return (torch.tensor([0.037], device=device), zero), {}


def on_cpu(values: tuple) -> tuple:
    return tuple(v.cpu() if isinstance(v, torch.Tensor) else v for v in values)


def assert_same(got: tuple, wanted: tuple, what: str = "") -> None:
    assert len(got) == len(wanted) == 3
    for name, a, b in zip(("q", "scale", "zero_point"), got, wanted):
        assert (a is None) == (b is None), f"{what} {name}"
        if a is not None:
            assert same_bytes(a, b), f"{what} {name}"


# --- quantize_int8 ---


@pytest.mark.parametrize(
    "rows, d, dtype, kind, layout, layout_out",
    pairwise(ROWS, WIDTHS, FLOATS, KINDS, tuple(LAYOUTS), tuple(LAYOUTS), seed=SAMPLE),
    ids=str,
)
def test_every_byte_is_the_references(kernel, device, generator, rows, d, dtype, kind, layout, layout_out):
    values = normal((rows, d), dtype, generator, 2.0)
    scales, options = arguments(kind, device)
    wanted = kernel.reference.quantize_int8(values, *on_cpu(scales), **options)
    x = guarded(values, device, **LAYOUTS[layout])
    out = Guarded((rows, d), INT8, device, **LAYOUTS[layout_out])
    written = [out]
    if not kind.startswith("static"):
        written.append(Guarded((rows, 1), torch.float32, device, **LAYOUTS[layout_out]))
        options["scale_out"] = written[1].t
    if kind == "asymmetric":
        written.append(Guarded((rows, 1), torch.int32, device, **LAYOUTS[layout]))
        options["zero_point_out"] = written[2].t
    got = kernel.quantize_int8(x.t, *scales, **options, out=out.t)
    assert got[0] is out.t
    assert_same(got, wanted)
    for buffer in written:
        buffer.assert_guards_intact()
    x.assert_unchanged()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
@pytest.mark.parametrize("d", [2, 40, 1500])
def test_special_values(kernel, device, generator, d, dtype, kind):
    x = special_rows(dtype, d, generator)
    scales, options = arguments(kind, device)
    got = kernel.quantize_int8(x.to(device), *scales, **options)
    assert_same(got, kernel.reference.quantize_int8(x, *on_cpu(scales), **options))
    q, scale, zero = (None if t is None else t.cpu() for t in got)
    assert scale.isfinite().all() and (scale > 0).all()
    nothing = 0 if zero is None else zero.expand(q.shape).int()
    assert (q.int()[x.isnan()] == (nothing if zero is None else nothing[x.isnan()])).all()
    assert (q[x == torch.inf] == 127).all() and (q[x == -torch.inf] == -128).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
@pytest.mark.parametrize("symmetric", [True, False])
def test_half_a_step_at_most(kernel, device, generator, dtype, symmetric):
    """x ~ scale * (q - zero): the definition, not the reference."""
    x = normal((50, 300), dtype, generator, 3.0)
    x[:20] = x[:20].abs()
    q, scale, zero = kernel.quantize_int8(x.to(device), symmetric=symmetric)
    offset = 0 if symmetric else zero.cpu().double()
    back = scale.cpu().double() * (q.cpu().double() - offset)
    # An end of an asymmetric range may lie half a step outside, by the zero point's rounding.
    steps = 0.5 if symmetric else 1.0
    assert ((back - x.double()).abs() <= scale.cpu().double() * (steps + 1e-4)).all()
    if symmetric:
        assert (q.cpu().int().abs().amax(-1) == 127).all() and zero is None
    else:
        assert zero.dtype == torch.int32 and (zero.abs() <= 128).all()
        # 0 is exact.
        zeros = kernel.quantize_int8(torch.cat([x, torch.zeros_like(x)], 1).to(device), symmetric=False)
        assert (zeros[0][:, -1:].int() == zeros[2]).all()


def test_vllms_static_conventions(kernel, device, generator):
    """round(x / scale) + zero, saturated, in integers."""
    x = torch.arange(-2000, 2000).float() / 8
    scale = torch.tensor([0.5], device=device)
    for zero in (-128, -3, 0, 5, 127, 1000, -100000):
        of = torch.tensor([zero], dtype=torch.int32, device=device)
        wanted = ((x / 0.5).round().long() + zero).clamp(-128, 127)
        assert torch.equal(kernel.quantize_int8(x.to(device), scale, of)[0].cpu().long(), wanted), zero


def test_batches_of_rows_and_strides_of_scales(kernel, device, generator):
    x = normal((3, 4, 50), torch.bfloat16, generator).to(device)
    wanted = kernel.quantize_int8(x.transpose(0, 1).contiguous(), symmetric=False)
    assert_same(kernel.quantize_int8(x.transpose(0, 1), symmetric=False), wanted, "transposed")
    scales = torch.zeros(4, 3, 7, device=device)[..., 2:3]
    zeros = torch.zeros(4, 3, 5, dtype=torch.int32, device=device)[..., 1:2]
    got = kernel.quantize_int8(x.transpose(0, 1), symmetric=False, scale_out=scales, zero_point_out=zeros)
    assert got[1] is scales and got[2] is zeros
    assert_same(got, wanted, "strided")


def test_without_rows_or_values(kernel, device):
    for shape in ((0, 40), (3, 0), (0, 0)):
        x = torch.empty(shape, dtype=torch.float16, device=device)
        for kind in KINDS:
            scales, options = arguments(kind, device)
            got = kernel.quantize_int8(x, *scales, **options)
            assert got[0].shape == shape
            assert_same(got, kernel.reference.quantize_int8(x.cpu(), *on_cpu(scales), **options), f"{shape} {kind}")


def test_same_bytes_whatever_the_threads(kernel, device, generator):
    x = normal((700, 1000), torch.bfloat16, generator).to(device)
    wanted = kernel.quantize_int8(x, symmetric=False)
    probabilities = kernel.softmax_int8(x)
    normalized = kernel.layer_norm_int8(x, x[0], x[1])
    for count in (1, 3):
        with threads(count):
            assert_same(kernel.quantize_int8(x, symmetric=False), wanted)
            assert_same(kernel.layer_norm_int8(x, x[0], x[1]), normalized)
            assert same_bytes(kernel.softmax_int8(x), probabilities)


# --- layer_norm_int8 ---


def exact_layer_norm(h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    h = h.double()
    centered = h - h.mean(-1, keepdim=True)
    y = centered / (centered.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    return y if bias is None else y + bias.double()


def bound_of(h: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """How far y may be from its exact value: float32 sums of d terms, then y's own rounding."""
    d, h = h.shape[-1], h.double()
    scale = 1 / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    # Of the mean, of the variance, of the operations after them.
    relative = (d + 8) * 2.0**-24
    error = relative * (h.abs().mean(-1, keepdim=True) + h.abs() + 1 / scale) * scale * weight.double().abs() * 2
    digits = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    return error + y.abs() * (relative + 2.0**-digits) + 2.0**-24


@pytest.mark.parametrize(
    "rows, d, dtype, kind, layout, wide_weight, with_bias, with_residual",
    pairwise(
        *(ROWS, WIDTHS[1:], FLOATS, KINDS, tuple(LAYOUTS), (False, True), (False, True), (False, True)), seed=SAMPLE
    ),
    ids=str,
)
def test_layer_norm(kernel, device, generator, rows, d, dtype, kind, layout, wide_weight, with_bias, with_residual):
    kind_of_weight = torch.float32 if wide_weight else dtype
    x, before = normal((rows, d), dtype, generator, 2.0) + 0.5, normal((rows, d), dtype, generator, 3.0)
    weight, bias = weights((d,), kind_of_weight, generator), normal((d,), kind_of_weight, generator)
    bias = bias if with_bias else None
    scales, options = arguments(kind, device)
    read = guarded(x, device, **LAYOUTS[layout])
    residual = guarded(before, device, **LAYOUTS[layout]) if with_residual else None
    out = Guarded((rows, d), INT8, device, **LAYOUTS[layout])
    got = kernel.layer_norm_int8(
        *(read.t, weight.to(device), None if bias is None else bias.to(device), *scales),
        **options,
        residual=residual.t if residual else None,
        out=out.t,
    )
    assert got[0] is out.t
    out.assert_guards_intact()
    read.assert_unchanged()
    h = x
    if residual:
        h = x + before
        assert same_bytes(residual.t, h)
        residual.assert_guards_intact()
    q, scale, zero = (None if t is None else t.cpu().double() for t in got)
    y = exact_layer_norm(h, weight, bias)
    near = bound_of(h, y, weight, dtype)
    if kind == "symmetric":
        amax = y.abs().amax(-1, keepdim=True)
        assert ((scale * 127 - amax).abs() <= near.amax(-1, keepdim=True) + amax * 2.0**-22).all()
    # By the scales that it returned: half a step, and what y may be off.
    offset = 0 if zero is None else zero
    low, high = ((end - offset) * scale for end in (-128, 127))
    wanted = torch.maximum(torch.minimum(y, high), low)
    assert ((scale * (q - offset) - wanted).abs() <= near + scale * 0.5001).all()


def test_layer_norm_of_smoothquant(kernel, device, generator):
    """Weight and bias divided by the scale: LayerNormQ, which is torch's layer_norm, rounded."""
    x = normal((20, 768), torch.float32, generator, 2.0)
    weight, bias = weights((768,), torch.float32, generator) * 70, normal((768,), torch.float32, generator, 9.0)
    y = torch.nn.functional.layer_norm(x, (768,), weight, bias, 1e-5)
    one = torch.ones(1, device=device)
    got = kernel.layer_norm_int8(x.to(device), weight.to(device), bias.to(device), one)[0].cpu().float()
    assert ((got - y.clamp(-128, 127)).abs() <= 0.5 + 4e-3).all()
    assert got.min() == -128 and got.max() == 127


def test_layer_norm_of_a_constant_row(kernel, device):
    for value in (0.0, 3.0, -1e4, torch.nan, torch.inf):
        x = torch.full((2, 70), value, device=device)
        weight, bias = torch.ones(70, device=device), torch.full((70,), 2.0, device=device)
        q, _, _ = kernel.layer_norm_int8(x, weight, bias, torch.tensor([0.5], device=device))
        assert (q == (4 if abs(value) < 1e5 else 0)).all(), value


def test_layer_norm_of_a_transposed_batch(kernel, device, generator):
    x, residual = (normal((3, 5, 64), torch.float16, generator).to(device) for _ in range(2))
    weight = weights((64,), torch.float16, generator).to(device)
    kept = residual.transpose(0, 1).contiguous()
    wanted = kernel.layer_norm_int8(x.transpose(0, 1).contiguous(), weight, residual=kept)
    assert_same(kernel.layer_norm_int8(x.transpose(0, 1), weight, residual=residual.transpose(0, 1)), wanted)
    assert same_bytes(residual.transpose(0, 1), kept)


# --- softmax_int8 ---


def assert_probabilities(got: torch.Tensor, values: torch.Tensor) -> None:
    """127 times the float64 softmax, rounded: within half a step and float32's errors."""
    exact = 127 * torch.softmax(values.double(), -1)
    # exp within 2 ulp, d additions, a quotient and a product; the difference from the maximum, which exp magnifies.
    largest = values.double().amax(-1, keepdim=True)
    relative = (values.shape[-1] + 8 + (largest - values.double()).clamp(max=200) + largest.abs()) * 2.0**-23
    assert ((got.cpu().double() - exact).abs() <= 0.5 + exact * relative).all()


@pytest.mark.parametrize(
    "shape, d, dtype, mask, layout",
    pairwise(
        *(((5,), (2, 3), (2, 3, 4), ()), WIDTHS, FLOATS, (None, "full", "rows", "one", "float32"), tuple(LAYOUTS)),
        seed=SAMPLE,
    ),
    ids=str,
)
def test_softmax(kernel, device, generator, shape, d, dtype, mask, layout):
    x = guarded(normal((*shape, d), dtype, generator, 3.0), device, **LAYOUTS[layout])
    shapes = {"full": (*shape, d), "rows": (*(1,) * len(shape[:-1]), *shape[-1:], d), "one": (d,), "float32": (d,)}
    added = None
    if mask is not None:
        added = normal(shapes[mask], torch.float32 if mask == "float32" else dtype, generator)
        added[torch.rand(added.shape, generator=generator) < 0.3] = -torch.inf
        added[..., 0] = 0
        added = added.to(device)
    out = Guarded((*shape, d), INT8, device, **LAYOUTS[layout])
    assert kernel.softmax_int8(x.t, added, out=out.t) is out.t
    out.assert_guards_intact()
    x.assert_unchanged()
    values = x.t.float() if added is None else x.t.float() + added.float()
    assert_probabilities(out.t, values.cpu())
    assert (out.t[values == -torch.inf] == 0).all() and (out.t >= 0).all()


def test_softmax_of_heads_in_place(kernel, device, generator):
    """[tokens, heads, d] seen as [heads, tokens, d]: neither scores nor results are copied."""
    x, out = normal((6, 3, 50), torch.float32, generator).to(device), Guarded((6, 3, 50), INT8, device)
    kernel.softmax_int8(x.transpose(0, 1), out=out.t.transpose(0, 1))
    assert same_bytes(out.t, kernel.softmax_int8(x))


def test_softmax_of_rows_without_probabilities(kernel, device):
    x = torch.randn(5, 40, device=device)
    x[0], x[1, 3], x[2, 7], x[3, 5:] = -torch.inf, torch.nan, torch.inf, -torch.inf
    got = kernel.softmax_int8(x)
    assert (got[:3] == 0).all() and (got[3, 5:] == 0).all()
    assert_probabilities(got[3:], x[3:].cpu())


def test_softmax_of_extremes(kernel, device):
    x = torch.tensor([[3e38, -3e38, 3e38, 0.0], [-3e38, -3e38, -3e38, -3e38], [100.0, 0.0, 12.0, 99.0]], device=device)
    wanted = (127 * torch.softmax(x.double().cpu(), -1)).round()
    assert torch.equal(kernel.softmax_int8(x).cpu().double(), wanted)
    assert (kernel.softmax_int8(torch.zeros(2, 1, device=device)) == 127).all()
    assert kernel.softmax_int8(torch.zeros(0, 7, device=device)).shape == (0, 7)
    assert kernel.softmax_int8(torch.zeros(7, 0, device=device)).shape == (7, 0)


def test_softmax_of_rows_that_are_spread_evenly(kernel, device):
    """Its scale is fixed: 1 / 254 is half a step, and ties go to the even code, 0."""
    for keys, code in ((253, 1), (254, 0), (1000, 0)):
        assert (kernel.softmax_int8(torch.zeros(2, keys, device=device)) == code).all()
