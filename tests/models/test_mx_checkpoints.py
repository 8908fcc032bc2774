"""Checkpoints of MXFP4 and MXFP8 as others publish them: what they compute, and which are refused."""

import importlib

import pytest
import torch

from problems import checkpoints, mx_checkpoints
from problems.checkpoints import saved_and_loaded
from problems.inputs import FP8
from problems.mx_checkpoints import FORMS, computing, entering, write
from problems.tiny_llama import NEAR, VARIANTS, distance, llama, tokens
from problems.tiny_moe import expert_modules, logits_with_one_routing, routed
from tests.models.test_bad_checkpoints import refused
from tests.models.test_mx_models import MARKS, assert_as_reference, model_of, numbers, quantised

pytestmark = MARKS

EVERYWHERE = ("16bit", "mxfp4")  # inputs that are the same where FP8 is float8_e4m3fnuz


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("form", FORMS)
def test_a_published_format(kernel, device, formats, generator, tmp_path, form, name):
    """Dense linears and experts, whose inputs are rounded by definition. On a device of float8_e4m3fnuz MXFP8 is
    converted, and FP8 inputs are others."""
    model, ids = model_of(name, generator), tokens(generator, 2, 11, device)
    write(kernel, form, model, tmp_path / "made")
    loaded = kernel.quantization.load_quantized(tmp_path / "made", device)
    bits, inputs = FORMS[form].bits, FORMS[form].inputs
    assert {(each.format, each.inputs) for each in expert_modules(loaded).values()} == {(f"mxfp{bits}", inputs)}
    linears = [module for module in loaded.modules() if type(module).__name__ == "MxLinear"]
    assert len(linears) == (2 * 2 if name == "qwen3_moe" else 4 * 2 + 2 * 2)  # a dense layer, and shared experts
    assert {(each.format, each.inputs) for each in linears} == {(f"mxfp{bits}", inputs)}
    assert_as_reference(kernel, loaded, generator, device)
    defined = computing(kernel, form, model).to(device)
    theirs, got = logits_with_one_routing([defined, loaded], ids)
    near = {"16bit": NEAR, "mxfp8": 2 * NEAR, "fp8": 4 * NEAR, "mxfp4": 8 * NEAR}[inputs]
    near = near if FP8[0] in formats or inputs in EVERYWHERE else 0.25
    assert distance(got, theirs) <= near
    for each, module in expert_modules(loaded).items():
        given = routed(generator, device, module.num_experts)
        assert distance(module(*given), defined.get_submodule(each)(*given)) <= near
    again = saved_and_loaded(kernel.quantization, loaded, tmp_path / "again", device)
    assert [module.inputs for module in expert_modules(again).values()] == [
        module.inputs for module in expert_modules(loaded).values()
    ]


def assert_as_stored(kernel, device, generator, loaded: torch.nn.Module, tensors: dict, inputs_of) -> None:
    """Each linear is the definition, in float64, of the files' codes and of an input that is rounded."""
    parts_of = importlib.import_module(f"{kernel.__name__}.models.fp8.planning").parts_of
    for name, module in loaded.named_modules():
        if type(module).__name__ != "MxLinear":
            continue
        inputs, parts = inputs_of(name), parts_of(loaded, name)[0]
        codes = [tensors.get(f"{each}.weight_packed", tensors.get(f"{each}.weight")) for each in parts]
        weights = [numbers(each, tensors[f"{part}.weight_scale"]) for part, each in zip(parts, codes)]
        x = torch.randn(9, module.in_features, generator=generator).bfloat16()
        wanted = entering(kernel, inputs, x) @ torch.cat(weights).T
        if module.bias is not None:
            wanted += torch.cat([tensors[f"{each}.bias"] for each in parts]).double()
        assert module.inputs == inputs and distance(module(x.to(device)).cpu(), wanted) <= 2.0**-8  # one rounding


@pytest.mark.parametrize("form", FORMS)
def test_linears_are_what_the_files_say(kernel, device, formats, generator, tmp_path, form):
    if FP8[0] not in formats and FORMS[form].inputs not in EVERYWHERE:
        pytest.skip("not this device's FP8 format")
    write(kernel, form, llama(generator, **VARIANTS["biases"]), tmp_path)
    loaded = kernel.quantization.load_quantized(tmp_path, device)
    tensors = checkpoints.stored(tmp_path)
    assert_as_stored(kernel, device, generator, loaded, tensors, lambda name: FORMS[form].inputs)


