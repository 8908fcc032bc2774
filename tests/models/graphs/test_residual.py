"""The residual that layers hand on, in compiled models: in one graph, in graphs that break, in one for each layer."""

import functools

import pytest
import torch
from transformers.models.llama import modeling_llama

from problems.buffers import same_bytes
from problems.tiny_llama import logits, tokens
from problems.tiny_models import WINDOW
from tests.models.test_residual import HANDED_ON, ON_ITS_OWN, in_order, observe, three_layers

pytestmark = pytest.mark.usefixtures("without_gradients", "fresh_graphs")


@pytest.fixture
def made(kernel, device, generator):
    """made(name, activations): three_layers."""
    return functools.partial(three_layers, kernel, device, generator)


@pytest.mark.parametrize(
    "name", ["llama", "qwen3", *(pytest.param(name, marks=pytest.mark.full) for name in ("mistral", "qwen2"))]
)
def test_a_compiled_model_has_no_breaks(device, generator, calls, made, name):
    _, model = made(name, "dynamic")
    ids = tokens(generator, 2, 3 * WINDOW, device)
    wanted = logits(model, ids)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    calls.clear()
    assert same_bytes(logits(compiled, ids), wanted)
    assert in_order(calls, "dynamic") == HANDED_ON  # as they were traced


def test_hooks_that_come_after_compilation(device, generator, calls, made):
    _, model = made("qwen3")
    ids = tokens(generator, 1, 5, device)
    compiled = torch.compile(model.model, fullgraph=True, backend="eager")
    wanted = compiled(ids, use_cache=False).last_hidden_state
    calls.clear()  # as it was: traced code looks at it
    seen = observe(model)
    # torch before 2.15 does not look for hooks again: they are not called, and what is handed on is nobody's business.
    assert same_bytes(compiled(ids, use_cache=False).last_hidden_state, wanted)
    assert len(seen) == (torch.__version__ >= (2, 15))
    torch._dynamo.reset()
    calls.clear()
    assert same_bytes(compiled(ids, use_cache=False).last_hidden_state, wanted)
    assert in_order(calls, "static") == ON_ITS_OWN
    recorded = model.model(ids, use_cache=False, output_hidden_states=True)
    assert seen and all(same_bytes(each, recorded.hidden_states[2]) for each in seen)


def test_graphs_that_break_within_a_layer(device, generator, monkeypatch, made):
    """Then frames are compiled by themselves, and one compiled frame may serve several layers."""
    _, model = made()
    monkeypatch.setattr(
        modeling_llama, "apply_rotary_pos_emb", torch._dynamo.disable(modeling_llama.apply_rotary_pos_emb)
    )
    ids = tokens(generator, 1, 5, device)
    wanted = logits(model, ids)
    compiled = torch.compile(model, backend="eager")
    assert same_bytes(logits(compiled, ids), wanted) and same_bytes(logits(compiled, ids), wanted)


def test_layers_that_are_compiled_one_by_one(device, generator, made):
    """In their places, which leaves them decoder layers: what is handed on crosses graphs."""
    _, model = made()
    ids = tokens(generator, 1, 5, device)
    wanted = logits(model, ids)
    for layer in model.model.layers:
        layer.compile(fullgraph=True, backend="eager")
    assert same_bytes(logits(model, ids), wanted) and same_bytes(logits(model, ids), wanted)
