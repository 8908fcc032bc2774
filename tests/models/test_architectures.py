"""Every architecture: what is fused, that it computes what it should, and what becomes of all other models.

What a quantised model should compute comes from `by_definition`: the original model, its linears one by one on what the
quantised one has stored, without the package's code.
"""

import copy
import importlib
import io
import pickle
import re
import warnings

import kernels
import pytest
import torch
from transformers import FalconH1Config

from problems.buffers import same_bytes
from problems.checkpoints import Format, assert_same_state, by_definition, linears
from problems.inputs import FP8
from problems.tiny_llama import (
    ACTIVATIONS,
    NEAR,
    distance,
    drawn,
    fp8_linears,
    kernelized,
    llama,
    logits,
    near,
    pair,
    quantize,
    reference_logits,
    tokens,
)
from problems.tiny_models import FUSED, GROUPED, UNFUSED, WINDOW, config
from problems.tiny_moe import MODELS, any_model

pytestmark = pytest.mark.usefixtures("without_gradients")

every_fused = pytest.mark.parametrize("name", FUSED)
every_other = pytest.mark.parametrize("name", UNFUSED)
every_activation = pytest.mark.parametrize("activations", ACTIVATIONS)


def noted(call) -> list[str]:
    """The warnings of a call, each once for each time that it was raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    # The caller's line, not the package's or torch's.
    assert all(re.search("/(tests|problems)/", warning.filename) for warning in caught)
    return [str(warning.message) for warning in caught]


def definition(kernel, original, quantised, folder, activations: str) -> torch.nn.Module:
    kernel.quantization.save_quantized(quantised, folder)
    return by_definition(original, folder, Format(None, dynamic=activations == "dynamic"))


# A row's maximum that another order of a sum moves by 2^-8 moves its computed scale, and with it one code in 16.
LIMIT = {"static": NEAR, "dynamic": 2 * NEAR}


@every_fused
@every_activation
def test_a_fused_model_computes_what_it_should(kernel, device, generator, tmp_path, name, activations):
    original = drawn(config(name), generator, device=device)
    model, ids = copy.deepcopy(original), tokens(generator, 2, 3 * WINDOW, device)
    own = [type(module) for module in (model.model.layers[0], model.model.layers[0].self_attn)]
    assert noted(lambda: quantize(kernel, model, [ids], activations, fp8_dtype=FP8[0])) == []
    layer = model.model.layers[0]
    for module, parent in zip((layer, layer.self_attn), own):
        assert isinstance(module, parent) and type(module).__name__ == f"Fp8{parent.__name__}"
    assert len(fp8_linears(kernel, model)) == 8 and list(linears(model)) == ["lm_head"]

    wanted = logits(definition(kernel, original, model, tmp_path / "fp8", activations), ids)
    assert distance(logits(model, ids), wanted) <= LIMIT[activations] * near(device) / NEAR
    # FP8 rounds to a 2^-5 of an operand's size, root mean square: about 0.1 after eight products of two.
    assert 0 < distance(wanted, logits(original, ids)) < 0.2

    loaded = kernel.quantization.load_quantized(tmp_path / "fp8", device)
    assert_same_state(loaded, model)
    assert same_bytes(logits(loaded, ids), logits(model, ids))


@every_fused
@every_activation
def test_kernels_and_reference_agree_in_a_padded_batch(kernel, device, generator, calls, name, activations):
    reference, fast = pair(kernel, drawn(config(name), generator, device=device), generator, activations)
    ids, mask = tokens(generator, 3, 3 * WINDOW, device), torch.ones(3, 3 * WINDOW, dtype=torch.long, device=device)
    mask[1, :5] = mask[2, : 2 * WINDOW] = 0
    calls.clear()
    wanted = reference(ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
    assert calls == []
    got = fast(ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
    gemms = sum(name in ("skinny_gemm", "block_scaled_gemm") for name in calls)
    assert gemms >= 8 and distance(got, wanted) <= near(device)
    # What stands before a sequence does not reach it.
    ids[mask == 0] = 7
    assert same_bytes(fast(ids, attention_mask=mask, use_cache=False).logits[mask.bool()], got)


def test_a_window_is_seen(kernel, device, generator):
    """Both layers of a Mistral look back WINDOW - 1 tokens: what is further back than both has no effect."""
    model = pair(kernel, drawn(config("mistral"), generator, device=device), generator, "dynamic")[1]
    ids = tokens(generator, 1, 30, device)
    other = ids.clone()
    other[0, 0] = (ids[0, 0] + 1) % 100
    first, second = logits(model, ids)[0], logits(model, other)[0]
    reach = 2 * (WINDOW - 1)
    assert not torch.equal(first[reach], second[reach]) and same_bytes(first[reach + 1 :], second[reach + 1 :])


@pytest.mark.parametrize("name", [*FUSED, *MODELS])
def test_the_classes_survive_copies(kernel, device, generator, name):
    model = any_model(name, generator, device)
    kernel.quantization.quantize(model, activations="dynamic", granularity="block")
    layer = model.model.layers[1]
    for part in (layer, layer.self_attn, layer.mlp, *([layer.mlp.gate] if name in MODELS else [])):
        assert type(part).__name__.startswith("Fp8") and pickle.loads(pickle.dumps(type(part))) is type(part)
    file = io.BytesIO()
    torch.save(layer.mlp, file)  # attention cannot be: transformers' own holds a class without a name
    file.seek(0)
    read, ids = torch.load(file, weights_only=False), tokens(generator, 1, 12, device)
    x = model.model.embed_tokens(ids)
    assert type(read) is type(layer.mlp) and same_bytes(read(x), layer.mlp(x))
    twice = copy.deepcopy(copy.deepcopy(model))
    assert same_bytes(logits(twice, ids), logits(model, ids)) and type(twice.model.layers[0]) is type(layer)


# --- what is not fused ---


@every_other
@every_activation
def test_of_another_model_the_linears_are_quantised_alone(kernel, device, generator, tmp_path, name, activations):
    original = drawn(config(name), generator, device=device)
    model, ids = copy.deepcopy(original), tokens(generator, 2, 20, device)
    messages = noted(lambda: quantize(kernel, model, [ids], activations, fp8_dtype=FP8[0]))
    count = len(linears(original)) - 1
    what = f"{count} linears are quantised one by one, each with its own input"
    message = f"{type(original).__name__} has no decoder layer that can be fused: {what}"
    assert messages == [message]
    for (key, before), (same, after) in zip(original.named_modules(), model.named_modules(), strict=True):
        head = before is original.get_output_embeddings()
        replaced = type(before) is torch.nn.Linear and not head
        assert key == same and type(after).__name__ == ("Fp8Linear" if replaced else type(before).__name__)

    wanted = logits(definition(kernel, original, model, tmp_path / "fp8", activations), ids)
    by_reference = reference_logits(kernel, model, ids)
    assert distance(by_reference, wanted) <= LIMIT[activations]
    assert 0 < distance(wanted, logits(original, ids)) < 0.2
    assert distance(logits(model, ids), by_reference) <= near(device)

    loaded = []
    assert noted(lambda: loaded.append(kernel.quantization.load_quantized(tmp_path / "fp8", device))) == [message]
    assert same_bytes(logits(loaded[0], ids), logits(model, ids))


@pytest.mark.filterwarnings("ignore:FalconH1")
def test_buffers_that_a_model_computes_for_its_layers(kernel, device, generator, tmp_path):
    """They are in no file, as Falcon-H1's mup_vector."""
    mamba = dict(mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1)
    sizes = GROUPED | mamba | dict(head_dim=16, ssm_multipliers=[0.5, 1.5, 0.7, 1.2, 0.9])
    model = drawn(FalconH1Config(**sizes), generator, device=device)
    kernel.quantization.quantize(model, activations="dynamic")
    kernel.quantization.save_quantized(model, tmp_path / "fp8")
    ours = kernel.quantization.load_quantized(tmp_path / "fp8", device)
    for name, values in model.named_buffers():
        assert same_bytes(ours.get_buffer(name), values), name
    ids = tokens(generator, 2, 12, device)
    assert same_bytes(logits(ours, ids), logits(model, ids))


