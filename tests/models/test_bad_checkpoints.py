"""Checkpoints that are refused: one error, which names the tensor, file or setting, before a model is there."""

import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from problems import checkpoints
from problems.tiny_llama import llama, tokens

STATIC, DYNAMIC, CHANNEL = "fp8, static", "fp8, dynamic", "compressed-tensors, channel, dynamic"
LINEAR = "model.layers.1.mlp.up_proj"
pytestmark = pytest.mark.filterwarnings("ignore:.*the KV cache keeps the model's dtype")
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> Callable[[str], Path]:
    """A checkpoint of each format, written once."""

    @functools.cache
    @torch.no_grad()
    def of(name: str) -> Path:
        folder, generator = tmp_path_factory.mktemp("checkpoints") / "original", torch.Generator().manual_seed(5)
        checkpoints.write(name, llama(generator), tokens(generator, 1, 8), folder)
        return folder

    return of


@pytest.fixture
def copied(originals, tmp_path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(originals(name), tmp_path / "copy"))


def refused(kernel, folder: Path, message: str, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error) as caught:
        kernel.quantization.load_quantized(folder)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert type(caught.value) is error


# --- tensors ---


def widened(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.expand(count).clone()


def without(name: str):
    return lambda tensors: tensors.pop(name)


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]):
    return lambda tensors: tensors.update({name: change(tensors[name])})


def filled(name: str, value: float):
    def change(scale: torch.Tensor) -> torch.Tensor:
        scale = scale.clone()
        scale.reshape(-1)[-1] = value
        return scale

    return changed(name, change)


# Parts of a tensor's name.
WEIGHT, SCALE, INPUT = (f"{LINEAR}.{last}" for last in ("weight", "weight_scale", "input_scale"))
e5m2 = lambda t: t.float().to(torch.float8_e5m2)
HEADERS = {
    "no weight": (STATIC, without(WEIGHT), f"no tensor {WEIGHT}"),
    "no weight scale": (STATIC, without(SCALE), f"no tensor {SCALE}"),
    "no input scale": (STATIC, without(INPUT), f"no tensor {INPUT}"),
    "no norm": (STATIC, without("model.norm.weight"), "no tensor model.norm.weight"),
    "no head": (STATIC, without("lm_head.weight"), "no tensor lm_head.weight"),
    "not quantised": (STATIC, changed(WEIGHT, lambda t: t.bfloat16()), f"{WEIGHT}: dtype BF16; needs F8_E4M3"),
    "e5m2": (STATIC, changed(WEIGHT, e5m2), f"{WEIGHT}: dtype F8_E5M2; needs F8_E4M3"),
    "an FP8 head": (
        STATIC,
        changed("lm_head.weight", checkpoints.to_fp8),
        "lm_head.weight: dtype F8_E4M3; needs F16, BF16",
    ),
    "an integer scale": (STATIC, changed(SCALE, lambda t: t.int()), f"{SCALE}: dtype I32"),
    "a weight's shape": (
        STATIC,
        changed(WEIGHT, lambda t: t[:, :-1].contiguous()),
        f"{WEIGHT}: shape [96, 63]; needs [96, 64]",
    ),
    "a norm's shape": (
        STATIC,
        changed("model.norm.weight", lambda t: t[:-1].clone()),
        "model.norm.weight: shape [63]; needs [64]",
    ),
    "channels of a tensor": (STATIC, changed(SCALE, widened(96)), f"{SCALE}: shape [96]; needs [1]"),
    "a channel too few": (CHANNEL, changed(SCALE, lambda t: t[:-1].clone()), f"{SCALE}: shape [95, 1]; needs [96, 1]"),
    "two input scales": (STATIC, changed(INPUT, widened(2)), f"{INPUT}: shape [2]; needs [1]"),
    "one too many": (STATIC, lambda tensors: tensors.update(extra=torch.zeros(1)), "unknown tensor extra"),
    "block scales": (
        DYNAMIC,
        lambda tensors: tensors.update({f"{LINEAR}.weight_scale_inv": torch.ones(1, 1)}),
        f"unknown tensor {LINEAR}.weight_scale_inv",
    ),
}


