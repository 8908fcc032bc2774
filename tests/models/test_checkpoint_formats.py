"""FP8 checkpoints of every format: the loaded model against what its files mean, by PyTorch alone."""

import fnmatch
import json
import shutil
import sys

import pytest
import safetensors.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

from problems import checkpoints
from problems.buffers import same_bytes
from problems.checkpoints import FORMATS, assert_same_state, by_definition, saved_and_loaded, write
from problems.tiny_llama import (
    LLAMA3_ROPE,
    NEAR,
    SIZES,
    VARIANTS,
    distance,
    drawn,
    llama,
    logits,
    near,
    reference_logits,
    tokens,
)
from problems.tiny_models import config

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*the KV cache keeps the model's dtype"),
    pytest.mark.usefixtures("without_gradients"),
]
every_format = pytest.mark.parametrize("name", FORMATS)

# What is ignored -> (names of linears, which halves of the two layers stay transformers').
IGNORED = {
    "the head": (("lm_head",), ()),
    "one of Q, K, V": (("lm_head", "model.layers.0.self_attn.k_proj"), ("model.layers.0.self_attn",)),
    "a layer's MLP": (
        ("lm_head", *(f"model.layers.1.mlp.{part}_proj" for part in ("gate", "up", "down"))),
        ("model.layers.1.mlp",),
    ),
    "all attention": (
        ("lm_head", *(f"model.layers.{i}.self_attn.{part}_proj" for i in range(2) for part in "qkvo")),
        ("model.layers.0.self_attn", "model.layers.1.self_attn"),
    ),
    "O and Down": (
        ("lm_head", *(f"model.layers.0.{part}_proj" for part in ("self_attn.o", "mlp.down"))),
        ("model.layers.0.self_attn", "model.layers.0.mlp"),
    ),
}


@pytest.fixture
def made(generator, tmp_path):
    """Writes a checkpoint: (what it computes, its folder, token ids)."""

    def make(name: str, ignored=("lm_head",), architecture: str | None = None, **changes):
        if architecture is None:
            model = llama(generator, **(VARIANTS["grouped"] | changes))
        else:
            model = drawn(config(architecture, **changes), generator)
        ids = tokens(generator, 2, 40)
        folder = tmp_path / "made"
        write(name, model, ids, folder, ignored)
        return by_definition(model, folder, FORMATS[name]), folder, ids

    return make


def check(kernel, device, wanted, folder, ids) -> torch.nn.Module:
    loaded = kernel.quantization.load_quantized(folder, device)
    ids, wanted = ids.to(device), logits(wanted, ids).to(device)
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    assert distance(reference_logits(kernel, loaded, ids), wanted) <= near(device)
    assert distance(logits(loaded, ids), wanted) <= near(device)
    return loaded


@every_format
@pytest.mark.parametrize("shapes", ["grouped", "biases"])
def test_a_loaded_model_computes_what_its_files_mean(kernel, device, made, name, shapes):
    wanted, folder, ids = made(name, **VARIANTS[shapes])
    loaded = check(kernel, device, wanted, folder, ids)
    assert type(loaded.model.layers[0]).__name__ == "Fp8LlamaDecoderLayer"
    assert sum(isinstance(m, kernel.quantization.Fp8Linear) for m in loaded.modules()) == 8
    assert not hasattr(loaded.config, "quantization_config")


OTHERS = [name for name in FORMATS if name.startswith("compressed")] + ["fp8, static", "quark", "fbgemm_fp8"]


@pytest.mark.parametrize("architecture", ["mistral", "qwen2", "qwen3", "qwen3, biases"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_loaded_model_of_another_architecture(kernel, device, made, name, architecture):
    wanted, folder, ids = made(name, architecture=architecture)
    loaded = check(kernel, device, wanted, folder, ids)
    assert type(loaded.model.layers[0]).__name__ == f"Fp8{type(wanted.model.layers[0]).__name__}"
    assert sum(isinstance(m, kernel.quantization.Fp8Linear) for m in loaded.modules()) == 8


@pytest.mark.parametrize("name", ["compressed-tensors, tensor, static", "fp8, dynamic", "quark", "fbgemm_fp8"])
@pytest.mark.parametrize("case", [case for case in IGNORED if case != "the head"])
def test_what_is_ignored_stays(kernel, device, made, calls, name, case):
    ignored, plain = IGNORED[case]
    wanted, folder, ids = made(name, ignored)
    loaded = check(kernel, device, wanted, folder, ids)
    for i, layer in enumerate(loaded.model.layers):
        kept = [half for half in ("self_attn", "mlp") if f"model.layers.{i}.{half}" in plain]
        assert (type(layer) is modeling_llama.LlamaDecoderLayer) == (len(kept) == 2)
        for half in ("self_attn", "mlp"):
            own = type(getattr(layer, half)) in (modeling_llama.LlamaAttention, modeling_llama.LlamaMLP)
            assert own == (half in kept)
    modules = dict(loaded.named_modules())
    assert all(type(modules[linear]) is torch.nn.Linear for linear in ignored)
    calls.clear()
    logits(loaded, ids[:1, :5].to(device))
    quantised = sum(isinstance(m, kernel.quantization.Fp8Linear) for m in modules.values())
    assert calls.count("skinny_gemm") == quantised


# Rows of Q, K and V that are whole blocks of 128, and such that a block would hold rows of two of them.
LARGER = {
    "whole blocks": dict(hidden_size=256, intermediate_size=384, head_dim=128, num_key_value_heads=2),
    "blocks that meet": dict(hidden_size=200, intermediate_size=300, head_dim=40, num_key_value_heads=2),
}


@pytest.mark.parametrize("sizes", LARGER)
@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.block])
def test_blocks(kernel, device, made, calls, name, sizes):
    wanted, folder, ids = made(name, **LARGER[sizes])
    loaded = check(kernel, device, wanted, folder, ids)
    linears = [m for m in loaded.modules() if isinstance(m, kernel.quantization.Fp8Linear)]
    calls.clear()
    logits(loaded, ids[:1, :5].to(device))
    assert calls.count("block_scaled_gemm") == len(linears) == 8 and "skinny_gemm" not in calls
    qkv = loaded.model.layers[0].self_attn.qkv_proj
    blocks = qkv.out_features if sizes == "blocks that meet" else qkv.out_features // 128
    assert qkv.weight_scale.shape == (blocks, -(-qkv.in_features // 128))
    if FORMATS[name].power_of_two and sizes == "blocks that meet":  # 192 rows with two scales
        with pytest.raises(ValueError, match="rounds the scales of its inputs.*one of smaller blocks"):
            kernel.quantization.save_quantized(loaded, folder.parent / "saved")
        return
    # What is saved comes back.
    saved_and_loaded(kernel.quantization, loaded, folder.parent / "saved", device)


def test_a_quantised_head(kernel, device, made):
    wanted, folder, ids = made("compressed-tensors, channel, dynamic", ())
    loaded = check(kernel, device, wanted, folder, ids)
    assert type(loaded.lm_head).__name__ == "Fp8Linear"


FP8 = dict(num_bits=8, type="float", symmetric=True)
TOKEN = FP8 | dict(strategy="token", dynamic=True)


def groups(ignore: list[str], **targets: list[str]) -> dict:
    """compressed-tensors' settings: weights' strategy -> targets."""
    schemes = [dict(targets=t, weights=FP8 | {"strategy": s}, input_activations=TOKEN) for s, t in targets.items()]
    settings = dict(quant_method="compressed-tensors", format="float-quantized", ignore=ignore)
    return settings | {"config_groups": {f"group_{i}": scheme for i, scheme in enumerate(schemes)}}


def quark_without_o() -> dict:
    nothing = dict(weight=None, input_tensors=None, output_tensors=None, bias=None)
    settings = checkpoints.quark(["*.1.mlp.*"])
    return settings | {"layer_quant_config": {"*o_proj": nothing}}


# Settings, and which linears of 12 layers they leave alone, as patterns of fnmatch.
RULES = {
    "names": (groups(["lm_head", "model.layers.1.mlp.up_proj"], channel=["Linear"]), ["lm_head", "*.1.mlp.up_proj"]),
    "patterns": (groups(["re:.*self_attn.*", "lm_head"], channel=["Linear"]), ["lm_head", "*self_attn*"]),
    "targets": (groups([], channel=["re:.*mlp.*"], tensor=["model.layers.0.self_attn.q_proj"]), None),
    "fbgemm": (checkpoints.fbgemm(["model.layers.1", "o_proj"]), ["lm_head", "model.layers.1.*", "*.o_proj"]),
    "fp8": (checkpoints.autofp8("static")(["re:.*down_proj"]), ["lm_head", "*down_proj"]),
    "quark": (quark_without_o(), ["lm_head", "*.1.mlp.*", "*o_proj"]),
}


@pytest.mark.parametrize("case", RULES)
def test_which_linears_are_quantised(kernel, case):
    settings, left = RULES[case]
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**(SIZES | {"num_hidden_layers": 12})))
    found = sys.modules[kernel.quantization.load_quantized.__module__].schemes_of(model, settings)
    names = set(checkpoints.linears(model))
    if left is None:
        assert set(found) == {n for n in names if ".mlp." in n} | {"model.layers.0.self_attn.q_proj"}
        assert [n for n, scheme in found.items() if scheme.weights == "tensor"] == ["model.layers.0.self_attn.q_proj"]
    else:
        assert set(found) == {n for n in names if not any(fnmatch.fnmatchcase(n, pattern) for pattern in left)}
    assert all(scheme.scale_ub == (0.75 if case == "fbgemm" else None) for scheme in found.values())


def test_an_upper_bound_reaches_the_operators(kernel, device, made):
    _, folder, ids = made("fbgemm_fp8")
    loaded = kernel.quantization.load_quantized(folder, device)
    linears = [m for m in loaded.modules() if isinstance(m, kernel.quantization.Fp8Linear)]
    assert all(m.scale_ub.item() == 0.75 for m in linears)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    checkpoints.configure(folder, config | {"activation_scale_ub": None})
    free = kernel.quantization.load_quantized(folder, device)
    ids = ids.to(device)
    assert distance(logits(free, ids), logits(loaded, ids)) > 4 * NEAR
    with pytest.raises(ValueError, match="has a scale_ub; compressed-tensors checkpoints hold none"):
        kernel.quantization.save_quantized(loaded, folder.parent / "saved")


@pytest.mark.parametrize("name", ["quark", "fp8, static"])
def test_scales_of_the_cache_are_noted(kernel, made, name):
    _, folder, _ = made(name)
    with pytest.warns(UserWarning, match="made: the KV cache keeps the model's dtype: its scales are not used"):
        kernel.quantization.load_quantized(folder)


def test_joined_scales(kernel, made):
    """Weights are what they were; of the input scales the largest counts."""
    _, folder, _ = made("quark")
    tensors = checkpoints.stored(folder)
    loaded = kernel.quantization.load_quantized(folder)
    names = [f"model.layers.1.self_attn.{part}_proj" for part in "qkv"]
    linear = loaded.model.layers[1].self_attn.qkv_proj
    parts = [tensors[f"{name}.weight"].double() * tensors[f"{name}.weight_scale"].double() for name in names]
    assert torch.equal(linear.weight.double() * linear.weight_scale.double().reshape(-1, 1), torch.cat(parts))
    assert linear.weight_scale.shape == (1, 128)
    assert linear.input_scale.item() == max(tensors[f"{name}.input_scale"].item() for name in names)
    assert loaded.model.layers[1].self_attn.o_proj.weight_scale.shape == (1,)


def test_equal_scales_stay_one(kernel, made):
    _, folder, _ = made("quark")
    scale = torch.tensor(0.01)
    checkpoints.edit(folder, lambda held: held.update({key: scale for key in held if key.endswith("weight_scale")}))
    loaded = kernel.quantization.load_quantized(folder)
    assert all(m.weight_scale.shape == (1,) for m in loaded.modules() if isinstance(m, kernel.quantization.Fp8Linear))


def shard(folder) -> None:
    """model.safetensors as two files with an index, as transformers writes large models."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {}
    for i, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        safetensors.torch.save_file({name: tensors[name] for name in names}, folder / file)
        index |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_shards_and_tied_embeddings(kernel, device, made, tied):
    wanted, folder, ids = made("fp8, static", tie_word_embeddings=tied)
    one = kernel.quantization.load_quantized(folder, device)
    shard(folder)
    loaded = check(kernel, device, wanted, folder, ids)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert_same_state(loaded, one)
    shutil.rmtree(folder)  # it holds its numbers itself
    logits(loaded, ids.to(device))


def test_a_configuration_of_transformers_4(kernel, device, made):
    """As published checkpoints have it: torch_dtype, rope_theta and rope_scaling."""
    _, folder, ids = made("fp8, dynamic", rope_parameters=LLAMA3_ROPE)
    ids = ids.to(device)
    wanted = logits(kernel.quantization.load_quantized(folder, device), ids)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= dict(torch_dtype=config.pop("dtype"), rope_theta=rope.pop("rope_theta"), rope_scaling=rope)
    (folder / "config.json").write_text(json.dumps(config))
    assert same_bytes(logits(kernel.quantization.load_quantized(folder, device), ids), wanted)
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 1e6}))
    assert not same_bytes(logits(kernel.quantization.load_quantized(folder, device), ids), wanted)


@pytest.mark.parametrize("name", ["quark", "compressed-tensors, channel, dynamic"])
def test_on_a_device_of_the_other_format(kernel, device, formats, made, monkeypatch, name):
    _, folder, ids = made(name, IGNORED["one of Q, K, V"][0])
    one = kernel.quantization.load_quantized(folder, device)
    module = sys.modules[f"{kernel.__name__}.models.checkpoints.joined"]
    monkeypatch.setattr(module, "_device_fp8_dtype", lambda device: torch.float8_e4m3fnuz)
    other = kernel.quantization.load_quantized(folder, device)
    pairs = [p for p in zip(one.modules(), other.modules()) if isinstance(p[0], kernel.quantization.Fp8Linear)]
    assert len(pairs) == 9
    for fn, fnuz in pairs:
        assert fnuz.weight.dtype == torch.float8_e4m3fnuz
        assert torch.equal(*[m.weight.double() * m.weight_scale.double().reshape(-1, 1) for m in (fn, fnuz)])
    ids = ids.to(device)
    # Static: activations beyond the largest number alone differ. Dynamic: rows are scaled to 240, another rounding.
    wanted = reference_logits(kernel, other, ids)
    assert distance(wanted, reference_logits(kernel, one, ids)) < 0.2
    if torch.float8_e4m3fnuz in formats:
        assert distance(logits(other, ids), wanted) <= near(device)