def bias_on_k(model: torch.nn.Module) -> None:
    projection = model.model.layers[1].self_attn.k_proj
    projection.bias = torch.nn.Parameter(torch.full_like(projection.weight[:, 0], 0.5))


def another_mlp(model: torch.nn.Module) -> None:
    model.model.layers[1].mlp.__class__ = type("MyMLP", (type(model.model.layers[1].mlp),), {})


def another_norm(model: torch.nn.Module) -> None:
    """Rounds once, as gpt-oss's."""
    norm = model.model.layers[0].input_layernorm

    def forward(self, x):
        wide = x.float()
        return (self.weight * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 0.25)).to(x.dtype)

    norm.__class__ = type("MyNorm", (type(norm),), {"forward": forward})


def another_activation(model: torch.nn.Module) -> None:
    model.model.layers[0].mlp.act_fn = torch.nn.GELU()


# What is odd -> (the configuration's changes, a change of the model, halves that are not fused, why).
ODD = {
    "gelu": (
        dict(hidden_act="gelu"),
        None,
        ("0.mlp", "1.mlp"),
        "model.layers.0.mlp (and 1 more) is not fused, because hidden_act is 'gelu', and swiglu_fp8 needs 'silu': 6",
    ),
    "a bias on K alone": (
        {},
        bias_on_k,
        ("1.self_attn",),
        "model.layers.1.self_attn is not fused, because some, but not all of q_proj, k_proj, v_proj have a bias: 4",
    ),
    "a norm of another's": (
        {},
        another_norm,
        ("0.self_attn",),
        "model.layers.0.self_attn is not fused, because input_layernorm is a MyNorm, which is another function than"
        " rms_norm: 4",
    ),
    "an activation of another's": (
        {},
        another_activation,
        ("0.mlp",),
        "model.layers.0.mlp is not fused, because act_fn is a GELU, and swiglu_fp8 needs hidden_act's: 3",
    ),
    "a module of another's": ({}, another_mlp, ("1.mlp",), "model.layers.1.mlp is not fused, because it is a MyMLP: 3"),
}