@pytest.mark.parametrize("case", HEADERS)
def test_names_shapes_and_dtypes_come_before_any_tensor(kernel, copied, monkeypatch, case):
    name, change, message = HEADERS[case]
    folder = copied(name)
    checkpoints.edit(folder, change)
    module = sys.modules[kernel.quantization.load_quantized.__module__]

    def read(*_):
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(module.Tensors, "read", read)
    refused(kernel, folder, message)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -0.5], ids=str)
@pytest.mark.parametrize("which", ["weight_scale", "input_scale", "a channel's"])
def test_scales_are_positive_numbers(kernel, copied, which, value):
    folder = copied(CHANNEL if which == "a channel's" else STATIC)
    tensor = f"{LINEAR}." + ("weight_scale" if which == "a channel's" else which)
    checkpoints.edit(folder, filled(tensor, value))
    refused(kernel, folder, f"{tensor}: holds {value}; scales are positive numbers")


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_weights_that_hold_nan_are_named(kernel, copied, code):
    folder = copied(CHANNEL)
    checkpoints.edit(folder, lambda tensors: tensors[f"{LINEAR}.weight"].view(torch.uint8)[-1, -1].fill_(code))
    refused(kernel, folder, f"{LINEAR}.weight: holds NaN")


# --- files ---


@pytest.mark.parametrize("part", [0.0, 1e-4, 0.5, 0.999])
def test_a_truncated_file_is_named(kernel, copied, part):
    file = copied(STATIC) / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    refused(kernel, file.parent, str(file))


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(kernel, copied, file):
    folder = copied(STATIC)
    (folder / file).unlink()
    refused(kernel, folder, f"copy/{file}: no such file", FileNotFoundError)
    refused(kernel, folder / "nowhere", "nowhere/config.json: no such file", FileNotFoundError)


def test_shards(kernel, copied):
    folder = copied(STATIC)
    index, shard = folder / "model.safetensors.index.json", folder / "model-00002-of-00002.safetensors"
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    moved = {name: tensors.pop(name) for name in sorted(tensors)[::2]}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    where = dict.fromkeys(tensors, "model.safetensors") | dict.fromkeys(moved, shard.name)
    index.write_text(json.dumps({"weight_map": where}))
    refused(kernel, folder, f"{shard.name}: no such file", FileNotFoundError)

    lost = f"{LINEAR}.weight_scale"
    kept = {name: value for name, value in (moved | tensors).items() if name != lost}
    safetensors.torch.save_file(kept, shard)
    where[lost] = shard.name
    index.write_text(json.dumps({"weight_map": where | {lost: shard.name}}))
    (folder / "model.safetensors").unlink()
    index.write_text(json.dumps({"weight_map": dict.fromkeys(where, shard.name)}))
    refused(kernel, folder, f"index.json: {lost} is not in {shard.name}")

    for text in (
        "{",
        "[]",
        "{}",
        json.dumps({"weight_map": {lost: "../model.safetensors"}}),
        '{"weight_map": {"a": 1}}',
    ):
        index.write_text(text)
        refused(kernel, folder, "model.safetensors.index.json: ")


# --- settings ---


def group(**changes) -> dict:
    """compressed-tensors' settings; changes of group_0's weights and input_activations, and of the rest."""
    fp8 = dict(num_bits=8, type="float", symmetric=True)
    parts = dict(weights=fp8 | {"strategy": "channel"}, input_activations=fp8 | {"strategy": "token", "dynamic": True})
    for name in ("weights", "input_activations"):
        if name in changes:
            given = changes.pop(name)
            parts[name] = given and parts[name] | given
    parts |= changes.pop("group", {})
    settings = dict(quant_method="compressed-tensors", format="float-quantized", quantization_status="compressed")
    return settings | dict(config_groups={"group_0": dict(targets=["Linear"]) | parts}, ignore=["lm_head"]) | changes


def quark(**changes) -> dict:
    return checkpoints.quark([]) | changes


