"""block_scaled_gemm's own: what each shape of scales means, NaN and infinity in them, the AMD challenge. The rest is in
test_gemm_contract.py."""

import pytest
import torch

from problems.block_scaled_gemm import CHALLENGE, Inputs, by_block, draw, run
from problems.buffers import same_bytes
from problems.comparisons import on_hopper
from problems.gemm import E8M0, SHAPES, Problem, Scaling, powers_of_two
from problems.inputs import positive


# The reference of large weights, in float64, takes a second.
@pytest.mark.parametrize(
    "m, n, k", [pytest.param(*size, marks=pytest.mark.full if size[1] * size[2] > 2**23 else ()) for size in CHALLENGE]
)
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


@pytest.mark.parametrize("values", [positive, powers_of_two])
@pytest.mark.parametrize("m", [5, 130])
def test_nan_and_infinity_in_scales(kernel, device, generator, formats, m, values):
    """Each spoils the rows or columns of its scale, and no others."""
    n, k = 150, 300
    for shape_a, shape_b in (("group", "square"), ("square", "group"), ("vector", "vector"), ("flat", "flat")):
        scalings = Scaling(shape_a, values), Scaling(shape_b, values)
        inputs = draw(Problem(m, n, k, formats[0]), generator, *scalings).to(device)
        clean = run(kernel, inputs, out_dtype=torch.float32)
        for scale, rows, shape, is_a in ((inputs.scale_a, m, shape_a, True), (inputs.scale_b, n, shape_b, False)):
            last = tuple(size - 1 for size in scale.shape)  # of a square block: the short one
            codes = scale.view(torch.uint8) if scale.dtype == E8M0 else scale
            hit = torch.zeros_like(clean, dtype=torch.bool)
            first = (rows - 1) // 128 * 128 if shape == "square" else rows - 1
            (hit if is_a else hit.t())[first:] = True
            for special in (255,) if scale.dtype == E8M0 else (torch.nan, torch.inf):
                before = codes[last].clone()
                codes[last] = special
                got = run(kernel, inputs, out_dtype=torch.float32)
                codes[last] = before
                assert torch.equal(got.isfinite(), ~hit), f"{special} in {shape} of {'a' if is_a else 'b'}"
                assert special == torch.inf or got[hit].isnan().all()
                assert torch.equal(got[~hit], clean[~hit])


@pytest.mark.parametrize("m", [1, 4, 40])
def test_blocks_that_cancel_by_their_scales(kernel, device, format, m):
    one = torch.ones((), device=device)
    a, b = (torch.full((rows, 16384), torch.finfo(format).max).to(format).to(device) for rows in (m, 9))
    blocks = torch.where(torch.arange(128) % 2 == 0, 1.0, -1.0).expand(m, 128).to(device)
    assert (run(kernel, Inputs(a, b, blocks, one, None), out_dtype=torch.float32) == 0).all()