@pytest.mark.parametrize("case", ODD)
@every_activation
def test_halves_that_cannot_be_fused(kernel, device, generator, tmp_path, case, activations):
    changes, change, halves, why = ODD[case]
    original = llama(generator, device=device, **changes)
    if change is not None:
        change(original)
    model, ids = copy.deepcopy(original), tokens(generator, 2, 20, device)
    messages = noted(lambda: quantize(kernel, model, [ids], activations, fp8_dtype=FP8[0]))
    assert messages == [f"LlamaForCausalLM: {why} linears are quantised one by one, each with its own input"]
    alone = {name.rpartition(".")[0] for name, m in model.named_modules() if type(m).__name__ == "Fp8Linear"}
    alone = {name for name in alone if not hasattr(model.get_submodule(name), "joined_of")}
    assert {name.removeprefix("model.layers.") for name in alone} == set(halves)
    wanted = logits(definition(kernel, original, model, tmp_path / "fp8", activations), ids)
    assert distance(reference_logits(kernel, model, ids), wanted) <= LIMIT[activations]
    # The halves that are fused hand the residual on, past those that are not.
    fast = kernelized(kernel, model)
    assert distance(logits(fast, ids), wanted) <= LIMIT[activations] * near(device) / NEAR
    recorded = fast(ids, use_cache=False, output_hidden_states=True)
    assert same_bytes(recorded.logits, logits(fast, ids))


def test_linears_of_one_input_must_take_it_alike(kernel, generator):
    models = importlib.import_module(f"{kernel.__name__}.models.fp8.planning")
    model = llama(generator)
    names = models.quantisable(model)
    kinds = {name: "static" if name.endswith("0.self_attn.q_proj") else "dynamic" for name in names}
    planned = models.plan(model, kinds)
    assert planned.why == {
        "model.layers.0.self_attn": "q_proj, k_proj, v_proj, or their inputs, are quantised in different ways"
    }
    assert [name.rpartition(".")[2] for name in planned.alone] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    # What a checkpoint's rules leave out is no reason to warn.
    kinds.pop("model.layers.1.mlp.up_proj")
    assert len(models.plan(model, kinds).why) == 1 and len(models.plan(model, kinds).alone) == 6


def test_a_linear_that_no_text_reaches(kernel, generator):
    model = drawn(config("phi3"), generator)
    model.model.unused = torch.nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"inputs: none of them reaches model\.unused; activations='dynamic'"):
        kernel.quantization.quantize(model, [tokens(generator, 1, 8)])
    assert type(model.model.unused) is torch.nn.Linear and not fp8_linears(kernel, model)


def test_a_linear_in_two_places(kernel, generator):
    model = drawn(config("phi3"), generator)
    shared = model.model.layers[0].mlp.down_proj
    model.model.layers[1].mlp.down_proj = shared
    noted(lambda: kernel.quantization.quantize(model, activations="dynamic"))
    first, second = (layer.mlp.down_proj for layer in model.model.layers)
    assert first is second and type(first).__name__ == "Fp8Linear"


def test_each_linear_of_another_model_takes_the_kernel(kernel, device, generator, calls):
    model = drawn(config("gemma2"), generator, device=device)
    noted(lambda: kernel.quantization.quantize(model, activations="dynamic"))
    fast = kernelized(kernel, model, kernels.Mode.INFERENCE)
    calls.clear()
    logits(fast, tokens(generator, 1, 5, device))
    assert calls == ["quantize_fp8", "skinny_gemm"] * 14