def quark_weight(**changes) -> dict:
    settings = checkpoints.quark([])
    general = settings["global_quant_config"]
    return quark(global_quant_config=general | dict(weight=general["weight"] | changes))


def fp8(**changes) -> dict:
    return checkpoints.autofp8("static")([]) | changes


SETTINGS = {
    "no method": ({"bits": 4}, "quant_method None; known: compressed-tensors, fp8, quark, fbgemm_fp8"),
    "gptq": ({"quant_method": "gptq"}, "quant_method 'gptq'; known: compressed-tensors"),
    "other blocks": (fp8(weight_block_size=[64, 128]), "weight_block_size [64, 128]; known: [128, 128]"),
    "static blocks": (
        fp8(weight_block_size=[128, 128]),
        "activation_scheme 'static' with weight_block_size; known: dynamic",
    ),
    "an unknown format of scales": (
        checkpoints.deepseek(scale_fmt="ue5m3")([]),
        "scale_fmt 'ue5m3'; known: float, ue8m0",
    ),
    "activation_scheme": (fp8(activation_scheme="row"), "activation_scheme 'row'; known: static, dynamic"),
    "e5m2": (fp8(fmt="e5m2"), "fmt 'e5m2'; known: e4m3"),
    "int8 weights": (
        group(weights=dict(type="int")),
        "config_groups.group_0.weights: 8-bit symmetric int; known: 8-bit symmetric float",
    ),
    "4 bits": (group(weights=dict(num_bits=4)), "config_groups.group_0.weights: 4-bit symmetric float"),
    "asymmetric": (
        group(input_activations=dict(symmetric=False)),
        "config_groups.group_0.input_activations: 8-bit asymmetric float",
    ),
    "groups": (
        group(weights=dict(strategy="group", group_size=32)),
        "config_groups.group_0.weights.strategy: 'group'; known: tensor, channel, block",
    ),
    "CT blocks": (
        group(weights=dict(strategy="block", block_structure=[64, 128])),
        "config_groups.group_0.weights.block_structure: [64, 128]; known: [128, 128]",
    ),
    "CT blocks with tokens": (
        group(weights=dict(strategy="block", block_structure=[128, 128])),
        "config_groups.group_0.weights.strategy: 'block' with inputs by 'token'; known: block with group",
    ),
    "CT groups of 64": (
        group(input_activations=dict(strategy="group", group_size=64)),
        "config_groups.group_0.input_activations.strategy: 'group' of 64, dynamic; known: static tensor",
    ),
    "weights alone": (group(input_activations=None), "config_groups.group_0.input_activations: not quantised"),
    "one dynamic scale": (
        group(input_activations=dict(strategy="tensor")),
        "config_groups.group_0.input_activations.strategy: 'tensor', dynamic",
    ),
    "outputs": (
        group(group=dict(output_activations=dict(num_bits=8, type="float"))),
        "config_groups.group_0.output_activations: quantised outputs",
    ),
    "a packed format": (group(format="pack-quantized"), "format 'pack-quantized'; known: float-quantized"),
    "a group's format": (group(group=dict(format="pack-quantized")), "config_groups.group_0.format: "),
    "no groups": ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "config_groups: Field required"),
    "an unknown strategy": (group(weights=dict(strategy="diagonal")), "config_groups.group_0"),
    "no target": (group(group=dict(targets=["Conv2d"])), "no linear of the model is quantised"),
    "embeddings": (
        group(group=dict(targets=["Linear", "Embedding"])),
        "model.embed_tokens is quantised, an Embedding; known: linears",
    ),
    "transforms": (group(transform_config={"config_groups": {"R1": {}}}), "transform_config: "),
    "sparse": (group(sparsity_config={"format": "sparse-bitmask"}), "sparsity_config: "),
    "quark int8": (quark_weight(dtype="int8"), "global_quant_config.weight.dtype 'int8'; known: fp8_e4m3"),
    "quark groups": (quark_weight(qscheme="per_group"), "global_quant_config.weight.qscheme 'per_group'"),
    "quark channels of inputs": (
        quark_weight(qscheme="per_channel", ch_axis=1),
        "global_quant_config.weight.ch_axis 1; known of per_channel: 0",
    ),
    "quark weights alone": (
        quark(global_quant_config=dict(weight=dict(dtype="fp8_e4m3", qscheme="per_tensor"), input_tensors=None)),
        "global_quant_config.input_tensors: None",
    ),
    "quark types": (quark(layer_type_quant_config={"Linear": {}}), "layer_type_quant_config; known: "),
    "quark rotation": (quark(algo_config=[{"name": "awq"}, {"name": "quarot"}]), "algo_config: 'quarot'"),
    "quark fake": (quark(export=dict(weight_format="fake_quantized")), "export.weight_format 'fake_quantized'"),
    "an unknown setting": (
        fp8(rotation="hadamard"),
        "rotation: nothing here knows what it asks for; known: quant_method",
    ),
    "a setting that is off": (fp8(symmetric=False), "symmetric: nothing here knows what it asks for"),
    "an unknown setting of CT": (group(rotation="hadamard"), "rotation: nothing here knows what it asks for"),
    "fp8 modules": (
        fp8(modules_to_convert=["mlp"]),
        "modules_to_convert: nothing here knows what it asks for; known: ",
    ),
    "an unknown setting of a tensor": (quark_weight(rotate="R1"), "global_quant_config.weight.rotate: nothing here"),
    "an unknown setting of an export": (quark(export=dict(rotate="R1")), "export.rotate: nothing here knows"),
    "quark softmax": (quark(softmax_quant_spec={"dtype": "fp8_e4m3"}), "softmax_quant_spec: nothing here knows"),
    "a bound below zero": (
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": -1},
        "activation_scale_ub -1; needs a positive number",
    ),
    "a bound in words": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": "1"}, "activation_scale_ub '1'"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_unknown_schemes_are_named(kernel, copied, case):
    settings, message = SETTINGS[case]
    folder = copied(STATIC)
    checkpoints.configure(folder, settings)
    refused(kernel, folder, f"config.json: quantization_config: {message}")


