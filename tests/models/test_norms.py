"""Every class that transformers opens to kernels as "RMSNorm" keeps its own results on the kernel."""

import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
import transformers

from problems.buffers import same_bytes
from problems.comparisons import assert_rounded_alike
from problems.inputs import HALF, normal, short, weights
from problems.tiny_llama import kernelized, logits, tokens
from problems.tiny_models import GROUPED

pytestmark = pytest.mark.usefixtures("without_gradients")

OPENED = re.compile(r'^@use_kernel_forward_from_hub\("RMSNorm"\)\nclass (\w+)', re.MULTILINE)
# Llama's rounds first; others multiply by the weight in float32 and round once. A third way fails here.
ROUNDS_FIRST = re.compile(r"return self\.weight \* hidden_states\.to\(input_dtype\)")
ROUNDS_ONCE = re.compile(r"return \(self\.weight(\.to\(torch\.float32\))? \* hidden_states\)\.to\(input_dtype\)")


@functools.cache
def opened() -> dict[str, Path]:
    """Class -> the file that has it; of transformers, whether it opens them to this version of kernels or not."""
    root = Path(transformers.__file__).parent
    files = (file for file in root.rglob("*.py") if not file.name.startswith("modular_"))
    return {name: file for file in files for name in OPENED.findall(file.read_text(encoding="utf-8"))}


def made(name: str) -> type[torch.nn.Module]:
    parts = opened()[name].relative_to(Path(transformers.__file__).parents[1]).with_suffix("").parts
    return getattr(importlib.import_module(".".join(parts)), name)


def test_there_are_many():
    assert len(opened()) > 100 and "LlamaRMSNorm" in opened() and "GptOssRMSNorm" in opened()


@pytest.mark.parametrize("name", sorted(opened()))
def test_a_class_keeps_its_results(kernel, device, generator, calls, monkeypatch, name):
    kind = made(name)
    monkeypatch.setattr(kind, "kernel_layer_name", "RMSNorm", raising=False)
    module = kind(64).to(device)
    module.variance_epsilon = 0.25
    module.weight.copy_(weights((64,), torch.float32, generator))
    source = inspect.getsource(kind.forward)
    first, once = bool(ROUNDS_FIRST.search(source)), bool(ROUNDS_ONCE.search(source))
    assert first != once, source
    for dtype in HALF:
        module, x = module.to(dtype), normal((9, 64), dtype, generator).to(device)
        wanted = kind.forward(module, x)
        calls.clear()
        got = kernelized(kernel, module)(x)
        assert got.dtype == dtype and calls == ["rms_norm"] * first
        if first:
            assert_rounded_alike(got, wanted, name)
        else:
            assert same_bytes(got, wanted)


def unlike(**changes) -> type[torch.nn.Module]:
    """A class that is Llama's but for what the changes say."""

    class Norm(torch.nn.Module):
        kernel_layer_name = "RMSNorm"

        def __init__(self):
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.ones(64)), 0.25
            self.eps = 0.5

        def forward(self, x):
            wide = x.float()
            mean = wide.abs().square().sum(-1, keepdim=True) / changes.get("by", 64)
            epsilon = getattr(self, changes.get("epsilon", "variance_epsilon"))
            normal = (wide * torch.rsqrt(mean + epsilon)).to(x.dtype)
            normal = normal.clamp(max=changes["clamp"]) if "clamp" in changes else normal
            return (changes.get("plus", 0) + self.weight) * normal

    return Norm


@pytest.mark.parametrize(
    "changes", [dict(by=32), dict(epsilon="eps"), dict(plus=1), dict(clamp=1.0), dict(by=63)], ids=str
)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_another_formula_by_the_same_name_keeps_its_results(kernel, device, generator, calls, dtype, changes):
    module = unlike(**changes)().to(device, dtype)
    module.weight.copy_(weights((64,), dtype, generator))
    x = normal((9, 64), dtype, generator).to(device)
    wanted = module(x)
    assert same_bytes(kernelized(kernel, module)(x), wanted) and calls == []


@pytest.mark.parametrize("compiler", [None, "aot_eager"])
def test_gpt_oss_in_float16(kernel, device, generator, monkeypatch, compiler):
    """It keeps float32 weights, and rounds after they were multiplied: the result must have the input's dtype."""
    sizes = dict(num_local_experts=2, num_experts_per_tok=1, head_dim=16)
    torch.manual_seed(generator.initial_seed())
    model = (
        transformers.GptOssForCausalLM(transformers.GptOssConfig(**GROUPED, **sizes)).to(device, torch.float16).eval()
    )
    monkeypatch.setattr(type(model.model.norm), "kernel_layer_name", "RMSNorm", raising=False)
    for module in model.modules():
        if isinstance(module, type(model.model.norm)):
            module.float().weight.copy_(weights((64,), torch.float32, generator))
    ids = tokens(generator, 1, 8, device)
    wanted = logits(model, ids)
    model = kernelized(kernel, model)
    if compiler:
        torch._dynamo.reset()
        model.model.norm = torch.compile(model.model.norm, fullgraph=True, backend=compiler)
    assert same_bytes(logits(model, ids), wanted)
