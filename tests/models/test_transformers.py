"""transformers' own ways: from_pretrained of an FP8 checkpoint, use_kernels, generate with a static cache."""

import shutil

import kernels
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, KernelConfig
from transformers.utils.import_utils import is_kernels_available

from problems import checkpoints, mx_checkpoints
from problems.buffers import same_bytes
from problems.inputs import FP8
from problems.tiny_llama import (
    ACTIVATIONS,
    NEAR,
    VARIANTS,
    assert_likeliest,
    distance,
    drawn,
    fp8_linears,
    llama,
    logits,
    near,
    pair,
    quantize,
    reference_logits,
    tokens,
)
from problems.tiny_models import FUSED, WINDOW, config
from tests.settings import ROOT

pytestmark = pytest.mark.usefixtures("without_gradients")

every_activation = pytest.mark.parametrize("activations", ACTIVATIONS)
# from_pretrained rounds scales to bfloat16, by up to 2^-9 of their size. An input scale then moves all of its row's
# quotients so far that 2^-5 of the FP8 codes are their neighbours, as in float32: see test_checkpoints.py.
ROUNDED_SCALES = 4 * NEAR


@pytest.fixture
def saved(kernel, device, generator, tmp_path):
    """saved(name, activations): (the quantised model, its folder, token ids)."""

    def save(name: str, activations: str, **keywords):
        model, ids = drawn(config(name), generator, device=device), tokens(generator, 2, 3 * WINDOW, device)
        quantize(kernel, model, [ids], activations, fp8_dtype=FP8[0], **keywords)
        kernel.quantization.save_quantized(model, tmp_path / "fp8")
        return model, tmp_path / "fp8", ids

    return save


# --- from_pretrained ---


@pytest.mark.parametrize("name", [*FUSED, "phi3"])
@every_activation
@pytest.mark.filterwarnings("ignore:Phi3ForCausalLM has no decoder layer")
def test_three_lines(kernel, device, saved, name, activations):
    quantised, folder, ids = saved(name, activations)
    wanted = logits(quantised, ids)

    model = AutoModelForCausalLM.from_pretrained(folder).to(device)
    assert kernel.quantization.convert(model) is model

    shutil.rmtree(folder)
    ours, theirs = (fp8_linears(kernel, each) for each in (quantised, model))
    assert [type(module).__name__ for module in ours] == [type(module).__name__ for module in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert same_bytes(other.weight, one.weight) and other.weight_scale.dtype == torch.float32
        assert torch.equal(other.weight_scale, one.weight_scale.bfloat16().float())
        assert (other.input_scale is None) == (activations == "dynamic") and (other.bias is None) == (one.bias is None)
    assert distance(logits(model, ids), wanted) <= ROUNDED_SCALES
    assert distance(logits(model, ids), reference_logits(kernel, model, ids)) <= near(device)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == model.config.tie_word_embeddings


@pytest.mark.parametrize("name", FUSED)
@every_activation
def test_transformers_reads_what_is_saved(saved, name, activations):
    quantised, folder, ids = saved(name, activations)
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert distance(logits(read, ids.cpu()), logits(quantised, ids).cpu()) <= ROUNDED_SCALES


def test_a_converted_model_is_saved_and_loaded_as_any(kernel, device, saved):
    _, folder, ids = saved("qwen2", "static", granularity="tensor")
    model = kernel.quantization.convert(AutoModelForCausalLM.from_pretrained(folder).to(device))
    assert not hasattr(model.config, "quantization_config") and not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    kernel.quantization.save_quantized(model, folder.parent / "again")
    loaded = kernel.quantization.load_quantized(folder.parent / "again", device)
    assert same_bytes(logits(loaded, ids), logits(model, ids))


def test_what_rules_leave_out_stays(kernel, device, generator, tmp_path):
    original, ids = llama(generator, **VARIANTS["grouped"]), tokens(generator, 2, 24)
    ignored = ("lm_head", "model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj")
    checkpoints.write("compressed-tensors, channel, dynamic", original, ids, tmp_path / "made", ignored)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "made").to(device)
    kernel.quantization.convert(model)
    modules = dict(model.named_modules())
    assert all(type(modules[name]) is torch.nn.Linear for name in ignored)
    loaded = kernel.quantization.load_quantized(tmp_path / "made", device)
    assert [type(m) for m in model.modules()] == [type(m) for m in loaded.modules()]
    assert distance(logits(model, ids.to(device)), logits(loaded, ids.to(device))) <= ROUNDED_SCALES


def decompressed(model):
    logits(model, torch.tensor([[1, 2, 3]], device=model.device))
    return model


def without_scale(model):
    del model.model.layers[1].mlp.up_proj.weight_scale
    return model


def nan_scale(model):
    model.model.layers[1].mlp.up_proj.weight_scale[3] = float("nan")
    return model


def of_method(method: str):
    def change(model):
        model.config.quantization_config = {"quant_method": method}
        return model

    return change


def quantised_cache(model):
    model.config.quantization_config = model.config.quantization_config.to_dict() | {"kv_cache_scheme": {"a": 1}}
    return model


