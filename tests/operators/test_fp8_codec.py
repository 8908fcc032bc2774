"""The FP8 codecs as seen through the operators, against the formats' definitions and, where it is right, torch.

Decoding: skinny_gemm of codes with 1.0. Encoding: rms_norm_fp8 of ones, whose norm is exactly 1, so that the
weights themselves, divided by the scale, are what is quantised.
"""

import math

import pytest
import torch

from problems import fp8_by_definition as definition
from problems.buffers import raw
from problems.inputs import FP8, HALF, every_number, short

pytestmark = pytest.mark.parametrize("dtype", FP8, ids=short)


def all_codes(dtype) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def quantised(kernel, device, values: torch.Tensor, scale: float, dtype) -> torch.Tensor:
    """Codes of values / scale; `values` in a 16-bit type."""
    ones = torch.ones(1, len(values), dtype=values.dtype, device=device)
    scale = torch.tensor(scale, dtype=torch.float32, device=device)
    return raw(kernel.rms_norm_fp8(ones, values.to(device), scale, 0.0, out_dtype=dtype))


def assert_codes(got: torch.Tensor, wanted: torch.Tensor, inputs: torch.Tensor, dtype) -> None:
    """Equal codes; any NaN for NaN."""
    nan = wanted.view(dtype).float().isnan()
    wrong = torch.where(nan, ~got.view(dtype).float().isnan(), got != wanted).nonzero().flatten()
    shown = [(inputs[i].item(), f"0x{got[i]:02x} for 0x{wanted[i]:02x}") for i in wrong[:4]]
    assert len(wrong) == 0, f"{len(wrong)} of {len(got)}: {shown}"


def test_the_definition_agrees_with_torch(dtype):
    table = torch.tensor(definition.decode_table(dtype))
    torch.testing.assert_close(all_codes(dtype).float(), table, rtol=0, atol=0, equal_nan=True)
    assert max(definition.magnitudes(dtype)) == torch.finfo(dtype).max
    for tie in definition.ties(dtype):
        around = [tie, math.nextafter(tie, 0), math.nextafter(tie, 1e9)]
        codes = [int(definition.encode(torch.tensor([v], dtype=torch.float64), dtype)) for v in around]
        assert codes == [definition.encode_one(v, dtype) for v in around]


@pytest.fixture
def multiplied(dtype, formats) -> torch.dtype:
    if dtype not in formats:
        pytest.skip("not this GPU's format")
    return dtype


# 1 and 15 columns go through tails; 64 and 256 through whole vectors, with the code at every position.
@pytest.mark.parametrize("k", [1, 15, 64, 256])
@pytest.mark.parametrize("side", ["a", "b"])
def test_every_code_is_decoded(kernel, device, multiplied, side, k):
    dtype = multiplied
    codes = torch.zeros(256, k, dtype=torch.uint8)
    codes[torch.arange(256), torch.arange(256) % k] = torch.arange(256, dtype=torch.uint8)
    codes, one = codes.view(dtype).to(device), torch.ones(1, device=device)
    ones = torch.ones(1, k, device=device).to(dtype)
    if side == "b":
        got = kernel.skinny_gemm(ones, codes, one, one, out_dtype=torch.float32)
    else:
        calls = [kernel.skinny_gemm(rows, ones, one, one, out_dtype=torch.float32) for rows in codes.split(32)]
        got = torch.cat(calls)
    table = torch.tensor(definition.decode_table(dtype))
    # assert_close takes -0 for 0: a sum that starts at +0 loses the sign.
    torch.testing.assert_close(got.flatten().cpu(), table, rtol=0, atol=0, equal_nan=True)


def test_products_of_all_codes_are_exact(kernel, device, multiplied):
    dtype = multiplied
    codes, one = all_codes(dtype).reshape(256, 1).to(device), torch.ones(1, device=device)
    calls = [kernel.skinny_gemm(rows, codes, one, one, out_dtype=torch.float32) for rows in codes.split(16)]
    table = torch.tensor(definition.decode_table(dtype))
    wanted = table[:, None] * table[None, :]
    torch.testing.assert_close(torch.cat(calls).cpu(), wanted, rtol=0, atol=0, equal_nan=True)


