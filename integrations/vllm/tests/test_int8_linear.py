"""INT8 linears: what vLLM's schemes load, against the definition in float64."""

import pytest
import torch
from rocm_fp8_vllm import int8_linear
from vllm.model_executor.kernels import linear as choice
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import CompressedTensorsW8A8Int8
from vllm.model_executor.layers.quantization.quark.schemes import QuarkW8A8Int8
from vllm.model_executor.layers.quantization.utils import quant_utils
from vllm.platforms import PlatformEnum, current_platform

from .conftest import compiles
from .settings import of_cpus_alone

pytestmark = [of_cpus_alone, pytest.mark.usefixtures("one_worker")]

LINEARS = choice._POSSIBLE_INT8_KERNELS[PlatformEnum.CPU]
K, WIDTHS = 96, {"one": [64], "joined": [40, 24]}


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    int8_linear.install()


def compressed(weights: str, static: bool, symmetric: bool):
    return CompressedTensorsW8A8Int8(weights, static, symmetric)


def quark(weights: str, static: bool, symmetric: bool):
    weight = quant_utils.kInt8StaticChannelSym if weights == "channel" else quant_utils.kInt8StaticTensorSym
    kind = f"kInt8{'StaticTensor' if static else 'DynamicToken'}{'Sym' if symmetric else 'Asym'}"
    return QuarkW8A8Int8(weight, getattr(quant_utils, kind))


def loaded(scheme, widths: list[int], dtype: torch.dtype, generator: torch.Generator) -> torch.nn.Module:
    """A layer with random parameters, as after a checkpoint has been read."""
    layer = torch.nn.Module()
    scheme.create_weights(layer, widths, K, dtype, weight_loader=lambda *_: None)
    layer.weight.data = torch.randint(-128, 128, layer.weight.shape, generator=generator).to(torch.int8)
    layer.weight_scale.data = torch.rand(layer.weight_scale.shape, generator=generator) / K + 1 / K
    if layer.input_scale is not None:
        layer.input_scale.data.fill_(0.02)
        if layer.input_zero_point is not None:
            layer.input_zero_point.data.fill_(-37)
    return layer


def rows_of(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Of different sizes, and not around 0."""
    sizes = torch.logspace(-1, 0.5, count).unsqueeze(1)
    return ((torch.randn(count, K, generator=generator) + 0.5) * sizes).to(dtype)


def codes_of(x: torch.Tensor, layer: torch.nn.Module, symmetric: bool) -> tuple[torch.Tensor, ...]:
    """(integers, scales, zero points) in float64, by what docs/numerics.md says."""
    wide = x.float()
    if layer.input_scale is not None:
        scale = layer.input_scale.detach().clone()
        zero = torch.zeros(1) if symmetric else layer.input_zero_point.detach().float()
    elif symmetric:
        scale, zero = wide.abs().amax(1, keepdim=True) / torch.tensor(127.0), torch.zeros(1)
    else:
        low, high = wide.amin(1, keepdim=True).clamp(max=0), wide.amax(1, keepdim=True).clamp(min=0)
        scale = (high - low) / torch.tensor(255.0)
        zero = (-128 - low / scale).round()
    q = ((wide / scale).round() + zero).clamp(-128, 127)
    return q.double(), scale.double(), zero.double()


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("weights", ["channel", "tensor"])
@pytest.mark.parametrize(
    ("scheme", "widths", "dtype"),
    [
        (compressed, "one", torch.bfloat16),
        (compressed, "joined", torch.float16),
        (quark, "joined", torch.bfloat16),
    ],
    ids=["compressed-tensors", "compressed-tensors joined", "quark joined"],
)
def test_a_linear_is_its_definition(scheme, widths, dtype, weights, static, symmetric, generator):
    made = scheme(weights, static, symmetric)
    layer = loaded(made, WIDTHS[widths], dtype, generator)
    assert type(made.kernel) is int8_linear.Int8GemmLinear
    weight, of_parts = layer.weight.detach().double(), layer.weight_scale.detach().double().reshape(-1)
    of_channels = of_parts if weights == "channel" else of_parts.repeat_interleave(torch.tensor(WIDTHS[widths]))
    inputs = {count: rows_of(count, dtype, generator) for count in (1, 5, 33, 100)}
    by_definition = {count: codes_of(x, layer, symmetric) for count, x in inputs.items()}
    made.process_weights_after_loading(layer)
    assert layer.weight.shape == (64, K) and layer.weight.is_contiguous()
    for bias in (None, torch.randn(64, generator=generator).to(dtype)):
        added = torch.zeros(()) if bias is None else bias
        for count, x in inputs.items():
            q, scale, zero = by_definition[count]
            product = (q - zero) @ weight.t() * scale * of_channels
            expected = product + added.double()
            got = made.apply_weights(layer, x, bias)
            assert got.dtype == dtype
            # The result's rounding, of a subnormal number, too; two products and a sum in float32. The integers are
            # exact there.
            kind = torch.finfo(dtype)
            bound = kind.eps / 2 * (expected.abs() + kind.tiny)
            bound += 4 * 2.0**-24 * (product.abs() + added.double().abs())
            assert ((got.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_it_compiles_for_any_number_of_rows(static, generator):
    made = compressed("channel", static, False)
    layer = loaded(made, [64], torch.bfloat16, generator)
    made.process_weights_after_loading(layer)
    bias = torch.randn(64, generator=generator).bfloat16()
    x = rows_of(12, torch.bfloat16, generator)
    compiles(lambda x: made.apply_weights(layer, x * 2, bias) + 1, x)
    arguments = (layer.weight, layer.weight_scale, bias, layer.input_scale, layer.input_zero_point, layer.azp_adj)
    for given in (x, x.view(3, 4, K), x[:0], x[::2]):
        torch.library.opcheck(torch.ops.rocm_fp8_vllm.int8_linear.default, (given, *arguments))
        assert torch.equal(
            made.apply_weights(layer, given, bias).view(-1, 64), made.apply_weights(layer, given.reshape(-1, K), bias)
        )


def test_it_is_first_once_and_left_out_on_request_and_on_cuda(monkeypatch):
    before = list(LINEARS)
    int8_linear.install()
    assert before == LINEARS and LINEARS[0] is int8_linear.Int8GemmLinear and LINEARS.count(LINEARS[0]) == 1
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "Int8GemmLinear")
    layer, made = torch.nn.Module(), compressed("channel", False, True)
    made.create_weights(layer, [64], K, torch.bfloat16, weight_loader=lambda *_: None)
    assert type(made.kernel) is not int8_linear.Int8GemmLinear
    of_cuda = list(choice._POSSIBLE_INT8_KERNELS[PlatformEnum.CUDA])
    monkeypatch.setattr(type(current_platform), "is_cuda", lambda self: True)
    monkeypatch.setattr(type(current_platform), "_enum", PlatformEnum.CUDA)
    int8_linear.install()
    assert choice._POSSIBLE_INT8_KERNELS[PlatformEnum.CUDA] == of_cuda
