"""The residual that a decoder layer hands to the next one's norm: the same bytes as with additions of its own, fewer
operators, and nowhere where something sees the hidden state between layers."""

import copy
import functools
import importlib

import pytest
import torch
from transformers import DynamicCache

from examples.llama_fp8.decoding import with_cache
from problems.buffers import same_bytes
from problems.tiny_llama import ACTIVATIONS, LAYER, drawn, kernelized, logits, pair, tokens
from problems.tiny_models import FUSED, WINDOW, config

pytestmark = pytest.mark.usefixtures("without_gradients")

every_fused = pytest.mark.parametrize("name", FUSED)
every_activation = pytest.mark.parametrize("activations", ACTIVATIONS)
LAYERS = 3


def three_layers(kernel, device, generator, name: str = "llama", activations: str = "static"):
    """(On the reference operators, on the kernels.)"""
    model = drawn(config(name, num_hidden_layers=LAYERS), generator, device=device)
    return pair(kernel, model, generator, activations)


@pytest.fixture
def made(kernel, device, generator):
    """made(name, activations): three_layers."""
    return functools.partial(three_layers, kernel, device, generator)


def observe(model: torch.nn.Module, which: int = 1) -> list[torch.Tensor]:
    """What a layer returns, from now on."""
    seen: list[torch.Tensor] = []
    model.model.layers[which].register_forward_hook(lambda module, arguments, output: seen.append(output.clone()))
    return seen


def in_order(calls: list[str], activations: str) -> list[str]:
    norm, add_norm, swiglu = LAYER[activations]
    return [{norm: "norm", add_norm: "add", swiglu: "swiglu"}[name] for name in calls if name in LAYER[activations]]


HANDED_ON = ["norm", "add", "swiglu", *["add", "add", "swiglu"] * (LAYERS - 1)]
ON_ITS_OWN = ["norm", "add", "swiglu"] * LAYERS


@every_fused
@every_activation
def test_results_are_the_same_bytes(device, generator, made, name, activations):
    ids = tokens(generator, 2, 3 * WINDOW, device)
    for model in made(name, activations):
        handed_on = logits(model, ids)
        recorded = model(ids, use_cache=False, output_hidden_states=True)
        again = logits(model, ids)
        seen = observe(model)
        assert same_bytes(logits(model, ids), handed_on) and same_bytes(again, handed_on)
        assert same_bytes(recorded.logits, handed_on)
        assert len(recorded.hidden_states) == LAYERS + 1 and same_bytes(recorded.hidden_states[2], seen[0])


@every_fused
@every_activation
def test_a_decode_step_calls_what_the_layers_need(device, generator, calls, made, name, activations):
    _, model = made(name, activations)
    ids = tokens(generator, 2, 9, device)
    given = with_cache(model, DynamicCache(config=model.config))
    model(ids[:, :8], **given)
    calls.clear()
    model(ids[:, 8:], **given)
    assert in_order(calls, activations) == HANDED_ON
    norm, add_norm, swiglu = LAYER[activations]
    assert [calls.count(n) for n in (norm, add_norm, swiglu)] == [1, 2 * LAYERS - 1, LAYERS]
    assert calls.count("skinny_gemm") == 4 * LAYERS and calls.count("quantize_fp8") == LAYERS
    # transformers opens its RMSNorm to kernels where it takes their version: the last norm, and those of heads.
    norms = 1 + (2 * LAYERS if "qwen3" in name else 0)
    assert calls.count("rms_norm") == (norms if hasattr(type(model.model.norm), "kernel_layer_name") else 0)


def stop_gradients(model) -> None:
    model.train()
    model.gradient_checkpointing_enable()


def compile_a_layer(model) -> None:
    model.model.layers[1] = torch.compile(model.model.layers[1], backend="eager")


# What observes -> how.
OBSERVERS = {
    "a hook": observe,
    "a pre-hook": lambda model: model.model.layers[2].register_forward_pre_hook(lambda module, arguments: None),
    "the configuration": lambda model: setattr(model.config, "output_hidden_states", True),
    "gradient checkpointing": stop_gradients,
    "a layer of another kind": compile_a_layer,
}


@pytest.mark.parametrize("case", OBSERVERS)
def test_no_residual_is_handed_on_where_something_observes(device, generator, calls, made, case):
    _, model = made()
    ids = tokens(generator, 1, 5, device)
    wanted = logits(model, ids)
    assert in_order(calls, "static") == HANDED_ON
    OBSERVERS[case](model)
    calls.clear()
    assert same_bytes(logits(model, ids), wanted) and in_order(calls, "static") == ON_ITS_OWN


