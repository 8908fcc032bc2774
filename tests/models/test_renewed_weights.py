"""Weights that are renewed in place, as training that samples from a served model does it: whatever is computed from
them follows. Two sets of weights for every class that is fused."""

import pytest
import torch

from problems.buffers import same_bytes
from problems.tiny_llama import kernelized, llama, logits, tokens
from problems.tiny_models import FUSED
from problems.tiny_moe import MODELS, any_model, moe

pytestmark = pytest.mark.usefixtures("without_gradients")

LATENT = dict(kv_lora_rank=512, qk_rope_head_dim=64)


def named(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Without what is computed: it has no name in a checkpoint."""
    return dict(model.state_dict(keep_vars=True))


def by_copies(model: torch.nn.Module, other: torch.nn.Module) -> None:
    new = named(other)
    for name, value in named(model).items():
        value.copy_(new[name])


def by_data(model: torch.nn.Module, other: torch.nn.Module) -> None:
    """As a collective of torch.distributed writes: torch does not count it."""
    new = named(other)
    for name, value in named(model).items():
        value.data.copy_(new[name].data)


def by_leaves(model: torch.nn.Module, other: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if not list(module.children()):
            module.load_state_dict(other.get_submodule(name).state_dict())


def by_loading(model: torch.nn.Module, other: torch.nn.Module) -> None:
    model.load_state_dict(other.state_dict())


WAYS = {"copies": by_copies, "data": by_data, "leaves": by_leaves, "whole": by_loading}
every_way = pytest.mark.parametrize("way", WAYS)


def two(kernel, make, **options) -> list[torch.nn.Module]:
    models = [make(), make()]
    for model in models:
        kernel.quantization.quantize(model, activations="dynamic", **options)
    return [kernelized(kernel, model) for model in models]


@every_way
@pytest.mark.parametrize("name", [*FUSED, *MODELS])
def test_a_model_follows_its_weights(kernel, device, e4m3fn, generator, name, way):
    model, other = two(kernel, lambda: any_model(name, generator, device))
    ids = tokens(generator, 2, 11, device)
    before, wanted = logits(model, ids), logits(other, ids)
    assert not same_bytes(before, wanted)
    WAYS[way](model, other)
    assert same_bytes(logits(model, ids), wanted)


@every_way
@pytest.mark.parametrize("symmetric", [True, False])
def test_an_int8_model_follows_its_weights(kernel, device, generator, symmetric, way):
    models = [llama(generator, device=device) for _ in range(2)]
    options = dict(activations="dynamic", alpha=None, symmetric=symmetric)
    model, other = (kernel.smoothquant.quantize(each, **options) for each in models)
    ids = tokens(generator, 2, 11, device)
    logits(model, ids)
    wanted = logits(other, ids)
    WAYS[way](model, other)
    if way == "data" and not symmetric:
        kernel.quantization.weights_changed(model)  # no call can tell that its sums are old
    assert same_bytes(logits(model, ids), wanted)


def two_latent(kernel, device, generator) -> list[torch.nn.Module]:
    """Quantised DeepSeek-V3 that decode by mla_decode."""
    return two(kernel, lambda: moe("deepseek_v3", generator, device=device, **LATENT), granularity="block")


@pytest.fixture
def latent(kernel, device, e4m3fn, generator):
    return two_latent(kernel, device, generator)


def decoded(model, step, ids: torch.Tensor, cache) -> torch.Tensor:
    """The logits of single tokens after a prompt."""
    model(ids[:, :12], past_key_values=cache)
    return torch.cat([step(ids[:, n : n + 1], past_key_values=cache).logits for n in range(12, 20)], dim=1)


@every_way
@pytest.mark.parametrize("most", [None, 32])
def test_absorbed_weights_follow(kernel, device, generator, latent, way, most):
    model, other = latent
    ids = tokens(generator, 2, 20, device)
    decoded(model, model, ids, kernel.quantization.latent_cache(model.config, most))
    wanted = decoded(other, other, ids, kernel.quantization.latent_cache(model.config, most))
    WAYS[way](model, other)
    assert same_bytes(decoded(model, model, ids, kernel.quantization.latent_cache(model.config, most)), wanted)


@pytest.mark.parametrize("way", ["copies", "data"])
def test_weights_that_change_within_a_sequence(kernel, device, generator, latent, way):
    """An eager step sees what torch has counted; weights_changed says the rest."""
    model, other = latent
    ids = tokens(generator, 2, 20, device)
    caches = [kernel.quantization.latent_cache(model.config) for _ in range(2)]
    for cache in caches:
        model(ids[:, :12], past_key_values=cache)
    wanted = other(ids[:, 12:13], past_key_values=caches[0]).logits
    WAYS[way](model, other)
    if way == "data":
        kernel.quantization.weights_changed(model)
    assert same_bytes(model(ids[:, 12:13], past_key_values=caches[1]).logits, wanted)


def test_a_captured_step_reads_the_memory_that_is_renewed(latent):
    """A graph knows addresses: the absorbed weights stay where they are."""
    model, other = latent
    absorbed = [layer.self_attn.absorbed for layer in model.model.layers]
    before = [(each.w_uk.data_ptr(), each.w_uv.data_ptr()) for each in absorbed]
    for way in (by_copies, by_leaves, by_loading):
        way(model, other)
        model(torch.ones(1, 12, dtype=torch.int64, device=model.device))
    assert [(each.w_uk.data_ptr(), each.w_uv.data_ptr()) for each in absorbed] == before
    assert same_bytes(absorbed[0].w_uk, other.model.layers[0].self_attn.absorbed.w_uk)
