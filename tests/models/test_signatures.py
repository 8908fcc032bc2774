"""Fused forwards take what the architecture's own forwards take, by the names of the transformers that is installed."""

import contextlib
import importlib

import pytest
import torch
import transformers
from transformers import DynamicCache

from problems.buffers import same_bytes
from problems.tiny_llama import drawn, kernelized, llama, quantize, tokens
from problems.tiny_models import FUSED, OPT, config

pytestmark = pytest.mark.usefixtures("without_gradients")

CACHES = ("cache", "past_key_values")


@pytest.fixture
def signatures(kernel):
    return importlib.import_module(f"{kernel.__name__}.models.signatures")


def module(forward) -> type:
    return type("Attention", (), {"forward": forward})


KNOWN = ("hidden_states", "cache")
UNKNOWN = {
    "renamed": lambda self, hidden_states, kv_cache=None, **kwargs: None,
    "one more": lambda self, hidden_states, cache=None, pages=None, **kwargs: None,
    "one missing": lambda self, hidden_states, **kwargs: None,
    "both caches": lambda self, hidden_states, cache=None, past_key_values=None, **kwargs: None,
    "another first": lambda self, cache, hidden_states, **kwargs: None,
    "no others": lambda self, hidden_states, cache=None: None,
    "by keyword alone": lambda self, hidden_states, *, cache=None, **kwargs: None,
    "any positional": lambda self, hidden_states, cache=None, *args, **kwargs: None,
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_forward_that_is_not_known_is_refused(signatures, case):
    with pytest.raises(RuntimeError, match="Attention.forward takes") as error:
        signatures.parameters(module(UNKNOWN[case]), KNOWN)
    assert f"transformers {transformers.__version__}" in str(error.value)


@pytest.mark.parametrize("cache", CACHES)
def test_the_parameters_are_those_of_the_own_forward(signatures, cache):
    space = {}
    exec(f"def forward(self, hidden_states, mask=None, {cache}=None, **kwargs): pass", space)
    names = signatures.parameters(module(space["forward"]), ("hidden_states", "cache", "mask"))
    assert names == ("mask", cache)
    # By position, by either name of the cache, and what is beyond the parameters.
    assert signatures.named(names, (1, 2), {"more": 3}) == {"mask": 1, cache: 2, "more": 3}
    for other in CACHES:
        assert signatures.named(names, (1,), {other: 2}) == {"mask": 1, cache: 2}
        with pytest.raises(TypeError, match=f"more than one value for the argument '{cache}'"):
            signatures.named(names, (1, 2), {other: 2})
    with pytest.raises(TypeError, match="at most 3 positional arguments; 4 were given"):
        signatures.named(names, (1, 2, 3), {})


def layer_of(kernel, name: str, generator, device) -> tuple[torch.nn.Module, dict]:
    """(A quantised model's first decoder layer; what it is given beside the hidden state and the cache.)"""
    model = drawn(config(name), generator, device=device)
    quantize(kernel, model, [tokens(generator, 2, 24, device)], "static")
    position = torch.arange(3, device=device)[None]
    rotary = model.model.rotary_emb(torch.zeros(1, 3, 1, dtype=torch.bfloat16, device=device), position)
    return model.model.layers[0], dict(position_ids=position, position_embeddings=rotary)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("cache", [*CACHES, "by position"])
def test_a_layer_fills_the_cache_by_any_of_its_names(kernel, device, generator, name, cache):
    layer, given = layer_of(kernel, name, generator, device)
    x = torch.randn(1, 3, 64, generator=generator).to(device, torch.bfloat16)
    for context in (kernel.by_reference, contextlib.nullcontext):
        held = DynamicCache()
        with context():
            if cache == "by position":
                result = layer(x, None, given["position_ids"], held, position_embeddings=given["position_embeddings"])
            else:
                result = layer(x, attention_mask=None, **{cache: held}, **given)
            assert held.get_seq_length() == 3
            assert same_bytes(result, layer(x, attention_mask=None, **given))


@pytest.mark.parametrize("cache", CACHES)
def test_an_int8_opt_layer_fills_the_cache_by_any_of_its_names(kernel, device, generator, cache):
    model = drawn(transformers.OPTConfig(**OPT), generator, device=device)
    layer = kernel.smoothquant.quantize(model, [tokens(generator, 2, 24, device)]).model.decoder.layers[0]
    x, held = torch.randn(1, 3, 64, generator=generator).to(device, torch.bfloat16), DynamicCache()
    assert same_bytes(layer(x, **{cache: held}), layer(x)) and held.get_seq_length() == 3


@pytest.mark.parametrize("cache", CACHES)
def test_half_fused_layers_hand_the_cache_to_transformers_attention(kernel, device, generator, cache):
    model = llama(generator, device=device)
    # As a checkpoint whose rules leave the attention out.
    models, linear = (
        importlib.import_module(f"{kernel.__name__}.models.fp8.{name}") for name in ("planning", "linear")
    )
    wanted = {name: 0 for name in models.quantisable(model) if ".mlp." in name}

    def join(parts):
        return linear.Fp8Linear.quantized(
            [model.get_submodule(part) for part in parts], None, "channel", torch.float8_e4m3fn
        )

    models.replace_linears(model, models.plan(model, wanted), join)
    model, ids = kernelized(kernel, model), tokens(generator, 1, 3, device)
    layer, held = model.model.layers[0], DynamicCache()
    assert not isinstance(layer.self_attn.q_proj, linear.Fp8Linear)
    position = torch.arange(3, device=device)[None]
    x = model.model.embed_tokens(ids)
    rotary = model.model.rotary_emb(x, position)
    layer(x, position_embeddings=rotary, **{cache: held})
    assert held.get_seq_length() == 3
