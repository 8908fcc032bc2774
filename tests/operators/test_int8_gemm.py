"""int8_gemm's own: exact sums, rounding, special scales, GELU, batches; and SmoothQuant's five wrappers. The rest is in
test_gemm_contract.py."""

import pytest
import torch

from problems.buffers import Guarded, guarded, same_bytes
from problems.inputs import HALF, normal, short
from problems.int8 import INT8, MOST_K, RESULTS, Inputs, any_bytes, draw, extremes, lowest, run, simple, spread

# --- the sum ---


@pytest.mark.parametrize("m, n, k", [(1, 40, 4096), (4, 24, 1000), (19, 48, 700), (40, 96, 128), (130, 80, 80)])
def test_sums_are_torchs(kernel, device, generator, m, n, k):
    """Zero points take away all but the difference from torch's integers: 0, if no bit of the sum is lost."""
    a, b = extremes((m, k), generator), any_bytes((n, k), generator)
    rows = torch.cat([a, a.new_zeros(max(0, 32 - m), k)])  # torch takes no fewer on some devices
    sums = torch._int_mm(rows, b.t().contiguous())[:m]
    one, zero = torch.ones(1, device=device), torch.ones(1, dtype=torch.int32, device=device)
    a, b, sums = a.to(device), b.to(device), sums.to(device)
    for i in range(m):
        left = kernel.int8_gemm(a, b, one, one, zero_a=zero, sum_b=sums[i], out_dtype=torch.float32)
        assert (left[i] == 0).all(), i
    assert torch.equal(kernel.int8_gemm(a, b, one, one, out_dtype=torch.float32), sums.float())


@pytest.mark.parametrize("m", [1, 6, 70])
def test_the_longest_sums(kernel, device, m):
    """MOST_K products of -128 and -128, and of -128 and 127: the ends of what int32 holds."""
    one = torch.ones(1, device=device)
    a = torch.full((m, MOST_K), -128, dtype=INT8, device=device)
    b = torch.full((13, MOST_K), -128, dtype=INT8, device=device)
    b[5:] = 127
    sums = torch.tensor([MOST_K << 14] * 5 + [-128 * 127 * MOST_K] * 8, device=device)
    assert sums.max() < 2**31
    got = kernel.int8_gemm(a, b, one, one, out_dtype=torch.float32)
    assert torch.equal(got, sums.float().expand(m, -1))
    for difference in (0, 1, -1):
        near = (sums - difference).int()
        left = kernel.int8_gemm(a, b, one, one, zero_a=one.int(), sum_b=near, out_dtype=torch.float32)
        assert (left == difference).all()


def test_zero_points_do_not_overflow(kernel, device, generator):
    """acc - zero * sum beyond int32, up to what the arguments hold."""
    one = torch.ones(1, device=device)
    a, b = lowest((5, 300), generator).to(device), lowest((7, 300), generator).to(device)
    largest = torch.tensor([2**31 - 1, -(2**31), 3, -7, 0], dtype=torch.int32, device=device)
    sums = torch.tensor([2**31 - 1, -(2**31), 1, 0, -1, 12345, -(2**20)], dtype=torch.int32, device=device)
    wanted = (300 * 128 * 128 - largest.cpu().long()[:, None] * sums.cpu().long()).float()
    got = kernel.int8_gemm(a, b, one, one, zero_a=largest, sum_b=sums, out_dtype=torch.float32)
    assert torch.equal(got.cpu(), wanted)


