"""A record of the operators that a model calls. And the device that the tests of the benchmarks drive, for the demo's
times of operators."""

import sys

import pytest
import torch
from transformers import OPTConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRMSNorm

from problems import mx_checkpoints
from problems.operators import functions
from problems.tiny_llama import drawn, kernelized, llama, quantize, tokens
from problems.tiny_models import OPT
from tests.tools.fake_gpu import gpu

from .products import in_float32


@pytest.fixture
def calls(kernel, monkeypatch) -> list[str]:
    """Names of the package's operators, in the order of their calls."""
    operators, linear = (sys.modules[f"{kernel.__name__}.ops{part}"] for part in ("", ".linear"))
    names = []

    def counted(name: str):
        original = getattr(operators, name)

        def call(*args, **kwargs):
            names.append(name)
            return original(*args, **kwargs)

        return call

    for name in functions(kernel):
        monkeypatch.setattr(operators, name, counted(name))
        if hasattr(linear, name):
            monkeypatch.setattr(linear, name, getattr(operators, name))
    return names


@pytest.fixture
def of_kind(kernel, device, generator, tmp_path):
    """of_kind(kind) -> a quantised model, of other numbers at each call."""

    def make(kind: str) -> torch.nn.Module:
        ids = tokens(generator, 2, 16, device)
        if kind == "opt":
            return kernel.smoothquant.quantize(drawn(OPTConfig(**OPT), generator, device=device), [ids])
        model = llama(generator, device=device)
        if kind.startswith("int8"):
            options = dict(activations="dynamic", alpha=None, symmetric=kind == "int8")
            return kernel.smoothquant.quantize(model, **options)
        if kind == "mx":
            directory = tmp_path / f"mx {int(torch.randint(10**9, (), generator=generator))}"
            mx_checkpoints.write(kernel, "compressed-tensors, W4A8", model, directory)
            return kernelized(kernel, kernel.quantization.load_quantized(directory, device))
        scheme = dict(granularity="block") if "block" in kind else {}
        return kernelized(kernel, quantize(kernel, model, [ids], "static" if "static" in kind else "dynamic", **scheme))

    return make


@pytest.fixture
def e4m3fn(formats) -> torch.dtype:
    """Of models that are quantised to it and run on the device's GEMMs."""
    if torch.float8_e4m3fn not in formats:
        pytest.skip("not this device's FP8 format")
    return torch.float8_e4m3fn


@pytest.fixture
def open_norms(monkeypatch):
    """What transformers' own decorator does, where it did nothing: norms of one kind give the same bytes."""
    for kind in (LlamaRMSNorm, Qwen3MoeRMSNorm, DeepseekV3RMSNorm):
        if not hasattr(kind, "kernel_layer_name"):
            monkeypatch.setattr(kind, "kernel_layer_name", "RMSNorm", raising=False)


@pytest.fixture(scope="module")
def fast_products():
    """Of models in bfloat16, where torch's own products take most of the time."""
    with in_float32():
        yield


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield
