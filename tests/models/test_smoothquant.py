"""SmoothQuant's migration, int8 models and their checkpoints, beside the float model. Modules: test_int8_modules.py."""

import copy
import functools
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, OPTConfig

from examples.byte_opt.train import CHECKPOINT
from examples.llama_fp8.decoding import with_cache
from examples.smoothquant_demo import plant_outliers
from problems.checkpoints import assert_same_state, copied_state, saved_and_loaded
from problems.int8 import with_scale
from problems.tiny_llama import NEAR, VARIANTS, distance, drawn, llama, logits, reference_logits, tokens
from problems.tiny_models import OPT

pytestmark = pytest.mark.usefixtures("without_gradients")

# Folding rounds each weight and gain once more, by 2^-24 of its value: sums of 96 of them, through two layers, stay
# below 2^-15 of the logits' norm. A factor in the wrong place changes them by their whole size.
FOLDED = 2.0**-15
# Int8 of random normal numbers: a step is 1 / 30 to 1 / 40 of the standard deviation, because the largest of some
# thousand is 3 to 4 of them. That adds 1 % of noise to each operand. Sixteen such operands, one after the other: below
# 10 %.
INT8 = 0.1


def opt(generator, dtype=torch.float32, device="cpu", **changes):
    return drawn(
        OPTConfig(**(OPT | dict(word_embed_proj_dim=64, tie_word_embeddings=True) | changes)), generator, dtype, device
    )


def with_outliers(model: torch.nn.Module) -> torch.nn.Module:
    plant_outliers(model, 64, channels=2)
    return model


# --- smoothing ---


def test_planted_outliers_change_no_bit(generator):
    model, ids = opt(generator), tokens(generator, 2, 24)
    before = logits(model, ids)
    planted = with_outliers(copy.deepcopy(model))
    norms = [m.model.decoder.layers[0].final_layer_norm.weight for m in (model, planted)]
    assert sorted((norms[1] / norms[0]).tolist()) == [1] * 62 + [64] * 2
    # A power of 2 leaves each product as it was, and the sums keep their order.
    assert torch.equal(logits(planted, ids), before)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.85, 1.0])
@pytest.mark.parametrize("kind", ["opt", "llama"])
def test_smoothing_keeps_the_function(kernel, device, generator, kind, alpha):
    make, changes = (opt, {}) if kind == "opt" else (llama, VARIANTS["biases"])
    made, ids = make(generator, torch.float32, device, **changes), tokens(generator, 2, 24, device)
    before, maxima = logits(made, ids), kernel.smoothquant.channel_maxima(made, [ids])
    weights = {name: value.clone() for name, value in made.named_parameters()}
    assert kernel.smoothquant.smooth(made, maxima, alpha) is made
    assert distance(logits(made, ids), before) <= FOLDED
    changed = {name for name, value in made.named_parameters() if not torch.equal(value, weights[name])}
    # Per layer OPT: 2 gains, 2 biases, Q, K, V, fc1; Llama: 2 gains, Q, K, V, gate, up.
    assert len(changed) == 2 * (8 if kind == "opt" else 7)


def test_maxima_and_factors_are_the_papers(kernel, device, generator):
    model, batches = opt(generator, device=device), [tokens(generator, 2, 24, device), tokens(generator, 1, 9, device)]
    layer, seen = model.model.decoder.layers[1], []
    handle = layer.fc1.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].reshape(-1, 64)))
    for ids in batches:
        logits(model, ids)
    handle.remove()
    maxima = kernel.smoothquant.channel_maxima(model, iter(batches))
    wanted = torch.cat(seen).abs().amax(0)
    assert torch.equal(maxima["model.decoder.layers.1.final_layer_norm"], wanted)
    weight, gain = layer.fc1.weight.clone(), layer.final_layer_norm.weight.clone()
    factor = wanted**0.7 / weight.abs().amax(0) ** 0.3
    kernel.smoothquant.smooth(model, maxima, 0.7)
    torch.testing.assert_close(layer.fc1.weight, weight * factor, rtol=1e-6, atol=0)
    torch.testing.assert_close(layer.final_layer_norm.weight, gain / factor, rtol=1e-6, atol=0)


def test_a_dead_channel_stays_finite(kernel, device, generator):
    model, ids = opt(generator, device=device), tokens(generator, 2, 24, device)
    layer = model.model.decoder.layers[0]
    layer.final_layer_norm.weight[3] = layer.final_layer_norm.bias[3] = 0
    layer.fc1.weight[:, 5] = 0
    before = logits(model, ids)
    kernel.smoothquant.smooth(model, kernel.smoothquant.channel_maxima(model, [ids]))
    assert distance(logits(model, ids), before) <= FOLDED


# --- models ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_static_opt(kernel, device, generator, dtype):
    model, ids = opt(generator, dtype, device), tokens(generator, 2, 24, device)
    wanted = logits(model, ids)
    made = kernel.smoothquant.quantize(copy.deepcopy(model), iter([ids]))
    kinds = [type(m).__name__ for m in made.modules()]
    assert [kinds.count(k) for k in ("W8A8B8O8Linear", "W8A8B8O8LinearReLU", "W8A8BFP32OFP32Linear")] == [6, 2, 4]
    assert kinds.count("LayerNormQ") == kinds.count("BMM") == 4 and kinds.count("Int8OPTAttention") == 2
    assert 0 < distance(logits(made, ids), wanted) < INT8
    # A recorded hidden state is not written by a later layer.
    states = made(input_ids=ids, output_hidden_states=True).hidden_states
    assert len(states) == 3 and torch.equal(states[0], model(input_ids=ids, output_hidden_states=True).hidden_states[0])


def test_masks_and_the_cache(kernel, device, backend, generator):
    # On the CPU the same bytes. On a GPU a softmax's sum takes an order of the row's length, the head's sums one of the
    # number of rows. So a probability's code may move by one, which moves the logits by less than 2^-8 of their norm.
    most = 0 if backend == "cpu" else 2.0**-7
    model, ids = opt(generator, device=device), tokens(generator, 2, 24, device)
    made = kernel.smoothquant.quantize(model, [ids])
    whole = logits(made, ids)
    # Later tokens do not reach earlier ones.
    assert distance(logits(made, ids[:, :10]), whole[:, :10]) <= most
    cache = DynamicCache(config=made.config)
    parts = [made(input_ids=part, **with_cache(made, cache)).logits for part in (ids[:, :15], ids[:, 15:])]
    assert cache.layers[0].keys.dtype == torch.int8
    assert distance(torch.cat(parts, 1), whole) <= most
    # Padding on the left is not seen.
    padded = torch.cat([torch.full((2, 3), 5, device=device), ids], 1)
    mask = torch.cat([torch.zeros(2, 3), torch.ones(2, 24)], 1).long().to(device)
    assert distance(made(input_ids=padded, attention_mask=mask, use_cache=False).logits[:, 3:], whole) <= most


@pytest.mark.parametrize("activations", ["static", "dynamic"])
def test_outliers_hurt_only_what_is_not_smoothed(kernel, device, generator, activations):
    model, ids = with_outliers(opt(generator)).to(device), tokens(generator, 2, 24, device)
    wanted = logits(model, ids)
    smoothed = kernel.smoothquant.quantize(copy.deepcopy(model), [ids], activations=activations)
    given = [ids] if activations == "static" else None
    naive = kernel.smoothquant.quantize(model, given, activations=activations, alpha=None)
    near, far = (distance(logits(m, ids), wanted) for m in (smoothed, naive))
    assert near < INT8 and far > 2 * near


@pytest.mark.parametrize("shapes", ["grouped", "biases"])
def test_dynamic_llama(kernel, device, generator, shapes):
    model, ids = llama(generator, device=device, **VARIANTS[shapes]), tokens(generator, 2, 24, device)
    wanted = logits(model, ids)
    made = kernel.smoothquant.quantize(copy.deepcopy(model), [ids], activations="dynamic")
    assert sum(isinstance(m, kernel.smoothquant.Int8Linear) for m in made.modules()) == 14
    assert type(made.lm_head) is torch.nn.Linear
    assert 0 < distance(logits(made, ids), wanted) < INT8


# --- checkpoints ---


@pytest.mark.parametrize("kind, symmetric", [("opt", True), ("llama", True), ("llama", False)])
def test_dynamic_round_trip(kernel, device, generator, tmp_path, kind, symmetric):
    model = opt(generator, device=device) if kind == "opt" else llama(generator, device=device, **VARIANTS["biases"])
    ids = tokens(generator, 2, 24, device)
    kernel.smoothquant.quantize(model, [ids], activations="dynamic", symmetric=symmetric)
    loaded = saved_and_loaded(kernel.smoothquant, model, tmp_path / "int8", device)
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    settings = json.loads((tmp_path / "int8" / "config.json").read_text())
    assert settings["architectures"] == [type(model).__name__]  # which engines ask for
    config = settings["quantization_config"]
    assert (config["quant_method"], config["format"], config["ignore"]) == (
        "compressed-tensors",
        "int-quantized",
        ["lm_head"],
    )
    assert config["config_groups"]["group_0"]["input_activations"]["symmetric"] == symmetric
    # transformers decompresses the weights: the same numbers, and inputs that it rounds in its own way.
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "int8", dtype=torch.float32).to(device).eval()
    assert distance(logits(read, ids), logits(model, ids).float()) < INT8
    linears = {name: m for name, m in model.named_modules() if isinstance(m, kernel.smoothquant.Int8Linear)}
    for name, made in linears.items():
        assert torch.equal(read.get_submodule(name).weight, made.weight.float() * made.weight_scale.T), name


@pytest.mark.parametrize("symmetric", [True, False])
def test_static_compressed_tensors(kernel, device, generator, tmp_path, symmetric):
    """Scales and zero points of tensors: read as written, and as transformers reads them."""
    model, ids = llama(generator, device=device, **VARIANTS["biases"]).float(), tokens(generator, 2, 24, device)
    kernel.smoothquant.quantize(model, activations="dynamic", alpha=None, symmetric=symmetric)
    plain = logits(model, ids)
    linears = {name: m for name, m in model.named_modules() if isinstance(m, kernel.smoothquant.Int8Linear)}
    inputs = {}
    hooks = [
        m.register_forward_pre_hook(lambda _, x, name=name: inputs.update({name: x[0]})) for name, m in linears.items()
    ]
    logits(model, ids)
    for hook in hooks:
        hook.remove()
    for name, made in linears.items():  # what calibration on these tokens finds
        low, high = inputs[name].float().min().clamp(max=0).item(), inputs[name].float().max().clamp(min=0).item()
        scale = max(-low, high) / 127 if symmetric else (high - low) / 255
        with_scale(made, scale, 0 if symmetric else round(-128 - low / scale))
    assert 0 < distance(logits(model, ids), plain) < 2 * INT8
    loaded = saved_and_loaded(kernel.smoothquant, model, tmp_path / "int8", device)
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "int8", dtype=torch.float32).to(device).eval()
    # The same scales: only ties and the order of sums differ, and what they grow to through layers.
    assert distance(logits(read, ids), logits(model, ids)) < 0.2 * INT8
    for name, made in linears.items():
        assert torch.equal(read.get_submodule(name).input_scale.reshape(1).float(), made.input_scale), name


@pytest.mark.parametrize("form", ["safetensors", "pickled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_static_round_trip(kernel, device, generator, tmp_path, form, dtype):
    model, ids = opt(generator, dtype, device), tokens(generator, 2, 24, device)
    kernel.smoothquant.quantize(model, [ids])
    folder = tmp_path / "int8"
    kernel.smoothquant.save_quantized(model, folder)
    if form == "pickled":  # as mit-han-lab's checkpoints are
        state = copied_state(model)
        torch.save(state, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    loaded = kernel.smoothquant.load_quantized(folder, device)
    assert_same_state(loaded, model)
    assert torch.equal(logits(loaded, ids), logits(model, ids))


def test_the_names_are_torch_ints(kernel, device, generator):
    model = kernel.smoothquant.quantize(opt(generator, device=device), [tokens(generator, 2, 24, device)])
    prefix = "model.decoder.layers.0."
    found = {n.removeprefix(prefix): v for n, v in model.state_dict().items() if n.startswith(prefix)}
    wanted = {f"self_attn.{p}_proj.{b}" for p in "qkv" for b in ("weight", "bias", "a", "b")}
    wanted |= {f"{m}.{b}" for m in ("self_attn.out_proj", "fc2") for b in ("weight", "bias", "a")}
    wanted |= {f"fc1.{b}" for b in ("weight", "bias", "a", "b")} | {"self_attn.qk_bmm.a", "self_attn.pv_bmm.a"}
    wanted |= {f"{m}.{b}" for m in ("self_attn_layer_norm", "final_layer_norm") for b in ("weight", "bias")}
    assert found.keys() == wanted
    assert found["fc1.bias"].shape == (1, 96) and found["fc1.a"].shape == ()


# --- errors ---


def test_bad_arguments(kernel, device, generator):
    quantize, ids = kernel.smoothquant.quantize, tokens(generator, 2, 24, device)
    model = opt(generator, device=device)
    before = copied_state(model)
    for message, arguments in {
        "activations: 'int8'": dict(activations="int8"),
        "inputs: None": dict(),
        "inputs: empty": dict(inputs=[]),
        "alpha: 1.5": dict(inputs=[ids], alpha=1.5),
        "symmetric: False": dict(inputs=[ids], symmetric=False),
        "without smoothing take none": dict(inputs=[ids], activations="dynamic", alpha=None),
    }.items():
        with pytest.raises(ValueError, match=message):
            quantize(model, **arguments)
    assert_same_state(model, before)
    with pytest.raises(ValueError, match="static int8 is for OPT"):
        quantize(llama(generator, device=device), [ids])
    for message, changes in {
        "do_layer_norm_before": dict(do_layer_norm_before=False),
        "'gelu'": dict(activation_function="gelu"),
        "elementwise_affine": dict(layer_norm_elementwise_affine=False),
    }.items():
        with pytest.raises(ValueError, match=message):
            quantize(opt(generator, device=device, **changes), [ids])
    bad = opt(generator, device=device)
    bad.model.decoder.layers[1].fc2.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="layers.1.fc2 holds NaN"):
        quantize(bad, [ids])
    with pytest.raises(ValueError, match="maxima: none of model.decoder.layers.0.self_attn_layer_norm"):
        kernel.smoothquant.smooth(model, {})
    with pytest.raises(ValueError, match="quantised already"):
        quantize(quantize(model, [ids]), [ids])


def test_bad_checkpoints(kernel, device, generator, tmp_path):
    from safetensors.torch import load_file, save_file

    load = functools.partial(kernel.smoothquant.load_quantized, device=device)
    save = kernel.smoothquant.save_quantized
    with pytest.raises(ValueError, match="not quantised to int8"):
        save(opt(generator, device=device), tmp_path / "none")
    opt(generator, device=device).save_pretrained(tmp_path / "float")
    with pytest.raises(ValueError, match="no quantization_config"):
        load(tmp_path / "float")
    folder = tmp_path / "int8"
    save(kernel.smoothquant.quantize(opt(generator, device=device), activations="dynamic", alpha=None), folder)
    with pytest.raises(FileExistsError):
        save(load(folder), folder)
    mixed = load(folder)
    mixed.model.decoder.layers[0].fc1.symmetric = False
    with pytest.raises(ValueError, match="zero points"):
        save(mixed, tmp_path / "mixed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["float", "int8"]
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    name = "model.decoder.layers.0.fc1.weight"
    scale = f"{name}_scale"
    for message, changed in {
        f"no tensor {name}": {k: v for k, v in tensors.items() if k != name},
        f"{scale}: scales are positive": tensors | {scale: -tensors[scale]},
        f"{scale}: holds NaN": tensors | {scale: tensors[scale] * float("nan")},
        f"{name}: dtype F32": tensors | {name: tensors[name].float()},
        f"{name}: shape": tensors | {name: tensors[name][:1].clone()},
        "unknown tensor other": tensors | {"other": torch.zeros(1)},
    }.items():
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(ValueError, match=message):
            load(folder)
    save_file(tensors, folder / "model.safetensors")
    inputs = config["quantization_config"]["config_groups"]["group_0"]["input_activations"]
    for message, changes in {
        "no tensor .*input_scale": dict(strategy="tensor", dynamic=False),
        "'tensor', True": dict(strategy="tensor"),
        "4, ": dict(num_bits=4),
    }.items():
        kept = dict(inputs)
        inputs.update(changes)
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=message):
            load(folder)
        inputs.clear()
        inputs.update(kept)
    config["quantization_config"]["rotate"] = False
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="quantization_config: rotate: nothing here knows what it asks for"):
        load(folder)


# --- the byte-level OPT ---


def test_the_byte_level_opt_is_small():
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < 6_000_000


@pytest.mark.parametrize("kind", ["opt", "symmetric", "zero points"])
def test_by_reference(kernel, device, generator, calls, kind):
    """Without a call of an operator. Sums of int8 are exact; those of norms and softmax may run in another order."""
    ids = tokens(generator, 2, 24, device)
    if kind == "opt":
        model = kernel.smoothquant.quantize(opt(generator, device=device), [ids])
    else:
        options = dict(activations="dynamic", alpha=None, symmetric=kind == "symmetric")
        model = kernel.smoothquant.quantize(llama(generator, device=device), **options)
    got = logits(model, ids)
    assert calls
    calls.clear()
    assert distance(reference_logits(kernel, model, ids), got) <= NEAR and not calls
