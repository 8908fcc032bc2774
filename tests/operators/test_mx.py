"""MX weights in block_scaled_gemm and grouped_gemm: sums against float64, every code and exponent, NaN, the same bits
whatever is beside a row. quantize_mxfp4: bytes. moe_gate against float64. fused_moe with MX experts: its parts."""

import math
from dataclasses import replace

import pytest
import torch

from problems.buffers import Guarded, same_bytes
from problems.comparisons import half_ulp, on_hopper
from problems.grouped_gemm import offsets_of
from problems.inputs import FP8, HALF, mx_codes, mx_exponents, normal
from problems.mx import KINDS, NUMBERS, Case, cases, draw, drawn, plain, values

F32, BF16, F16, U8, E8M0 = torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.float8_e8m0fnu
CASES = cases(
    rows=(0, 1, 4, 5, 16, 17, 33, 70),
    experts=(1, 2, 7, 40),
    n=(1, 13, 64, 129),
    k=(32, 64, 96, 160, 288),
    expected=(None, 1, 20),
)
each_kind = pytest.mark.parametrize("kinds", KINDS, ids="-".join)


def fp8_of(case: Case, formats) -> torch.dtype:
    return formats[-1 if case.fnuz else 0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_sums_are_right_and_nothing_else_is_written(kernel, device, formats, generator, case):
    inputs, held = draw(case, fp8_of(case, formats), generator).placed(device, case.layout)
    out = Guarded((inputs.count, case.n), case.dtype, device, pad=3 if case.layout == "odd" else 0)
    assert inputs.call(kernel, out=out.t, expected_rows=case.expected) is out.t
    out.assert_guards_intact()
    for each in held:
        each.assert_unchanged()
    live = inputs.live()
    inputs.assert_right(out.t[:live], case.id)
    untouched = Guarded((inputs.count, case.n), case.dtype, device).t[live:]
    assert same_bytes(out.t[live:].contiguous(), untouched.contiguous()), "rows beyond the last were written"


@each_kind
def test_a_long_sum(kernel, device, formats, generator, kinds):
    """K of gpt-oss: 90 blocks."""
    inputs = draw(plain(19, 40, 2880, kinds, biased=BF16), formats[0], generator).to(device)
    inputs.offsets = offsets_of([19]).to(device)
    inputs.assert_right(inputs.dense(kernel, out_dtype=F32), "-".join(kinds))


@pytest.mark.parametrize("rows", (5, 20))
@pytest.mark.parametrize("kinds", (("bf16", "mxfp4"), ("row", "mxfp8"), ("mxfp8", "mxfp4")), ids="-".join)
def test_more_columns_than_are_made_at_once(kernel, device, formats, generator, kinds, rows):
    """On Hopper two CTAs share out K."""
    inputs = draw(plain(rows, 8512, 2080, kinds, biased=BF16), formats[0], generator).to(device)
    inputs.offsets = offsets_of([rows]).to(device)
    inputs.assert_right(inputs.dense(kernel, out_dtype=F32), "-".join(kinds))


@each_kind
def test_a_rows_bits_are_its_own(kernel, device, formats, generator, kinds):
    """Dense and grouped, at any place: the same. Among few rows and among many, too, but for dense ones on Hopper."""
    inputs = draw(plain(70, 37, 224, kinds), formats[0], generator).to(device)
    inputs.offsets = offsets_of([70]).to(device)

    def dense(begin: int, end: int) -> torch.Tensor:
        codes = inputs.a.view(U8)[begin:end].view(inputs.a.dtype)
        scales = inputs.scale_a
        if scales is not None and scales.numel() > 1:
            scales = scales.view(U8)[begin:end].view(scales.dtype) if scales.dtype == E8M0 else scales[begin:end]
        return replace(inputs, a=codes, scale_a=scales).dense(kernel, out_dtype=F32)

    whole, few = inputs.dense(kernel, out_dtype=F32), dense(5, 37)
    assert same_bytes(whole, inputs.call(kernel, out_dtype=F32))
    assert same_bytes(whole, inputs.call(kernel, out_dtype=F32, expected_rows=2))
    assert on_hopper(few) or same_bytes(few, whole[5:37].contiguous())
    for begin, end in ((5, 6), (6, 8), (7, 11), (13, 29), (20, 37)):
        assert same_bytes(few[begin - 5 : end - 5].contiguous(), dense(begin, end))


@pytest.mark.parametrize("rows", (1, 33))
@pytest.mark.parametrize("dtype", HALF)
def test_every_code_in_every_place_with_every_exponent(kernel, device, rows, dtype):
    """One number of A is 1: the result is B's, exactly. Beside it column 255 alone is NaN."""
    k, exponents = 64, torch.arange(256, dtype=U8)
    codes = (torch.arange(k)[None] + torch.arange(16)[:, None]) % 16  # [16, k]: each code in each place
    for first in range(0, 4 if rows == 1 else k, rows):  # the other places are those of many rows
        a = torch.zeros(rows, k, dtype=dtype)
        places = torch.arange(first, first + rows) % k
        a[torch.arange(rows), places] = 1
        for of_codes in codes.unbind():
            b = (of_codes[::2] | of_codes[1::2] << 4).to(U8).expand(256, -1).contiguous()
            scales = exponents[:, None].expand(-1, 2).contiguous().view(E8M0)
            got = kernel.block_scaled_gemm(a.to(device), b.to(device), None, scales.to(device), out_dtype=F32).cpu()
            wanted = values(b, scales)[:, places].t().float()
            assert torch.equal(got.isnan(), wanted.isnan()) and bool(got[:, 255].isnan().all())
            assert torch.equal(got[:, :255], wanted[:, :255])


@pytest.mark.parametrize("rows", (1, 33, 256))
@pytest.mark.parametrize("kind", ("bf16", "f16", "row", "mxfp8"))
def test_every_fp8_weight_with_every_exponent(kernel, device, formats, generator, kind, rows):
    """One number of A is 1: the result is B's. On NVIDIA GPUs what is below 2^-125 is rounded to a multiple of it."""
    k, exponents = 256, torch.arange(256, dtype=U8)
    finite = torch.arange(256, dtype=U8)
    nans = finite.view(formats[0]).float().isnan()
    finite[nans] = 0
    shift = int(torch.randint(256, (), generator=generator))
    codes = finite.roll(shift).expand(257, -1).clone()
    codes[256, 77] = int(nans.nonzero()[0])
    scales = torch.cat([exponents, torch.tensor([127], dtype=U8)])[:, None].expand(-1, k // 32).contiguous().view(E8M0)
    for first in (0, 31, 128, 223) if rows == 1 else (0,):
        places = torch.arange(first, first + rows)
        a = torch.zeros(rows, k)
        a[torch.arange(rows), places] = 1
        scale_a = None
        if kind in ("row", "mxfp8"):
            a = a.to(formats[0])
            scale_a = torch.ones(rows, 1)
            if kind == "mxfp8":
                scale_a = torch.full((rows, k // 32), 127, dtype=U8).view(E8M0)
        else:
            a = a.to(BF16 if kind == "bf16" else F16)
        operands = (a, codes.view(formats[0]), scale_a, scales)
        got = kernel.block_scaled_gemm(*(t if t is None else t.to(device) for t in operands), out_dtype=F32)
        wanted = values(codes.view(formats[0]), scales)[:, places].t()
        if got.is_cuda and torch.version.cuda:
            wanted = torch.round(wanted * 2.0**125) * 2.0**-125
        got = got.cpu()
        assert bool(got[:, 255:].isnan().all())
        assert torch.equal(got[:, :255], wanted[:, :255].float())


@each_kind
def test_nan_stays_in_its_row_or_column(kernel, device, formats, generator, kinds):
    inputs = draw(plain(20, 24, 96, kinds), formats[0], generator)
    inputs.offsets = offsets_of([20])
    rows, columns = [], [5]
    inputs.scale_b.view(U8)[0, 5, 1] = 255
    if kinds[1] == "mxfp8":
        columns.append(9)
        inputs.b.view(U8)[0, 9, 40] = 0x7F if formats[0] == FP8[0] else 0x80
    if inputs.a.dtype in HALF:
        inputs.a[3, 70], inputs.a[4, 1] = math.nan, math.inf
        rows = [3, 4]
    elif inputs.a.dtype in FP8:
        inputs.a.view(U8)[3, 70] = 0x7F if formats[0] == FP8[0] else 0x80
        rows = [3]
    if kinds[0].startswith("mx"):
        inputs.scale_a.view(U8)[11, 2] = 255
        rows.append(11)
    got = inputs.to(device).dense(kernel, out_dtype=F32).cpu()
    exact = values(inputs.a, inputs.scale_a) @ values(inputs.b[0], inputs.scale_b[0]).t()
    assert torch.equal(got.isnan(), exact.isnan())
    others = [i for i in range(20) if i not in rows]
    assert bool(got[:, columns].isnan().all())
    assert not got[others][:, [j for j in range(24) if j not in columns]].isnan().any()


@pytest.mark.parametrize("rounding", ("up", "even"))
@pytest.mark.parametrize("dtype", (F32, *HALF))
def test_quantisation_is_the_definition(kernel, device, generator, dtype, rounding):
    """Every exponent of the type, ties, zeros of both signs, NaN and infinities beside numbers."""
    x = normal((64, 7 * 32), F32, generator)
    x[:48] *= torch.logspace(-44, 38, 48, dtype=torch.float64).float()[:, None]
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.1, -0.0, 0.0])
    x[48:56] = ties[torch.randint(0, len(ties), (8, 7 * 32), generator=generator)]
    x[48:56, ::32] = 6.0
    x[56, :32], x[57, 3], x[57, 40], x[58, 70] = 0, math.nan, math.inf, -math.inf
    x = x.to(dtype)
    codes, scales = kernel.quantize_mxfp4(x.to(device), rounding=rounding)
    codes, byte = codes.cpu(), scales.view(U8).cpu()
    blocks = x.double().unflatten(-1, (-1, 32))
    finite = blocks.isfinite().all(-1)
    assert torch.equal(byte == 255, ~finite)
    assert not codes.unflatten(-1, (-1, 16))[~finite].any()
    amax = torch.where(blocks.isfinite(), blocks.abs(), 0).amax(-1)
    if rounding == "up":
        exponent = torch.ceil(torch.log2(amax.clamp(min=6 * 2.0**-126) / 6))
    else:
        mantissa, power = torch.frexp(amax)
        power = torch.where(amax == 0, -149, power - 1)
        two = torch.round(mantissa * 4)  # halves of a number from 1 to 2: torch rounds ties to even
        exponent = (power + (two == 4) - 2).clamp(-127, 127)
    assert torch.equal((byte.double() - 127)[finite], exponent[finite].double())
    scaled = blocks / torch.exp2(byte.double() - 127)[..., None]
    got = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).unflatten(-1, (-1, 32)).long()
    nearest = (scaled.abs()[..., None] - NUMBERS[:8]).abs().amin(-1)
    far = scaled.abs() > 6
    error = (NUMBERS[got] - scaled).abs()
    assert torch.equal(error[finite & ~far.any(-1)], nearest[finite & ~far.any(-1)])
    assert torch.equal((got & 7)[far & finite[..., None]], torch.full_like(got, 7)[far & finite[..., None]])
    tie = (scaled.abs()[..., None] == torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])).any(-1)
    assert not (got & 1)[tie & finite[..., None]].any()
    assert torch.equal((got >> 3).bool()[finite], blocks.signbit()[finite])
    reference = kernel.reference.quantize_mxfp4(x.to(device), rounding=rounding)
    assert same_bytes(codes, reference[0].cpu()) and same_bytes(scales.cpu(), reference[1].cpu())