def test_quarks_rules_for_layers(kernel, device, e4m3fn, generator, tmp_path):
    """MXFP8 for attention, MXFP4 for all others."""
    model = model_of("qwen3_moe", generator)
    write(kernel, "quark, MXFP4", model, tmp_path)
    _, others = mx_checkpoints.quantised(kernel, "quark, MXFP8", model)
    checkpoints.edit(tmp_path, lambda t: t.update({n: value for n, value in others.items() if "self_attn" in n}))
    rule = FORMS["quark, MXFP8"].settings(())["global_quant_config"]
    checkpoints.configure(tmp_path, FORMS["quark, MXFP4"].settings(()) | dict(layer_quant_config={"*self_attn*": rule}))
    loaded = kernel.quantization.load_quantized(tmp_path, device)
    assert_as_stored(kernel, device, generator, loaded, checkpoints.stored(tmp_path), lambda name: "mxfp8")
    assert {(each.format, each.inputs) for each in expert_modules(loaded).values()} == {("mxfp4", "mxfp4")}
    saved_and_loaded(kernel.quantization, loaded, tmp_path / "again", device)


@pytest.mark.parametrize("first, inputs", [("*_proj", "16bit"), ("*o_proj", "mxfp4")])
def test_of_quarks_rules_the_first_counts(kernel, device, generator, tmp_path, first, inputs):
    write(kernel, "quark, MXFP4", llama(generator), tmp_path)
    forms = {"*_proj": "quark, W4A16", "*o_proj": "quark, MXFP4"}
    rules = {pattern: FORMS[forms[pattern]].settings(())["global_quant_config"] for pattern in sorted(forms)}
    rules = {first: rules.pop(first)} | rules
    checkpoints.configure(tmp_path, FORMS["quark, MXFP4"].settings(()) | dict(layer_quant_config=rules))
    loaded = kernel.quantization.load_quantized(tmp_path, device)
    kinds = {name.rpartition(".")[2]: each.inputs for name, each in loaded.named_modules() if hasattr(each, "inputs")}
    assert kinds == dict(qkv_proj="16bit", o_proj=inputs, gate_up_proj="16bit", down_proj="16bit")


def test_compressed_tensors_own_codes(kernel, generator, tmp_path):
    """The library writes the files: what it calls these formats is what is read here."""
    compressors = pytest.importorskip("compressed_tensors.compressors")
    from compressed_tensors.quantization import preset_name_to_scheme

    for preset, codes_of in (("MXFP4A16", mx_checkpoints.mxfp4), ("MXFP8A16", mx_checkpoints.mxfp8)):
        form = FORMS[f"compressed-tensors, {preset}"]
        weight = torch.randn(64, 128, generator=generator).bfloat16()
        _, scale = codes_of(kernel, weight)
        scheme = preset_name_to_scheme(preset, ["Linear"])
        compressor = compressors.BaseCompressor.get_value_from_registry(form.settings(())["format"])
        made = compressor.compress(dict(weight=weight, weight_scale=scale.float().bfloat16()), scheme)
        name = form.name
        assert made["weight_scale"].dtype == torch.uint8 and torch.equal(made["weight_scale"], scale.view(torch.uint8))
        wide = compressor.decompress(dict(made), scheme)["weight"].double()
        assert torch.equal(numbers(made[name], made["weight_scale"]), wide)


# --- refused ---