# Powers of two move all of a 16-bit type's range over the format's; 0.3 makes quotients with full mantissas.
@pytest.mark.parametrize("scale", [1.0, 2.0**-4, 2.0**-9, 2.0**9, 0.3, -1.0])
@pytest.mark.parametrize("half", HALF, ids=short)
def test_every_16_bit_number_is_encoded(kernel, device, dtype, half, scale):
    values = every_number(half)
    quotients = values.float() / torch.tensor(scale)
    got = quantised(kernel, device, values, scale, dtype)
    assert_codes(got, definition.encode(quotients, dtype), quotients, dtype)
    assert_codes(raw(kernel.reference.encode_fp8(quotients, dtype)), got, quotients, dtype)


def test_ties_and_their_neighbours(kernel, device, dtype):
    # A tie has five significant bits, so float16 holds it and 1.5 times it. Divided by 1 or 1.5, give or take a
    # few ulps, they become the tie's nearest float32 neighbours (the one below a power of two needs the 1.5).
    points = torch.tensor([*definition.ties(dtype), *definition.magnitudes(dtype)])
    points = torch.cat([points, -points])
    seen = set()
    for factor in (1.0, 1.5):
        numbers = (points * factor).half()
        assert torch.equal(numbers.float(), points * factor)
        for ulps in range(-4, 5):
            scale = factor + ulps * 2.0**-24 * (1 if factor == 1 and ulps < 0 else 2)
            quotients = numbers.float() / torch.tensor(scale)
            got = quantised(kernel, device, numbers, scale, dtype)
            assert_codes(got, definition.encode(quotients, dtype), quotients, dtype)
            seen |= set(quotients.tolist())
    for tie in definition.ties(dtype):
        tie = torch.tensor(tie)
        for direction in (torch.tensor(0.0), torch.tensor(torch.inf)):
            assert torch.nextafter(tie, direction).item() in seen, "a tie's nearest neighbour was not tried"


@pytest.mark.parametrize("half", HALF, ids=short)
def test_saturation(kernel, device, dtype, half):
    limit = torch.finfo(dtype).max
    above = [limit, limit * 1.03125, limit * 1.0625, limit * 1.125, limit * 4, torch.finfo(half).max, math.inf]
    values = torch.tensor([*above, *(-v for v in above)]).to(half)
    got = quantised(kernel, device, values, 1.0, dtype).view(dtype).float()
    assert got.tolist() == [limit] * len(above) + [-limit] * len(above)
    # The quotient may overflow where the number does not.
    got = quantised(kernel, device, torch.tensor([1.0, -1.0]).to(half), 2.0**-140, dtype).view(dtype).float()
    assert got.tolist() == [limit, -limit]


@pytest.mark.parametrize("half", HALF, ids=short)
def test_nan_of_either_sign_stays_nan(kernel, device, dtype, half):
    patterns = every_number(half)
    nans = patterns[patterns.isnan()]
    assert len(nans) == (2046 if half == torch.float16 else 254)
    assert quantised(kernel, device, nans, 1.0, dtype).view(dtype).float().isnan().all()


def test_underflow_keeps_the_sign_only_where_the_format_has_negative_zero(kernel, device, dtype):
    # Half the smallest subnormal is a tie and goes to the even code, zero.
    half_step = definition.magnitudes(dtype)[1] / 2
    tiny = torch.tensor([half_step, half_step / 2, 2.0**-24, 0.0])
    got = quantised(kernel, device, torch.cat([tiny, -tiny]).half(), 1.0, dtype).tolist()
    negative_zero = 0x80 if dtype == torch.float8_e4m3fn else 0x00
    assert got == [0] * 4 + [negative_zero] * 4


@pytest.mark.parametrize("scale", [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, 2.0**127])
def test_scales_at_the_edge_divide_as_float32(kernel, device, dtype, scale):
    values = torch.tensor([1.0, -1.0, 3.5, 0.0, -0.0, 60000.0, 2.0**-24]).half()
    quotients = values.float() / torch.tensor(scale)
    got = quantised(kernel, device, values, scale, dtype)
    assert_codes(got, definition.encode(quotients, dtype), quotients, dtype)