GATES = (
    dict(gate="silu"),
    dict(gate="silu", limit=2.5, interleaved=True),
    dict(gate="oai", limit=7.0, interleaved=True),
    dict(gate="oai", alpha=-0.5),
    dict(gate="situ", beta=4.0, linear_beta=25.0),
    dict(gate="situ", beta=0.5, limit=3.0),
)


@pytest.mark.parametrize("out_dtype", HALF)
@pytest.mark.parametrize("dtype", (F32, *HALF))
@pytest.mark.parametrize("keywords", GATES, ids=lambda k: "-".join(map(str, k.values())))
def test_gates_against_float64(kernel, device, generator, keywords, dtype, out_dtype):
    x = normal((37, 2 * 21), F32, generator, 4.0)
    x[:, ::5] *= torch.logspace(-30, 1.5, 37)[:, None]
    x = x.to(dtype)
    out = Guarded((37, 21), out_dtype, device, pad=3)
    offsets = torch.tensor([0, 11, 30], dtype=torch.int32)
    assert kernel.moe_gate(x.to(device), offsets.to(device), **keywords, out=out.t) is out.t
    out.assert_guards_intact()
    assert bool(out.t[30:].isnan().all()), "rows beyond the last were written"
    v = x.double()
    g, u = (v[:, ::2], v[:, 1::2]) if keywords.get("interleaved") else v.chunk(2, -1)
    limit = keywords.get("limit", math.inf)
    g, u = g.clamp(max=limit), u.clamp(-limit, limit)
    if keywords["gate"] == "silu":
        exact, size = g * torch.sigmoid(g) * u, 0
    elif keywords["gate"] == "oai":
        exact = (u + 1) * g * torch.sigmoid(keywords.get("alpha", 1.702) * g)
        size = (u.abs() + 1) * (g * torch.sigmoid(keywords.get("alpha", 1.702) * g)).abs()  # u near -1 cancels
    else:
        beta, linear = keywords["beta"], keywords.get("linear_beta")
        exact = beta * torch.tanh(g / beta) * torch.sigmoid(g) * (linear * torch.tanh(u / linear) if linear else u)
        size = 0
    # A dozen roundings, the exponential's two units, and its argument's: relative to how large that is.
    error = (24 + 4 * g.abs().clamp(max=90)) * 2.0**-24 * torch.maximum(exact.abs(), torch.as_tensor(size)) + 2.0**-125
    excess = (out.t.cpu().double() - exact).abs() - error - half_ulp(exact.abs() + error, out_dtype)
    assert bool((excess[:30] <= 0).all()), excess[:30].max()