LINEAR, EXPERT = "model.layers.1.self_attn.o_proj", "model.layers.1.mlp.experts.3.up_proj"
DAMAGES = {
    "NaN": (lambda t: t[f"{EXPERT}.weight_scale"].fill_(255), f"{EXPERT}.weight_scale: holds NaN"),
    "NaN of a linear": (lambda t: t[f"{LINEAR}.weight_scale"][3].fill_(255), f"{LINEAR}.weight_scale: holds NaN"),
    "missing": (lambda t: t.pop(f"{EXPERT}.weight_packed"), f"no tensor {EXPERT}.weight"),
    "short": (
        lambda t: t.update({f"{EXPERT}.weight_scale": t[f"{EXPERT}.weight_scale"][:, 1:].contiguous()}),
        "weight_scale: shape [128, 3]; needs [128, 4]",
    ),
    "type": (
        lambda t: t.update({f"{EXPERT}.weight_packed": t[f"{EXPERT}.weight_packed"].view(torch.float8_e4m3fn)}),
        "weight_packed: dtype F8_E4M3; needs U8",
    ),
    "unknown": (lambda t: t.update({f"{EXPERT}.weight_global_scale": torch.ones(1)}), "unknown tensor"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_files(kernel, generator, tmp_path, case):
    write(kernel, "compressed-tensors, MXFP4A16", model_of("qwen3_moe", generator), tmp_path / "made")
    change, why = DAMAGES[case]
    checkpoints.edit(tmp_path / "made", change)
    refused(kernel, tmp_path / "made", why)


def setting(path: str, value):
    def change(settings: dict) -> None:
        *inner, last = path.split(".")
        for each in inner:
            settings = settings[each]
        settings[last] = value

    return change


WEIGHTS = "config_groups.group_0.weights"
UNKNOWN = {
    "groups of 16": ("compressed-tensors, MXFP4A16", setting(f"{WEIGHTS}.group_size", 16), "4-bit symmetric float"),
    "MXFP8 beside MXFP4": (
        "compressed-tensors, MXFP8",
        setting("config_groups.group_0.input_activations.num_bits", 4),
        "4-bit 'group' beside mxfp8 weights",
    ),
    "scales of e4m3": ("quark, MXFP4", setting("global_quant_config.weight.scale_format", "e4m3"), "known of fp4"),
    "fp6": (
        "quark, MXFP4",
        setting("global_quant_config.weight.dtype", "fp6_e3m2"),
        "'fp6_e3m2'; known: fp8_e4m3, fp4",
    ),
    "outputs": (
        "quark, MXFP4",
        setting("global_quant_config.output_tensors", dict(dtype="fp8_e4m3", qscheme="per_tensor")),
        "global_quant_config.output_tensors: quantised; known: weight",
    ),
    "biases": (
        "quark, W4A16",
        setting("layer_quant_config", {"*k_proj": dict(bias=dict(dtype="fp8_e4m3", qscheme="per_tensor"))}),
        "layer_quant_config.*k_proj.bias: quantised; known: weight",
    ),
    "outputs of others than the cache": (
        "quark, W4A16",
        setting("layer_quant_config", {"*o_proj": dict(output_tensors=dict(dtype="fp8_e4m3", qscheme="per_tensor"))}),
        "layer_quant_config.*o_proj.output_tensors: quantised; known: weight",
    ),
    "zero points": (
        "quark, MXFP4",
        setting("global_quant_config.input_tensors.symmetric", False),
        "global_quant_config.input_tensors.symmetric False; known: True",
    ),
    "scales of inputs rounded down": (
        "quark, MXFP4",
        setting("global_quant_config.input_tensors.scale_calculation_mode", "floor"),
        "global_quant_config.input_tensors.scale_calculation_mode 'floor'; known: even",
    ),
    "groups of rows": (
        "quark, MXFP8",
        setting("global_quant_config.input_tensors.ch_axis", 0),
        "global_quant_config.input_tensors.ch_axis 0; known of per_group: -1, 1",
    ),
    "dynamic weights": (
        "quark, W4A16",
        setting("global_quant_config.weight.is_dynamic", True),
        "global_quant_config.weight.is_dynamic True; known: static",
    ),
    "static inputs": (
        "quark, MXFP4",
        setting("global_quant_config.input_tensors.is_dynamic", False),
        "global_quant_config.input_tensors.qscheme 'mxfp4', static, beside mxfp4 weights",
    ),
    "columns in an order of their own": (
        "compressed-tensors, MXFP4A16",
        setting(f"{WEIGHTS}.actorder", "group"),
        "weights.actorder: ",  # newer releases of the library refuse it themselves
    ),
    "scales of e4m3 for inputs": (
        "compressed-tensors, MXFP4",
        setting("config_groups.group_0.input_activations.scale_dtype", "torch.float8_e4m3fn"),
        "config_groups.group_0.input_activations: 4-bit 'group' beside mxfp4 weights",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_settings(kernel, generator, tmp_path, case):
    form, change, why = UNKNOWN[case]
    write(kernel, form, model_of("qwen3_moe", generator), tmp_path / "made")
    checkpoints.edit(tmp_path / "made", config=lambda config: change(config["quantization_config"]))
    refused(kernel, tmp_path / "made", why)


def test_blocks_that_the_settings_do_not_name(kernel, device, generator, tmp_path):
    """gpt-oss: and experts that are stored as transformers has them stay so."""
    model = model_of("gpt_oss", generator, device)
    kernel.quantization.save_quantized(quantised(kernel, model), tmp_path / "made")
    as_fp8 = dict(quant_method="fp8", activation_scheme="dynamic")
    checkpoints.edit(tmp_path / "made", config=lambda config: config["quantization_config"].update(as_fp8))
    refused(kernel, tmp_path / "made", "stacked experts with scales by tensor")
