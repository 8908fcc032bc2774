"""A quantised DeepSeek-V3 with a LatentCache: decode steps by mla_decode against keys and values of each head, padded
batches, generate(), what transformers asks of caches."""

import copy
import functools
import pickle

import pytest
import torch
from transformers import DynamicCache, StaticCache

from problems.buffers import same_bytes
from problems.inputs import FP8
from problems.tiny_llama import NEAR, assert_likeliest, distance, kernelized, logits, on_reference, tokens
from problems.tiny_moe import moe

pytestmark = pytest.mark.usefixtures("without_gradients")

# Without experts: a rounded score would send a token elsewhere, and no bound would hold.
SIZES = dict(kv_lora_rank=512, qk_rope_head_dim=64, first_k_dense_replace=2)
YARN = dict(
    rope_type="yarn", rope_theta=10000.0, factor=8.0, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1,
    original_max_position_embeddings=64,
)  # fmt: skip
# How far logits may be apart that come by absorbed weights and by keys and values of each head. Queries, probabilities
# and sums are rounded to bfloat16 at other places. So all inputs of O differ by up to 2^-8 of their size, and 2^-5 to
# 2^-4 of its FP8 codes are the next ones. That is 2^-6 of a result's norm, as tiny_llama.ANOTHER_DTYPE has it. Eight
# linears, one after the other: 2^-4.5. Twice that for spread. A wrong angle, length or order moves a result by its
# whole size.
ABSORBED = 2.0**-3.5

KINDS = {
    "block": {},
    "channel": {},
    "q_proj": dict(q_lora_rank=None),
    "half-split": dict(rope_interleave=False),
    "yarn": dict(rope_parameters=YARN),
}


def without_experts(kernel, device, generator, kind: str = "block", fast: bool = True) -> torch.nn.Module:
    """A quantised DeepSeek-V3."""
    model = moe("deepseek_v3", generator, device=device, **(SIZES | KINDS[kind]))
    granularity = "channel" if kind == "channel" else "block"
    kernel.quantization.quantize(model, activations="dynamic", granularity=granularity)
    return kernelized(kernel, model) if fast else on_reference(kernel, model)


@pytest.fixture
def made(kernel, device, e4m3fn, generator):
    """made(kind, fast): without_experts."""
    return functools.partial(without_experts, kernel, device, generator)


def defined(model: torch.nn.Module) -> torch.nn.Module:
    """A copy whose kv_b has the stored numbers and takes inputs that are not quantised, as absorbed weights do."""
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        linear = layer.self_attn.kv_b_proj
        scale = linear.weight_scale.reshape(-1, 1)
        if linear.weights == "block":
            rows, columns = linear.weight.shape
            scale = linear.weight_scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        weight = (linear.weight.float() * scale).bfloat16()
        linear.forward = lambda x, weight=weight: torch.nn.functional.linear(x, weight)
    return model