def test_an_asymmetric_activation_comes_back(kernel, device, generator):
    """quantize_int8 with zero points, then int8_gemm: near the float32 product."""
    x, w = torch.rand(9, 256, generator=generator) * 4 - 1, normal((40, 256), torch.float32, generator)
    q, scale, zero = kernel.quantize_int8(x.to(device), symmetric=False)
    wq, scale_w, _ = kernel.quantize_int8(w.to(device))
    sums = wq.sum(-1, dtype=torch.int32)
    got = kernel.int8_gemm(q, wq, scale, scale_w.t(), zero_a=zero, sum_b=sums, out_dtype=torch.float32).cpu()
    # Half a step of each operand.
    bound = (scale.cpu() / 2 * 1.001) * w.abs().sum(-1) + (scale_w.cpu().t() / 2 * 1.001) * (x.abs().sum(-1) + 4)[
        :, None
    ]
    assert ((got - x @ w.t()).abs() <= bound).all()


# --- rounding to int8 ---


def of_sums(kernel, sums: torch.Tensor, alpha, **kwargs) -> torch.Tensor:
    """int8_gemm whose sums are these (|sums| <= 127 * 127 + 127): [1, N]."""
    high = torch.div(sums, 127, rounding_mode="trunc")
    b = torch.stack([high, sums - 127 * high], dim=1).to(INT8)
    a = torch.tensor([[127, 1]], dtype=INT8, device=sums.device)
    one = torch.ones(1, device=sums.device)
    return kernel.int8_gemm(a, b, one * alpha, one, **kwargs)[0]


def test_ties_go_to_even_and_both_ends_saturate(kernel, device):
    sums = torch.arange(-1200, 1201, device=device)
    got = of_sums(kernel, sums, 0.25, out_dtype=INT8).cpu().int()
    wanted = [max(-128, min(127, round(i / 4))) for i in range(-1200, 1201)]  # Python's rounds ties to even
    assert got.tolist() == wanted
    assert got.min() == -128 and got.max() == 127
    # By the quotient, too.
    scale_out = torch.tensor([4.0], device=device)
    assert of_sums(kernel, sums, 1.0, out_dtype=INT8, scale_out=scale_out).cpu().tolist() == wanted


@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e38, 1e-45, -1.0])
@pytest.mark.parametrize("dtype", RESULTS, ids=short)
def test_special_scales(kernel, device, generator, value, dtype):
    for m in (1, 6):
        case = simple(m, 13, 40, dtype, bias=torch.float32, activation="relu" if m == 6 else None)
        inputs = draw(case, generator)
        inputs.a[0, :], inputs.scale_a[m - 1], inputs.scale_b[0, 3] = 0, value, value  # 0 times infinity is NaN
        wanted = run(kernel.reference, inputs, out_dtype=dtype)
        assert same_bytes(run(kernel, inputs.to(device), out_dtype=dtype), wanted)
        inputs.bias[5], inputs.bias[7] = value, torch.nan
        wanted = run(kernel.reference, inputs, out_dtype=dtype)
        got = run(kernel, inputs.to(device), out_dtype=dtype)
        assert same_bytes(got, wanted)
        assert (got[:, 7] == 0).all() if dtype == INT8 else got[:, 7].isnan().all()


def test_special_scales_of_the_result(kernel, device, generator):
    for value in (torch.nan, torch.inf, 0.0, -2.0, 1e-45, 3e38):
        inputs = draw(simple(5, 13, 40, INT8, divided=True), generator)
        inputs.a[2] = 0  # 0 / 0
        inputs.options["scale_out"][0] = value
        wanted = run(kernel.reference, inputs, out_dtype=INT8)
        assert same_bytes(run(kernel, inputs.to(device), out_dtype=INT8), wanted), value


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("m, k", [(1, 300), (21, 64)])
def test_gelu_stays_within_its_bound(kernel, device, generator, activation, m, k):
    inputs = draw(simple(m, 200, k, bias=torch.float32), generator)
    v = run(kernel.reference, inputs, out_dtype=torch.float32).double()
    exact = torch.nn.functional.gelu(v, approximate="tanh" if activation == "gelu_tanh" else "none")
    assert (v.abs() < 5).any() and (v > 5).any() and (v < -5).any()
    inputs.options["activation"] = activation
    got = run(kernel, inputs.to(device), out_dtype=torch.float32).cpu().double()
    bound = 2.0**-20 * (v.abs() + 2.0**-20)
    assert ((got - exact).abs() <= bound).all(), ((got - exact).abs() / bound).max()
    for dtype in HALF:
        rounded = run(kernel, inputs.to(device), out_dtype=dtype).cpu()
        assert torch.equal(rounded, got.to(dtype))
    codes = run(kernel, inputs.to(device), out_dtype=INT8).cpu()
    assert torch.equal(codes, kernel.reference.encode_int8(got.float()))