LINEAR = "model.layers.1.mlp.up_proj"
REFUSED = {
    "decompressed": (decompressed, r"q_proj\.weight is torch.bfloat16, decompressed; needs torch.float8_e4m3fn"),
    "no scale": (without_scale, rf"{LINEAR}\.weight_scale is not there"),
    "no number": (nan_scale, rf"{LINEAR}\.weight_scale: scales are positive numbers"),
    "another method": (of_method("fbgemm_fp8"), "quant_method 'fbgemm_fp8'; known: compressed-tensors"),
    "a quantised cache": (quantised_cache, "kv_cache_scheme: a quantised KV cache"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted(kernel, saved, case):
    change, message = REFUSED[case]
    _, folder, _ = saved("llama", "static")
    model = change(AutoModelForCausalLM.from_pretrained(folder))
    with pytest.raises(ValueError, match=message):
        kernel.quantization.convert(model)
    assert not fp8_linears(kernel, model)


@pytest.mark.parametrize("form", ["MXFP4A16", "MXFP8"])
def test_mx_weights_are_not_converted(kernel, generator, tmp_path, form):
    """Nor quantised again: their packed codes are no weight."""
    mx_checkpoints.write(kernel, f"compressed-tensors, {form}", llama(generator), tmp_path / "made")
    loaded = kernel.quantization.load_quantized(tmp_path / "made")
    kernel.quantization.save_quantized(loaded, tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match=f"q_proj has {form[:5].lower()} weights; known: FP8. load_quantized reads"):
        kernel.quantization.convert(model)
    with pytest.raises(ValueError, match=r"q_proj has no weight: it is quantised already|float8_e4m3fn; needs"):
        kernel.quantization.quantize(model, activations="dynamic")


def test_models_that_are_not_quantised_are_refused(kernel, generator):
    with pytest.raises(ValueError, match="the model's config has no quantization_config"):
        kernel.quantization.convert(llama(generator))


# --- use_kernels ---

with_kernels = pytest.mark.skipif(
    not is_kernels_available(), reason="this transformers does not take this version of kernels"
)


# transformers -> whether it takes the release of kernels that is pinned beside it. Where it does not, its own
# integration (use_kernels, KernelConfig) is off, and only kernels.kernelize was tried: docs/models.md says so.
TAKES_KERNELS = {"5.16": True, "5.19": True, "5.24": False}


def test_which_transformers_take_this_version_of_kernels():
    installed = ".".join(transformers.__version__.split(".")[:2])
    assert is_kernels_available() == TAKES_KERNELS[installed]
    said = (ROOT / "docs" / "models.md").read_text()
    off = [version for version, takes in TAKES_KERNELS.items() if not takes]
    assert all(f"transformers {version} takes no release of `kernels` below" in said for version in off)


@with_kernels
def test_use_kernels(kernel, device, generator, calls, tmp_path):
    """Within the mapping transformers' own switch takes our layers: when a model is loaded, and later."""
    original, ids = llama(generator, device=device), tokens(generator, 1, 5, device)
    original.save_pretrained(tmp_path)
    with kernels.use_kernel_mapping(kernel.layers.mapping()):
        model = AutoModelForCausalLM.from_pretrained(tmp_path, use_kernels=True).to(device)
    calls.clear()
    logits(model, ids)
    assert calls == ["rms_norm"] * 5

    kernel.quantization.quantize(original, activations="dynamic")
    with kernels.use_kernel_mapping(kernel.layers.mapping()):
        original.set_use_kernels(True)
    calls.clear()
    logits(original, ids)
    assert original.use_kernels and calls.count("skinny_gemm") == 8 and calls.count("swiglu_dynamic_fp8") == 2


@with_kernels
def test_kernel_config_is_for_gpus(kernel, device, generator, variant):
    """What transformers' KernelConfig takes: a local variant's folder, on a GPU alone."""
    model = llama(generator, device=device)
    local = KernelConfig({"RMSNorm": f"{variant}:RMSNorm"}, use_local_kernel=True)
    if device.type == "cpu":
        with pytest.raises(ValueError, match="Only cuda, rocm, .* devices supported, got: cpu"):
            model.set_use_kernels(True, local)
        assert kernels.LocalLayerRepository(variant, layer_name="RMSNorm").load().__name__ == "RMSNorm"
    else:
        model.set_use_kernels(True, local)
        assert model.model.norm.forward.__func__.__module__.endswith(".layers")


# --- generate ---


def written(model, ids: torch.Tensor, **keywords) -> torch.Tensor:
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, **keywords)


@pytest.mark.parametrize("name", FUSED)
@every_activation
def test_generate_with_either_cache(kernel, device, generator, calls, name, activations):
    _, model = pair(kernel, drawn(config(name), generator, device=device), generator, activations)
    ids = tokens(generator, 2, 10, device)
    for keywords in ({}, {"cache_implementation": "static"}):
        calls.clear()
        result = written(model, ids, disable_compile=True, **keywords)
        assert calls.count("skinny_gemm") == 8 * 12
        assert_likeliest(model, result, 10, 16 * NEAR)
