"""Attention of one new token whose heads share keys and values: they are read once, where transformers repeats them."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from transformers import StaticCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from problems.inputs import FLOATS, normal, short
from problems.tiny_llama import kernelized, llama, quantize, tokens

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def halves(kernel):
    return importlib.import_module(f"{kernel.quantization.__name__}.halves")


@pytest.mark.parametrize("additive", (False, True), ids=("bool", "additive"))
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_equal_to_repeated_keys(halves, device, generator, dtype, additive):
    for batch, heads, groups, length, d, of_values in ((1, 8, 2, 40, 64, 64), (3, 6, 1, 7, 16, 24), (2, 4, 2, 1, 8, 8)):
        query, key, value = (
            normal(shape, dtype, generator).to(device)
            for shape in ((batch, heads, 1, d), (batch, groups, length, d), (batch, groups, length, of_values))
        )
        seen = torch.rand(batch, 1, 1, length, generator=generator) < 0.7
        seen[..., 0] = True
        mask = seen.to(device)
        if additive:
            mask = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill(~mask, torch.finfo(dtype).min)
        module = SimpleNamespace(num_key_value_groups=heads // groups, is_causal=True)
        wanted, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
        got = halves.attend_in_groups(query, key, value, mask, 0.3)
        assert got.shape == wanted.shape and got.dtype == dtype
        # One rounding; and the order of sums: of d products in a score, whose error is p's relative one twice.
        terms = query.float().abs().view(batch, groups, -1, d) @ key.float().abs().mT
        of_scores = d * 2.0**-24 * 0.3 * terms.max()
        bound = (4 * torch.finfo(dtype).eps + 2 * of_scores) * value.abs().max().float()
        assert (got.float() - wanted.float()).abs().max() <= bound


def test_steps_with_a_mask_take_it(kernel, halves, device, generator, monkeypatch):
    """Steps behind a cache of fixed length, or of padded sequences. Not prompts, not attention that is not SDPA, not
    heads that share nothing."""
    found = []
    own = halves.attend_in_groups
    monkeypatch.setattr(halves, "attend_in_groups", lambda *given: found.append(given[0].shape[0]) or own(*given))

    def steps(mask=None, implementation="sdpa", **sizes) -> int:
        model = llama(generator, torch.bfloat16, device, **sizes)
        quantize(kernel, model, [], "dynamic")
        model = kernelized(kernel, model)
        model.set_attn_implementation(implementation)
        cache = StaticCache(config=model.config, max_cache_len=16)
        found.clear()
        ids = tokens(generator, 2, 5).to(device)
        model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        assert not found
        mask = None if mask is None else torch.cat([mask, mask[:, -1:]], dim=1)
        model(input_ids=ids[:, :1], attention_mask=mask, past_key_values=cache, use_cache=True)
        return len(found) // model.config.num_hidden_layers

    grouped = dict(num_key_value_heads=2)
    padded = torch.ones(2, 5, dtype=torch.long, device=device)
    padded[0, :2] = 0
    assert steps(**grouped) == 1
    assert steps(padded, **grouped) == 1
    assert steps(implementation="eager", **grouped) == 0
    assert steps(num_key_value_heads=4) == 0