def steps_of(model, ids: torch.Tensor, lengths: tuple[int, ...], cache, **keywords) -> torch.Tensor:
    """The logits of all tokens, given in parts of these lengths."""
    parts = [model(part, past_key_values=cache, **keywords).logits for part in ids.split(lengths, dim=1)]
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("most", [None, 70])
@pytest.mark.parametrize("fast", [True, False], ids=["kernels", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_steps(kernel, device, generator, made, kind, fast, most):
    """A prompt, single tokens, several at once, more than mla_decode takes: as with keys and values of each head."""
    model, ids = made(kind, fast), tokens(generator, 2, 45, device)
    lengths = (11, 1, 3, 8, 21, 1)
    got = steps_of(model, ids, lengths, kernel.quantization.latent_cache(model.config, most))
    wanted = steps_of(defined(model), ids, lengths, DynamicCache(config=model.config))
    assert distance(got[:, 11:], wanted[:, 11:]) <= ABSORBED
    # A prompt goes through kv_b, with its quantised inputs.
    assert same_bytes(got[:, :11], logits(model, ids[:, :11]))


@pytest.mark.parametrize("most", [None, 70])
@pytest.mark.parametrize("fast", [True, False], ids=["kernels", "reference"])
def test_steps_of_a_cache_in_fp8(kernel, device, generator, made, fast, most):
    """As a cache of 16 bits whose latent numbers were rounded to FP8 first. No prompt that reads other numbers."""
    model, ids = made(fast=fast), tokens(generator, 2, 45, device)
    lengths = (5, 1, 3, 8, 27, 1)
    cache = kernel.quantization.latent_cache(model.config, most, fp8=True)
    got = steps_of(model, ids, lengths, cache)
    assert all(layer.rows.dtype == torch.uint8 and layer.rows.shape[2] == 656 for layer in cache.layers)
    rounded = copy.deepcopy(model)
    for layer in rounded.model.layers:
        norm = layer.self_attn.kv_a_layernorm
        norm.register_forward_hook(lambda module, _, latent: in_groups(kernel, latent))
    wanted = steps_of(rounded, ids, lengths, kernel.quantization.latent_cache(model.config, most))
    assert distance(got, wanted) <= ABSORBED


def in_groups(kernel, latent: torch.Tensor) -> torch.Tensor:
    """Rounded to FP8 with a scale for each 128 numbers."""
    codes, scale = kernel.reference.quantize_fp8(
        latent.reshape(-1, 512), scaling="group", group_size=128, out_dtype=FP8[0]
    )
    wide = codes.float().unflatten(-1, (-1, 128)) * scale.float()[..., None]
    return wide.flatten(-2).to(latent.dtype).view(latent.shape)


@pytest.mark.parametrize("prompt", [1, 5, 8])
def test_a_short_prompt(kernel, device, generator, made, prompt):
    model, ids = made(), tokens(generator, 2, 12, device)
    got = steps_of(model, ids, (prompt, 12 - prompt), kernel.quantization.latent_cache(model.config))
    assert distance(got, logits(defined(model), ids)) <= ABSORBED


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("most", [None, 64])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("prompt", [6, 14])
def test_a_padded_batch(kernel, device, generator, made, side, most, attention, prompt):
    """Each sequence is as if it were alone."""
    model = made()
    model.set_attn_implementation(attention)
    lengths, more = [prompt, prompt - 4, 1], 12
    whole = tokens(generator, 3, prompt + more, device)
    ids, mask = torch.full((3, prompt), 7, device=device), torch.zeros(3, prompt, dtype=torch.long, device=device)
    for row, length in enumerate(lengths):
        place = slice(prompt - length, prompt) if side == "left" else slice(0, length)
        ids[row, place], mask[row, place] = whole[row, :length], 1
    cache = kernel.quantization.latent_cache(model.config, most)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    first = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache).logits
    results = [[first[row][mask[row].bool()]] for row in range(3)]
    begin = torch.tensor(lengths, device=device)[:, None]
    for step in (1, 1, 10):  # the last: more than mla_decode takes, behind lengths of their own
        new = torch.stack([whole[row, n : n + step] for row, n in enumerate(begin[:, 0].tolist())])
        mask = torch.cat([mask, torch.ones_like(new)], dim=1)
        given = dict(attention_mask=mask, position_ids=begin + torch.arange(step, device=device))
        logits_of = model(new, past_key_values=cache, **given).logits
        for row in range(3):
            results[row].append(logits_of[row])
        begin = begin + step
    wanted = defined(model)
    for row, length in enumerate(lengths):
        got = torch.cat(results[row])
        alone = logits(wanted, whole[row : row + 1, : length + more])[0]
        assert distance(got[length:], alone[length:]) <= ABSORBED


def test_one_attention(kernel, device, generator, made):
    """Steps of one module, so near that its prompt's quantised latent vectors would be seen: they are 2^-4.5 away."""
    model = made()
    first, wanted = model.model.layers[0].self_attn, defined(model).model.layers[0].self_attn
    hidden = torch.randn(2, 30, 128, generator=generator).bfloat16().to(device)
    angles = model.model.rotary_emb(hidden, torch.arange(30, device=device)[None])
    name = next(each for each in first.PARAMETERS if each in ("past_key_values", "cache"))
    outputs = []
    for attention, cache in (
        (first, kernel.quantization.latent_cache(model.config)),
        (wanted, DynamicCache(config=model.config)),
    ):
        parts = []
        for begin, end in ((0, 11), *((n, n + 1) for n in range(11, 30))):
            cut = tuple(each[:, begin:end] for each in angles)
            keywords = dict(position_embeddings=cut, attention_mask=None, **{name: cache})
            parts.append(attention(hidden[:, begin:end], **keywords)[0])
        outputs.append(torch.cat(parts[1:], dim=1))
    assert distance(*outputs) <= NEAR


@pytest.mark.parametrize("most", [None, 40])
def test_generate(kernel, device, generator, made, calls, most):
    model, ids = made(), tokens(generator, 2, 12, device)
    cache = kernel.quantization.latent_cache(model.config, most)
    options = dict(max_new_tokens=9, do_sample=False, past_key_values=cache, attention_mask=torch.ones_like(ids))
    calls.clear()
    found = model.generate(ids, **options)
    assert found.shape == (2, 21) and calls.count("mla_decode") == 8 * len(model.model.layers)
    assert calls.count("mla_append") == 9 * len(model.model.layers)
    assert_likeliest(defined(model), found, 12, 4 * ABSORBED)
    # A second turn, with the same cache.
    more = torch.cat([found, tokens(generator, 2, 10, device)], dim=1)
    options["attention_mask"] = torch.ones_like(more)
    found = model.generate(more, **options)
    assert found.shape == (2, 40)
    assert_likeliest(defined(model), found, 31, 4 * ABSORBED)


def test_beams(kernel, device, generator, made):
    """The best beams have the likelihood that they have as whole texts: each was read with its own past."""
    model, ids = made(), tokens(generator, 2, 12, device)
    cache = kernel.quantization.latent_cache(model.config)
    found = model.generate(
        ids, num_beams=4, max_new_tokens=8, do_sample=False, past_key_values=cache,
        return_dict_in_generate=True, output_scores=True, attention_mask=torch.ones_like(ids),
    )  # fmt: skip
    whole = logits(defined(model), found.sequences)[:, 11:-1].float()
    each = whole.log_softmax(-1).gather(-1, found.sequences[:, 12:, None])[..., 0]
    # Three times what the mean of eight may be off. With the pasts of other beams one is off by 0.2 and more.
    off = (found.sequences_scores - each.mean(1)).abs()
    assert (off <= 3 * ABSORBED * whole.std() / 8**0.5).all()


@pytest.mark.parametrize("most", [None, 32])
def test_what_transformers_asks_of_caches(kernel, device, generator, made, most):
    model, ids = made(), tokens(generator, 3, 16, device)
    cache = kernel.quantization.latent_cache(model.config, most)
    wanted = steps_of(model, ids, (12, 1, 3), cache)
    assert int(cache.get_seq_length()) == 16 and cache.is_compileable == (most is not None)
    cache.crop(-3)
    assert same_bytes(model(ids[:, 13:], past_key_values=cache).logits, wanted[:, 13:])
    cache.reset()
    assert int(cache.get_seq_length()) == 0
    assert same_bytes(steps_of(model, ids, (12, 1, 3), cache), wanted)
    if most is None:  # other sequences in the places of these
        order = torch.tensor([2, 0, 2], device=device)
        cache.crop(-3)
        cache.reorder_cache(order)
        assert same_bytes(model(ids[order][:, 13:], past_key_values=cache).logits, wanted[order][:, 13:])
        cache.crop(-3)
        cache.batch_select_indices(torch.tensor([1], device=device))
        cache.batch_repeat_interleave(2)
        again = model(ids[[0, 0]][:, 13:], past_key_values=cache).logits
        assert distance(again, wanted[[0, 0]][:, 13:]) <= NEAR


def test_it_grows(kernel, device, generator, made):
    model, ids = made(), tokens(generator, 1, 280, device)
    model.config.max_position_embeddings = 512
    cache = kernel.quantization.latent_cache(model.config)
    got = steps_of(model, ids, (240, 5, 5, 5, 5, 20), cache)
    assert cache.layers[0].rows.shape == (1, 512, 576)
    assert distance(got[:, 240:], logits(defined(model), ids)[:, 240:]) <= ABSORBED


def test_transformers_static_cache(kernel, device, generator, made):
    """Keys and values of each head are made from its latent vectors."""
    model, ids = made(), tokens(generator, 2, 20, device)
    cache = StaticCache(config=model.config, max_cache_len=32)
    got = steps_of(model, ids, (12, 1, 7), cache)
    assert distance(got, logits(model, ids)) <= NEAR


def test_loaded_numbers_are_absorbed(kernel, device, generator, made):
    model, other = made(), made()
    ids = tokens(generator, 1, 14, device)
    other.load_state_dict(model.state_dict())
    got, wanted = (
        steps_of(each, ids, (9, 5), kernel.quantization.latent_cache(each.config)) for each in (other, model)
    )
    assert same_bytes(got, wanted)


# --- what is refused, and not ignored ---


@pytest.mark.parametrize("most", [None, 20])
def test_a_cache_that_is_full(kernel, device, generator, made, most):
    """As transformers' StaticCache: an IndexError, before anything is written; one that grows has no end."""
    model, ids = made(), tokens(generator, 2, 24, device)
    cache = kernel.quantization.latent_cache(model.config, most)
    wanted = steps_of(model, ids[:, :20], (12, 8), cache)
    if most is None:
        model(ids[:, 20:21], past_key_values=cache)
        return
    if device.type != "cpu":
        return  # there an assertion ends the process's context
    with pytest.raises(IndexError, match="a LatentCache of max_length 20 is full: 1 more tokens are too many"):
        model(ids[:, 20:21], past_key_values=cache)
    cache.crop(-8)
    assert same_bytes(model(ids[:, 12:20], past_key_values=cache).logits, wanted[:, 12:])
    with pytest.raises(IndexError, match="a LatentCache of max_length 12 is full"):
        model.generate(
            ids[:, :10],
            past_key_values=kernel.quantization.latent_cache(model.config, 12),
            max_new_tokens=10,
            do_sample=False,
        )


@pytest.mark.parametrize("most", [None, 32])
def test_masks_that_change_what_is_held(kernel, device, generator, made, most):
    """The attention sees the mask of new tokens alone; a mask that takes others away later would be lost."""
    model, ids = made(), tokens(generator, 2, 16, device)
    mask = torch.ones(2, 13, dtype=torch.long, device=device)
    mask[0, :4] = 0
    cache = kernel.quantization.latent_cache(model.config, most)
    model(ids[:, :12], past_key_values=cache)
    if device.type == "cpu":
        with pytest.raises(ValueError, match="attention_mask: not what it was for tokens that the LatentCache holds"):
            model(ids[:, 12:13], attention_mask=mask, past_key_values=cache)
        with pytest.raises(ValueError, match="attention_mask"):  # of the new token alone: the rest would be padding
            model(ids[:, 12:13], attention_mask=mask[:, -1:], past_key_values=cache)
    cache.reset()
    model(ids[:, :12], attention_mask=mask[:, :12], past_key_values=cache)
    model(ids[:, 12:13], attention_mask=mask, past_key_values=cache)


@pytest.mark.parametrize("most", [None, 32])
def test_embeddings_behind_a_mask(kernel, device, generator, made, most):
    """In the place of ids: the mask comes before them among a base model's arguments."""
    model, ids = made(), tokens(generator, 2, 14, device)
    mask = torch.ones(2, 14, dtype=torch.long, device=device)
    mask[0, :4] = 0
    results = []
    for embedded in (False, True):
        cache = kernel.quantization.latent_cache(model.config, most)
        model(ids[:, :12], attention_mask=mask[:, :12], past_key_values=cache)
        new = ids[:, 12:]
        given = dict(inputs_embeds=model.get_input_embeddings()(new)) if embedded else dict(input_ids=new)
        results.append(model.model(attention_mask=mask, past_key_values=cache, **given).last_hidden_state)
    assert same_bytes(*results)


def test_masks_that_are_not_causal(kernel, device, generator, made):
    """Two texts in one row: a short prompt goes through mla_decode, which would let the second see the first."""
    if device.type != "cpu":
        pytest.skip("there an assertion ends the process's context")
    model = made()
    for queries in (6, 12):
        sees = torch.ones(queries, queries, dtype=torch.bool).tril()
        sees[queries // 2 :, : queries // 2] = False
        cache = kernel.quantization.latent_cache(model.config)
        with pytest.raises(ValueError, match="attention_mask: not that of causal attention"):
            model(tokens(generator, 1, queries), attention_mask=sees[None, None], past_key_values=cache)


@pytest.mark.parametrize("most", [None, 32])
def test_padding_that_is_cropped(kernel, device, generator, made, most):
    """The last tokens of one sequence are padding: fewer of its own go."""
    model, ids = made(), tokens(generator, 2, 14, device)
    mask = torch.ones(2, 14, dtype=torch.long, device=device)
    mask[1, 10:12] = 0
    cache = kernel.quantization.latent_cache(model.config, most)
    model(ids[:, :10], past_key_values=cache)
    wanted = model(ids[:, 10:12], attention_mask=mask[:, :12], past_key_values=cache).logits
    cache.crop(-2)
    assert cache.layers[0].tokens.lengths.tolist() == [10, 10] and int(cache.get_seq_length()) == 10
    got = model(ids[:, 10:12], attention_mask=mask[:, :12], past_key_values=cache).logits
    assert same_bytes(got[:1], wanted[:1])


@pytest.mark.parametrize("most", [None, 32])
def test_copies_of_a_cache(kernel, device, generator, made, most):
    """A prefix that several texts go on from: each copy has its own tokens; so has one that was pickled."""
    model, ids = made(), tokens(generator, 2, 16, device)
    cache = kernel.quantization.latent_cache(model.config, most)
    model(ids[:, :12], past_key_values=cache)
    copies = [copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
    wanted = [model(ids[:, n : n + 1], past_key_values=cache).logits for n in (12, 13)]
    for each in copies:
        got = [model(ids[:, n : n + 1], past_key_values=each).logits for n in (12, 13)]
        assert all(map(same_bytes, got, wanted)) and int(each.get_seq_length()) == 14


def test_who_watches_kv_b(kernel, device, generator, made):
    """Steps with this cache never call it."""
    model, ids = made(), tokens(generator, 1, 12, device)
    attention = model.model.layers[1].self_attn
    handle = attention.kv_b_proj.register_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match="LatentCache: kv_b_proj is watched, wrapped or another module"):
        model(ids, past_key_values=kernel.quantization.latent_cache(model.config))
    model(ids, past_key_values=DynamicCache(config=model.config))
    handle.remove()
    model(ids, past_key_values=kernel.quantization.latent_cache(model.config))


# --- errors ---


def test_what_it_refuses(kernel, device, generator, made):
    model, ids = made(), tokens(generator, 2, 12, device)
    with pytest.raises(ValueError, match=r"kv_lora_rank and qk_rope_head_dim: \(32, 16\); mla_decode takes 512 and 64"):
        kernel.quantization.latent_cache(moe("deepseek_v3", generator).config)
    for wrong in (0, -1, 1.5, "8"):
        with pytest.raises(ValueError, match="max_length: .*; needs a positive integer, or None"):
            kernel.quantization.latent_cache(model.config, wrong)
    with pytest.raises(ValueError, match="fp8"):
        kernel.quantization.latent_cache(model.config, fp8=1)
    cache = kernel.quantization.latent_cache(model.config)
    model(ids, past_key_values=cache)
    with pytest.raises(ValueError, match="a LatentCache of 2 sequences; 1 were given"):
        model(ids[:1], past_key_values=cache)
    with pytest.raises(ValueError, match=r"attention_mask: \[2, 1, 1, 13\]; with a LatentCache it is \[B, tokens\]"):
        model(ids[:, :1], past_key_values=cache, attention_mask=torch.ones(2, 1, 1, 13, dtype=torch.bool))
    less = copy.deepcopy(model.config)
    less.num_hidden_layers = 1
    with pytest.raises(ValueError, match="a LatentCache of 1 layers; the model has more"):
        model(ids, past_key_values=kernel.quantization.latent_cache(less))
    with pytest.raises(ValueError, match="crop: 3; a LatentCache takes minus the number"):
        cache.crop(3)
    plain = moe("deepseek_v3", generator, device=device, **SIZES)
    with pytest.raises(TypeError, match="a LatentCache is for DeepSeek-V3's attention that is quantised as a whole"):
        plain(ids, past_key_values=kernel.quantization.latent_cache(plain.config))
