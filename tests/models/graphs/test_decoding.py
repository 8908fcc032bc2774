"""Compiled models that decode: generate() with a static cache, steps with a latent cache, weights that are renewed."""

import copy

import pytest
import torch

from problems.buffers import same_bytes
from problems.tiny_llama import drawn, pair, tokens
from problems.tiny_models import config
from tests.models.graphs.test_layers import COMPILERS
from tests.models.test_latent_cache import steps_of, without_experts
from tests.models.test_renewed_weights import WAYS, decoded, two_latent
from tests.models.test_transformers import written

pytestmark = pytest.mark.usefixtures("without_gradients", "fresh_graphs")


@pytest.mark.parametrize(
    "name, compiler",
    [
        ("mistral", COMPILERS["traced"]),
        ("qwen3", COMPILERS["traced"]),
        pytest.param("llama", COMPILERS["inductor"], marks=pytest.mark.full),
    ],
    ids=["mistral, traced", "qwen3, traced", "llama, inductor"],
)
def test_generate_compiled(kernel, device, generator, name, compiler):
    _, model = pair(kernel, drawn(config(name), generator, device=device), generator, "dynamic")
    ids = tokens(generator, 1, 10, device)
    wanted = written(model, ids, cache_implementation="static", disable_compile=True)
    model.forward = torch.compile(model.forward, fullgraph=True, **compiler)
    assert torch.equal(written(model, ids, cache_implementation="static"), wanted)


def test_a_compiled_step(kernel, device, e4m3fn, generator):
    """One graph for all steps, with a cache of fixed length; its bytes are eager's, and it ends where that is full."""
    model, ids = without_experts(kernel, device, generator), tokens(generator, 2, 20, device)
    eager, cache = (kernel.quantization.latent_cache(model.config, 20) for _ in range(2))
    wanted = steps_of(model, ids, (12, *[1] * 8), eager)
    model(ids[:, :12], past_key_values=cache)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(ids[:, 12:13], past_key_values=cache)
    with torch.compiler.set_stance("fail_on_recompile"):
        for n in range(13, 20):
            got = compiled(ids[:, n : n + 1], past_key_values=cache).logits
            assert same_bytes(got, wanted[:, n : n + 1])
        if device.type == "cpu":  # on a GPU an assertion ends the process's context
            with pytest.raises(RuntimeError, match="a LatentCache of max_length 20 is full"):
                compiled(ids[:, :1], past_key_values=cache)


def test_compiled_steps_follow(kernel, device, e4m3fn, generator):
    """A step that was compiled with other weights, behind a prompt of the new ones."""
    model, other = two_latent(kernel, device, generator)
    first, ids = copy.deepcopy(model), tokens(generator, 2, 20, device)
    step = torch.compile(model, fullgraph=True, backend="aot_eager")
    decoded(model, step, ids, kernel.quantization.latent_cache(model.config, 32))
    for way, new in (("copies", other), ("data", first)):
        wanted = decoded(new, new, ids, kernel.quantization.latent_cache(model.config, 32))
        WAYS[way](model, new)
        assert same_bytes(decoded(model, step, ids, kernel.quantization.latent_cache(model.config, 32)), wanted), way