def test_gates_of_special_values(kernel, device):
    inf, nan = math.inf, math.nan
    x = torch.tensor([[nan, 1.0], [1.0, nan], [inf, 1.0], [-inf, 1.0], [-200.0, 2.0], [0.0, inf], [-0.0, 1.0]])
    got = kernel.moe_gate(x.to(device), out_dtype=BF16).float().cpu().flatten()
    assert got[0].isnan() and got[1].isnan() and got[2] == inf and got[4] == 0 and got[5].isnan() and got[6] == 0
    limited = kernel.moe_gate(x.to(device), limit=7.0, gate="oai", out_dtype=BF16).float().cpu().flatten()
    assert limited[0].isnan() and limited[1].isnan() and bool(limited[[2, 4, 5, 6]].isfinite().all())


INPUTS = ("16bit", "fp8", "mxfp8", "mxfp4")


@pytest.mark.parametrize("weights_kind", ("mxfp4", "mxfp8"))
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("tokens", (1, 23))
def test_fused_moe_is_its_parts(kernel, device, formats, generator, tokens, inputs, weights_kind):
    if (inputs, weights_kind) == ("mxfp4", "mxfp8"):
        with pytest.raises(RuntimeError, match="fused_moe: inputs: "):
            run_moe(kernel, device, formats, generator, tokens, inputs, weights_kind)
        return
    run_moe(kernel, device, formats, generator, tokens, inputs, weights_kind)


