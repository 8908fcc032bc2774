"""SmoothQuant's modules against emulations in float64, written here on the numbers that a module holds.

Both products' sums are exact, so an emulation with the same roundings gives the same integers; where a rounding could
fall either way, one step is allowed.
"""

import pytest
import torch

from problems.int8 import with_scale
from problems.tiny_llama import distance

pytestmark = pytest.mark.usefixtures("without_gradients")


def linear(generator, device, n: int, k: int, bias: bool = True) -> torch.nn.Linear:
    made = torch.nn.Linear(k, n, bias=bias)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made.to(device)


@pytest.mark.parametrize("name", ["W8A8B8O8Linear", "W8A8B8O8LinearReLU", "W8A8BFP32OFP32Linear"])
@pytest.mark.parametrize("bias", [True, False])
def test_static_linears(kernel, device, generator, name, bias):
    original = linear(generator, device, 24, 40, bias)
    x = torch.randint(-127, 128, (2, 5, 40), generator=generator).to(device, torch.int8)
    wanted = original(x.double().float() * 0.02)
    scale = wanted.abs().amax().item() / 127
    to_int8 = name != "W8A8BFP32OFP32Linear"
    made = getattr(kernel.smoothquant, name).from_float(original, 0.02, *([scale] if to_int8 else []))
    got = made(x)
    sums = x.double() @ made.weight.double().T
    exact = made.a.double() * sums + (made.b.double() if to_int8 else 1) * made.bias.double().reshape(-1)
    if name.endswith("ReLU"):
        exact, wanted = exact.clamp(min=0), wanted.clamp(min=0)
    if to_int8:
        assert got.dtype == torch.int8
        assert ((got.double() - exact.round().clamp(-128, 127)).abs() <= 1).all()  # float32 may cross a tie
        assert (got.double() == exact.round().clamp(-128, 127)).float().mean() > 0.97
    else:
        # Three roundings of float32, each of numbers not larger than the terms.
        bound = 3 * 2.0**-24 * (made.a.double() * sums.abs() + made.bias.double().abs().reshape(-1))
        assert got.dtype == torch.float32 and ((got.double() - exact).abs() <= bound).all()
    # Of the float linear: half a step of weights, 40 of them, of the bias and of the result.
    step = made.a.item() * (scale if to_int8 else 1) / 0.02
    most = 0.5 * step * 0.02 * x.double().abs().sum(-1, keepdim=True)
    if to_int8:
        most = most + 0.51 * scale + 0.5 * made.b.item() * scale
    assert (((got.double() * (scale if to_int8 else 1)) - wanted.double()).abs() <= most + 1e-4).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_dynamic_linear(kernel, device, generator, dtype):
    original = linear(generator, device, 24, 40).to(dtype)
    original.weight[7] = 0
    made = kernel.smoothquant.Int8Linear.from_float(original)
    assert made.weight_scale.shape == (1, 24) and made.weight_scale[0, 7] == 1
    assert (made.weight.abs().amax(1) == 127).sum() == 23
    x = (torch.randn(2, 5, 40, generator=generator) * torch.logspace(-2, 2, 5).reshape(1, 5, 1)).to(device, dtype)
    got = made(x)
    assert got.dtype == dtype and got.shape == (2, 5, 24)
    scale = x.float().abs().amax(-1, keepdim=True) / torch.tensor(127.0, device=device)
    codes = (x.float() / scale).round().clamp(-128, 127).double()
    exact = codes @ made.weight.double().T * scale.double() * made.weight_scale.double() + original.bias.double()
    # Three roundings of float32 and the result's own: 4 units in the last place of the dtype cover them where terms
    # cancel at most by their number, 2.
    unit = torch.finfo(dtype).eps * (exact.abs() + original.bias.double().abs())
    assert ((got.double() - exact).abs() <= 4 * unit).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_dynamic_linear_with_zero_points(kernel, device, generator, dtype):
    """On numbers most of which are positive, where they halve the error of the inputs."""
    original = linear(generator, device, 24, 40).to(dtype)
    made, plain = (
        kernel.smoothquant.Int8Linear.from_float(original, symmetric=symmetric) for symmetric in (False, True)
    )
    assert torch.equal(made.weight_sum[0], made.weight.sum(-1)) and "weight_sum" not in made.state_dict()
    x = (torch.rand(6, 40, generator=generator) * 3 - 0.2).to(device, dtype)
    got = made(x)
    low, high = x.float().amin(-1, keepdim=True).clamp(max=0), x.float().amax(-1, keepdim=True).clamp(min=0)
    scale = (high - low) / torch.tensor(255.0, device=device)
    zero = (-128 - low / scale).round().clamp(-128, 127)
    codes = ((x.float() / scale).round() + zero).clamp(-128, 127).double()
    exact = (codes - zero.double()) @ made.weight.double().T * scale.double() * made.weight_scale.double()
    exact += original.bias.double()
    unit = torch.finfo(dtype).eps * (exact.abs() + original.bias.double().abs())
    # A quotient at a tie may fall on either side: a step of the scale times a weight, for as many as there are.
    tie = scale.double() * made.weight_scale.double() * 127
    assert ((got.double() - exact).abs() <= 4 * unit + tie).all()
    assert ((got.double() - exact).abs() <= 4 * unit).float().mean() > 0.95
    wide = x.double() @ (made.weight.double() * made.weight_scale.double().T).T + original.bias.double()
    if dtype == torch.float32:
        assert distance(got.double(), wide) < 0.75 * distance(plain(x).double(), wide)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_static_linear(kernel, device, generator, dtype, symmetric):
    """On numbers of which some lie beyond the range: they saturate."""
    original = linear(generator, device, 24, 40).to(dtype)
    made = with_scale(kernel.smoothquant.Int8Linear.from_float(original, symmetric=symmetric))
    x = (torch.randn(2, 3, 40, generator=generator) + 0.5).to(device, dtype)
    got = made(x)
    assert got.dtype == dtype and got.shape == (2, 3, 24)
    zero = 0 if symmetric else made.input_zero_point.item()
    codes = ((x.float() / made.input_scale).round() + zero).clamp(-128, 127).double()
    assert (codes == 127).any() and (codes - zero).abs().max() > 100
    exact = (codes - zero) @ made.weight.double().T * made.input_scale.double() * made.weight_scale.double()
    exact += made.bias.double()
    unit = torch.finfo(dtype).eps * (exact.abs() + made.bias.double().abs())
    assert ((got.double() - exact).abs() <= 4 * unit).all()


def test_the_norm(kernel, device, generator):
    norm = torch.nn.LayerNorm(64)
    norm.weight.copy_(torch.randn(64, generator=generator))
    norm.bias.copy_(torch.randn(64, generator=generator))
    norm.to(device)
    made = kernel.smoothquant.LayerNormQ.from_float(norm, 0.05)
    x, residual = torch.randn(2, 3, 7, 64, generator=generator).to(device)
    wanted = norm(x + residual)
    got = made(x, residual=(kept := residual.clone()))
    assert torch.equal(kept, x + residual)
    assert ((got.float() * 0.05 - wanted.clamp(-128 * 0.05, 127 * 0.05)).abs() <= 0.51 * 0.05).all()