# --- batches ---


@pytest.mark.parametrize("batch", [0, 1, 3, 8, 9, 33])
@pytest.mark.parametrize("m, n, k", [(1, 80, 64), (5, 13, 80), (37, 64, 128), (37, 128, 37)])
def test_batches(kernel, device, generator, batch, m, n, k):
    a, b = any_bytes((batch, m, k), generator), any_bytes((batch, n, k), generator)
    scales = {
        "one": (spread((1,), generator, k), spread((), generator, k)),
        "shared": (spread((m, 1), generator, k), spread((1, n), generator, k)),
        "own": (spread((batch, m, 1), generator, k), spread((batch, 1, n), generator, k)),
    }
    zero = torch.randint(-128, 128, (batch, m, 1), generator=generator).int()
    for name, (scale_a, scale_b) in scales.items():
        options = dict(zero_a=zero, sum_b=b.sum(-1, dtype=torch.int32)[:, None]) if name == "own" else {}
        inputs = Inputs(a, b, scale_a, scale_b, normal((n,), torch.float16, generator), options)
        for dtype in (INT8, torch.float32):
            wanted = run(kernel.reference, inputs, out_dtype=dtype)
            assert same_bytes(run(kernel, inputs.to(device), out_dtype=dtype), wanted), name


def test_heads_in_place(kernel, device, generator):
    """Queries, keys and results of attention as [tokens, heads, d]: batches and rows interleave."""
    tokens, heads, d = 19, 12, 80
    fused = guarded(any_bytes((tokens, 3 * heads, d), generator), device)
    q, k = fused.t[:, :heads].transpose(0, 1), fused.t[:, heads : 2 * heads].transpose(0, 1)
    assert q.stride() == (d, 3 * heads * d, 1)
    wanted = kernel.reference.bmm_ab_i8_e_f32(q.cpu(), k.cpu(), 0.01)
    assert same_bytes(kernel.bmm_ab_i8_e_f32(q, k, 0.01), wanted)
    p, v = any_bytes((heads, tokens, tokens), generator).to(device), any_bytes((heads, d, tokens), generator).to(device)
    out = Guarded((tokens, heads, d), INT8, device)
    into = out.t.transpose(0, 1)
    assert kernel.bmm_abe_i8(p, v, 0.002, out=into) is into
    assert same_bytes(into, kernel.reference.bmm_abe_i8(p.cpu(), v.cpu(), 0.002))
    out.assert_guards_intact("out")
    fused.assert_unchanged("q and k")


def test_strides_of_zero(kernel, device, generator):
    a, b = any_bytes((1, 1, 70), generator).expand(9, 6, -1), any_bytes((1, 15, 70), generator).expand(9, -1, -1)
    got = kernel.bmm_abe_i8(a.to(device), b.to(device), 0.01)
    assert same_bytes(got, kernel.reference.bmm_abe_i8(a, b, 0.01))
    narrow = a.to(device)[:1].expand(9, 6, -1), b.to(device)[:1].expand(9, -1, -1)
    assert same_bytes(kernel.bmm_abe_i8(*narrow, 0.01), got)


# --- SmoothQuant's wrappers ---