def test_hooks_of_all_modules_observe(device, generator, calls, made):
    _, model = made()
    ids, seen = tokens(generator, 1, 5, device), []
    wanted = logits(model, ids)
    calls.clear()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *arguments: seen.append(arguments[0]))
    try:
        assert same_bytes(logits(model, ids), wanted) and in_order(calls, "static") == []
    finally:
        handle.remove()
    for layer in model.model.layers:  # no module is skipped
        assert {layer, layer.input_layernorm, layer.post_attention_layernorm, layer.mlp.act_fn} <= set(seen)
    calls.clear()
    logits(model, ids)
    assert in_order(calls, "static") == HANDED_ON


def test_hooks_come_and_go(device, generator, calls, made):
    _, model = made()
    ids = tokens(generator, 1, 5, device)
    wanted = logits(model, ids)
    handle = model.model.layers[0].register_forward_hook(lambda module, arguments, output: output * 1)
    assert same_bytes(logits(model, ids), wanted)
    handle.remove()
    model(ids, use_cache=False, output_hidden_states=True, output_attentions=True)
    for extra in ({}, {"output_attentions": True}):  # recorders that stay, but record nothing or no hidden state
        calls.clear()
        assert same_bytes(model(ids, use_cache=False, **extra).logits, wanted)
        assert in_order(calls, "static") == HANDED_ON


def test_a_hook_may_change_the_hidden_state(device, generator, made):
    _, model = made()
    ids = tokens(generator, 1, 5, device)
    hidden = model(ids, use_cache=False, output_hidden_states=True).hidden_states
    model.model.layers[0].register_forward_hook(lambda module, arguments, output: hidden[0])
    seen = observe(model, 0)
    logits(model, ids)
    assert same_bytes(seen[0], hidden[0])


@pytest.mark.parametrize("which", range(LAYERS))
def test_a_layer_with_a_forward_of_its_own_gets_hidden_states(device, generator, calls, made, which):
    """As accelerate's hooks and ablations have it. Here it skips the layer."""
    _, model = made()
    ids, layer = tokens(generator, 1, 5, device), model.model.layers[which]
    own, seen = layer.forward, []
    layer.forward = functools.update_wrapper(functools.partial(lambda h, **kwargs: seen.append(h) or h), own)
    skipped = logits(model, ids)
    assert in_order(calls, "static") == ["norm", "add", "swiglu"] * (LAYERS - 1)
    recorded = model(ids, use_cache=False, output_hidden_states=True)
    assert same_bytes(recorded.hidden_states[which], seen[0]) and same_bytes(recorded.logits, skipped)


def test_the_base_model_and_a_layer_by_themselves(device, generator, calls, made):
    _, model = made()
    ids = tokens(generator, 2, 7, device)
    hidden = model(ids, use_cache=False, output_hidden_states=True).hidden_states
    calls.clear()
    assert same_bytes(model.model(ids, use_cache=False).last_hidden_state, hidden[-1])
    assert in_order(calls, "static") == HANDED_ON
    positions = model.model.rotary_emb(hidden[0], torch.arange(7, device=device)[None])
    before = hidden[0].clone()
    assert same_bytes(model.model.layers[0](hidden[0], position_embeddings=positions), hidden[1])
    assert same_bytes(hidden[0], before)
    calls.clear()
    twice = copy.deepcopy(model)
    assert same_bytes(twice.model(ids, use_cache=False).last_hidden_state, hidden[-1])
    assert in_order(calls, "static") == HANDED_ON and len(twice.model._forward_pre_hooks) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_the_last_layer_is_the_last_that_runs(device, generator, made, count):
    """An early exit, as generate's assistant_early_exit takes it: a smaller num_hidden_layers."""
    _, model = made()
    ids = tokens(generator, 1, 5, device)
    hidden = model(ids, use_cache=False, output_hidden_states=True).hidden_states
    model.config.num_hidden_layers = count
    assert same_bytes(model.model(ids, use_cache=False).last_hidden_state, model.model.norm(hidden[count]))


def test_what_is_left_is_taken_once(kernel):
    stream = importlib.import_module(f"{kernel.__name__}.models.fp8.residual").ResidualStream(4)
    part, residual = torch.ones(2), torch.full((2,), 3.0)
    assert stream.take(part) == (part, None)
    assert stream.leave(part, residual) and stream.take(part) == (part, residual)
    assert stream.take(part) == (part, None)
    assert stream.leave(part, residual)
    hidden, left = stream.take(part.clone())  # another tensor: it is added first
    assert left is None and hidden.tolist() == [4.0, 4.0] and residual.tolist() == [3.0, 3.0]
    assert not stream.leave(part, residual)  # of the last layer


def test_a_converted_model_has_one_hook(kernel, device, generator):
    model = drawn(config("qwen2"), generator, device=device)
    kernel.quantization.quantize(model, activations="dynamic")
    kernelized(kernel, model)
    assert len(model.model._forward_pre_hooks) == 1 and not model._forward_pre_hooks
