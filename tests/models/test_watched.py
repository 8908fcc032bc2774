"""Hooks and wrappers on the parts of fused layers: they are called, with what transformers gives them, and what they
return counts. accelerate's offloading is such a wrapper."""

import copy

import pytest
import torch
from accelerate import cpu_offload
from transformers import OPTConfig

from problems.buffers import same_bytes
from problems.tiny_llama import ACTIVATIONS, LAYER, NEAR, distance, drawn, kernelized, llama, logits, quantize, tokens
from problems.tiny_models import OPT

pytestmark = pytest.mark.usefixtures("without_gradients")

# Parts of a decoder layer -> the width of what they take, as transformers calls them.
PARTS = {
    "input_layernorm": 64,
    "post_attention_layernorm": 64,
    "mlp.act_fn": 96,
    "mlp": 64,
    "mlp.down_proj": 96,
    "self_attn.o_proj": 64,
}
every_part = pytest.mark.parametrize("part", PARTS)
every_activation = pytest.mark.parametrize("activations", ACTIVATIONS)


@pytest.fixture
def made(kernel, device, generator):
    """made(activations) -> (the quantised model on the kernels, token ids)."""

    def make(activations: str = "static"):
        model, ids = llama(generator, device=device), tokens(generator, 2, 9, device)
        quantize(kernel, model, [ids], activations)
        return kernelized(kernel, model), ids

    return make


@every_part
@every_activation
@pytest.mark.parametrize("compiler", [None, pytest.param("aot_eager", marks=pytest.mark.full)])
def test_a_hook_sees_what_transformers_gives(made, part, activations, compiler):
    model, ids = made(activations)
    wanted, seen = logits(model, ids), []
    layer = model.model.layers[1].get_submodule(part)
    layer.register_forward_pre_hook(lambda module, given: seen.append(given[0].clone()))
    layer.register_forward_hook(lambda module, given, result: seen.append(result.clone()))
    if compiler:
        torch._dynamo.reset()
        model = torch.compile(model, backend=compiler)
    got = logits(model, ids)
    # The same roundings; silu's own differ in its last place between torch and the operator.
    assert distance(got, wanted) <= NEAR if part in ("mlp.act_fn", "mlp.down_proj") else same_bytes(got, wanted)
    assert len(seen) == 2 and seen[0].dtype == torch.bfloat16 and seen[0].shape == (2, 9, PARTS[part])


@every_part
@every_activation
def test_what_a_hook_returns_counts(made, part, activations):
    model, ids = made(activations)
    wanted = logits(model, ids)
    handle = (
        model.model.layers[1].get_submodule(part).register_forward_hook(lambda module, given, result: result * -1.0)
    )
    assert distance(logits(model, ids), wanted) > 0.1
    handle.remove()
    assert same_bytes(logits(model, ids), wanted)


@pytest.mark.parametrize("part", [*PARTS, "self_attn", "self_attn.qkv_proj", "mlp.gate_up_proj"])
@every_activation
def test_what_a_hook_keeps_is_not_written(made, part, activations):
    model, ids = made(activations)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(module, given, result) -> None:
        result = result[0] if isinstance(result, tuple) else result
        kept.extend((each, each.clone()) for each in (*given, result))

    for layer in model.model.layers:
        layer.get_submodule(part).register_forward_hook(keep)
    logits(model, ids)
    assert len(kept) >= 2 * len(model.model.layers) - 1
    assert all(same_bytes(*pair) for pair in kept)


@pytest.mark.parametrize("part", ["self_attn", "self_attn.out_proj", "fc2"])
def test_what_a_hook_keeps_of_an_int8_opt_is_not_written(kernel, device, generator, part):
    ids = tokens(generator, 2, 9, device)
    model = kernel.smoothquant.quantize(drawn(OPTConfig(**OPT), generator, torch.float32, device), [ids])
    kept = []

    def keep(module, given, result) -> None:
        result = result[0] if isinstance(result, tuple) else result
        kept.append((result, result.clone()))

    for layer in model.model.decoder.layers:
        layer.get_submodule(part).register_forward_hook(keep)
    logits(model, ids)
    assert len(kept) == 2 and all(same_bytes(*pair) for pair in kept)


def test_an_activation_that_an_int8_opt_never_calls(kernel, device, generator):
    ids = tokens(generator, 2, 9, device)
    model = kernel.smoothquant.quantize(drawn(OPTConfig(**OPT), generator, torch.float32, device), [ids])
    handle = model.model.decoder.layers[1].activation_fn.register_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match="activation_fn is watched"):
        logits(model, ids)
    handle.remove()
    logits(model, ids)


@pytest.mark.parametrize("part", ["input_layernorm", "mlp.act_fn", "mlp.down_proj"])
def test_a_forward_of_the_users_counts(made, part):
    model, ids = made()
    wanted = logits(model, ids)
    module = model.model.layers[1].get_submodule(part)
    own, called = module.forward, []

    def forward(*args, **kwargs):
        called.append(args[0].dtype)
        return own(*args, **kwargs)

    module.forward = forward
    assert distance(logits(model, ids), wanted) <= NEAR and called == [torch.bfloat16]


def test_where_nobody_watches_all_is_fused(made, calls):
    model, ids = made()
    calls.clear()
    logits(model, ids)
    assert [calls.count(name) for name in LAYER["static"]] == [1, 3, 2] and calls.count("quantize_fp8") == 2


OFFLOADED = ["fp8 static", "fp8 dynamic", "fp8 block", "int8", "int8 zeros", "opt"]


@pytest.mark.parametrize("kind", OFFLOADED)
@pytest.mark.parametrize("buffers", [False, True])
def test_an_offloaded_model_computes_the_same(device, generator, of_kind, kind, buffers):
    model, ids = of_kind(kind), tokens(generator, 2, 9, device)
    wanted = logits(model, ids)
    offloaded = copy.deepcopy(model)
    cpu_offload(offloaded, execution_device=device, offload_buffers=buffers)
    if buffers:
        assert all(value.is_meta for name, value in offloaded.named_buffers() if name.endswith("_proj.weight"))
    for _ in range(2):
        assert distance(logits(offloaded, ids), wanted) <= NEAR


@pytest.mark.parametrize("kind", ["fp8", "fp8 static", "int8"])
def test_an_offloaded_model_is_not_quantised(kernel, device, generator, kind):
    model, ids = llama(generator, device=device), tokens(generator, 1, 8, device)
    cpu_offload(model, execution_device=device)
    with pytest.raises(ValueError, match=r"the weight of model\.layers\.0\.\S+ is on the device meta"):
        if kind == "int8":
            kernel.smoothquant.quantize(model, activations="dynamic", alpha=None)
        else:
            quantize(kernel, model, [ids], "static" if "static" in kind else "dynamic")