LINEARS = {"linear_abde_i8": INT8, "linear_relu_abde_i8": INT8, "linear_ab_i8_de_f32": torch.float32}
PRODUCTS = {"bmm_abe_i8": INT8, "bmm_ab_i8_e_f32": torch.float32}
ALPHAS = ((0.013, 0.7), (-0.002, 1.0), (0.0, 1.0), (0.01, 0.0), (1.0, -3.0), (torch.inf, 1.0), (0.1, torch.nan))


def number(value: float, how: str, device) -> torch.Tensor | float:
    shapes = {"zero-dim": (), "one": (1,), "2d": (1, 1)}
    return value if how == "number" else torch.full(shapes[how], value, device=device)


@pytest.mark.parametrize("alpha, beta", ALPHAS)
@pytest.mark.parametrize("full", [False, True], ids=["row", "full"])
@pytest.mark.parametrize("operator", LINEARS)
def test_linears(kernel, device, generator, operator, full, alpha, beta):
    dtype = LINEARS[operator]
    for m, n, k in ((1, 37, 200), (5, 13, 768), (67, 130, 80)):
        a, b = any_bytes((m, k), generator), any_bytes((n, k), generator)
        shape = (m, n) if full else (n,)
        d = any_bytes(shape, generator) if dtype == INT8 else normal(shape, dtype, generator, 50.0)
        wanted = getattr(kernel.reference, operator)(a, b, d, alpha, beta)
        layouts = dict(pad=37, shift=3) if n == 130 else {}
        d = guarded(d, device, **layouts)
        for how in ("number", "zero-dim", "one", "2d"):
            numbers = number(alpha, how, device), number(beta, "number" if how == "one" else how, device)
            out = Guarded((m, n), dtype, device, **layouts)
            got = getattr(kernel, operator)(a.to(device), b.to(device), d.t, *numbers, out=out.t)
            assert got is out.t and same_bytes(got, wanted), how
            out.assert_guards_intact(how)
        assert same_bytes(getattr(kernel, operator)(a.to(device), b.to(device), d.t, alpha, beta), wanted)


@pytest.mark.parametrize("alpha", [0.001, -0.02, 0.0, torch.inf, torch.nan])
@pytest.mark.parametrize("operator", PRODUCTS)
def test_products_of_batches(kernel, device, generator, operator, alpha):
    for batch, m, n, k in ((2, 1, 64, 80), (12, 5, 13, 64), (3, 67, 30, 128)):
        a, b = any_bytes((batch, m, k), generator), any_bytes((batch, n, k), generator)
        wanted = getattr(kernel.reference, operator)(a, b, alpha)
        for how in ("number", "zero-dim", "one"):
            out = Guarded((batch, m, n), PRODUCTS[operator], device, pad=5)
            number_of = number(alpha, how, device)
            assert same_bytes(getattr(kernel, operator)(a.to(device), b.to(device), number_of, out=out.t), wanted)
            out.assert_guards_intact(how)


def test_a_linear_is_int8_gemm(kernel, device, generator):
    """One structure serves all: alpha is a scale, d with beta 1 a bias."""
    a, b = any_bytes((7, 90), generator).to(device), any_bytes((20, 90), generator).to(device)
    d, one = normal((20,), torch.float32, generator, 30.0).to(device), torch.ones(1, device=device)
    alpha = torch.tensor([0.003], device=device)
    wanted = kernel.int8_gemm(a, b, alpha, one, d, out_dtype=torch.float32)
    assert same_bytes(kernel.linear_ab_i8_de_f32(a, b, d, alpha), wanted)


def test_defaults_of_alpha_and_beta(kernel, device, generator):
    a, b, d = (any_bytes(shape, generator).to(device) for shape in ((3, 4), (5, 4), (5,)))
    assert same_bytes(kernel.linear_abde_i8(a, b, d), kernel.linear_abde_i8(a, b, d, 1.0, 1.0))
    assert same_bytes(kernel.bmm_abe_i8(a[None], b[None]), kernel.bmm_abe_i8(a[None], b[None], 1.0))