def test_unknown_settings_that_say_nothing_are_none(kernel, copied):
    folder = copied(STATIC)
    checkpoints.configure(folder, fp8(rotation=None, modules_to_convert=[], others={}))
    kernel.quantization.load_quantized(folder)


CONFIGS = {
    "no language model": (
        dict(model_type="vit"),
        "config.json: model_type 'vit'; known: transformers' causal language models",
    ),
    "an unknown model": (dict(model_type="llamas"), "config.json: model_type 'llamas'; known: "),
    "not quantised": (dict(quantization_config=None), "config.json: no quantization_config"),
    "float32": (dict(dtype="float32"), "dtype torch.float32; needs float16 or bfloat16"),
    "another width": (dict(intermediate_size=128), "mlp.gate_proj.weight: shape [96, 64]; needs [128, 64]"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_what_the_configuration_must_say(kernel, copied, case):
    changes, message = CONFIGS[case]
    folder = copied(STATIC)
    checkpoints.configure(folder, None, **changes)
    refused(kernel, folder, message)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_configuration(kernel, copied, text):
    folder = copied(STATIC)
    (folder / "config.json").write_text(text)
    refused(kernel, folder, "copy/config.json: ")


@pytest.mark.parametrize("missing", ["compressed_tensors", "psutil"])
def test_without_the_library(kernel, copied, monkeypatch, tmp_path, missing):
    """psutil: compressed-tensors 0.17 imports it without requiring it. The message names what is missing."""
    folder = copied(STATIC)
    model = llama(torch.Generator().manual_seed(1))
    kernel.quantization.quantize(model, activations="dynamic")
    for name in [name for name in sys.modules if name.split(".")[0] == "compressed_tensors"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    message = "FP8 checkpoints need the Python package compressed-tensors: "
    refused(kernel, folder, message, ImportError)
    with pytest.raises(ImportError, match=f"{message}.*{missing}"):
        kernel.quantization.save_quantized(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