def run_moe(kernel, device, formats, generator, tokens, inputs, weights_kind) -> None:
    experts, d, hidden, top = 5, 96, 64, 3
    x = normal((tokens, d), BF16, generator).to(device)
    w13, scale13 = (t.to(device) for t in drawn(weights_kind, (experts, 2 * hidden, d), formats[0], generator))
    w2, scale2 = (t.to(device) for t in drawn(weights_kind, (experts, d, hidden), formats[0], generator))
    bias13, bias2 = (normal((experts, n), F32, generator).to(device) for n in (2 * hidden, d))
    weights = torch.rand(tokens, top, generator=generator).to(device)
    chosen = torch.randint(-1, experts + 1, (tokens, top), generator=generator).int().to(device)
    gate = dict(gate="oai", limit=7.0, interleaved=True)
    results = []
    for module in (kernel, kernel.reference):
        options = dict(inputs=inputs, bias13=bias13, bias2=bias2, **gate)
        fused = module.fused_moe(x, w13, w2, weights, chosen, scale_w13=scale13, scale_w2=scale2, **options)
        results.append(fused.float())
    rows, offsets, positions = kernel.moe_sort(chosen, experts)

    def entering(v):
        if inputs == "16bit":
            return v, None
        if inputs == "mxfp4":
            return kernel.quantize_mxfp4(v, rounding="even")
        by = dict(scaling="group", group_size=32, scale_dtype=E8M0) if inputs == "mxfp8" else dict(scaling="row")
        return kernel.quantize_fp8(v, **by)

    q, scale = entering(x)
    product = kernel.grouped_gemm(
        q, w13, scale, scale13, offsets, rows=rows, slots=top, bias=bias13, out_dtype=F32,
        expected_rows=max(1, -(-tokens * top // experts)),
    )  # fmt: skip
    h, scale = entering(kernel.moe_gate(product, offsets, **gate))
    y = kernel.grouped_gemm(h, w2, scale, scale2, offsets, bias=bias2)
    assert same_bytes(results[0].to(BF16), kernel.moe_combine(y, weights, positions))
    assert (results[0] - results[1]).norm() <= 2e-2 * results[1].norm()


def test_what_a_checkpoint_says_is_taken(kernel, device, generator):
    """Without `inputs` rows of 16 bits enter as they are."""
    x = normal((9, 64), F16, generator).to(device)
    w13, w2 = (mx_codes(s, U8, generator).to(device) for s in ((4, 64, 32), (4, 64, 16)))
    of = dict(
        scale_w13=mx_exponents((4, 64, 2), generator).to(device),
        scale_w2=mx_exponents((4, 64, 1), generator).to(device),
    )
    routing = (
        torch.rand(9, 2, generator=generator).to(device),
        torch.randint(0, 4, (9, 2), generator=generator).to(device),
    )
    default = kernel.fused_moe(x, w13, w2, *routing, **of)
    assert same_bytes(default, kernel.fused_moe(x, w13, w2, *routing, **of, inputs="16bit"))
    assert not same_bytes(default, kernel.fused_moe(x, w13, w2, *routing, **of, inputs="fp8"))
