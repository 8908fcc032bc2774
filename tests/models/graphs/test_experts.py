"""Mixtures of experts that torch compiles, and their modules by themselves."""

import pytest
import torch

from problems.buffers import same_bytes
from problems.tiny_llama import kernelized, logits, tokens
from problems.tiny_moe import MODELS, moe
from tests.models.test_experts import drawn_module, quantized

pytestmark = pytest.mark.usefixtures("without_gradients", "fresh_graphs")


@pytest.mark.parametrize("granularity, inputs", [("tensor", "tensor"), ("channel", "row"), ("block", "group")])
def test_a_compiled_module(kernel, device, e4m3fn, generator, granularity, inputs):
    module, arguments = drawn_module(kernel, generator, device, granularity)
    if inputs == "tensor":
        module.inputs = "tensor"
        module.input_scale, module.hidden_scale = (torch.tensor([s], device=device) for s in (0.01, 0.004))
    compiled = torch.compile(module, fullgraph=True)
    assert same_bytes(compiled(*arguments), module(*arguments))


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model(kernel, device, e4m3fn, generator, name):
    fast = kernelized(kernel, quantized(kernel, moe(name, generator, device=device), "block"))
    ids = tokens(generator, 2, 11, device)
    wanted = logits(fast, ids)
    compiled = torch.compile(fast, fullgraph=True, backend="aot_eager")
    assert same_bytes(logits(compiled, ids), wanted)
