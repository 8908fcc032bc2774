"""Checkpoints that the package writes: they come back, whole or not at all, and transformers reads them, too."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from examples.llama_fp8 import decoding, text
from problems import checkpoints
from problems.buffers import same_bytes
from problems.checkpoints import assert_same_state, saved_and_loaded
from problems.inputs import FP8, HALF, short
from problems.tiny_llama import (
    ANOTHER_DTYPE,
    LLAMA3_ROPE,
    SCHEMES,
    VARIANTS,
    distance,
    kernelized,
    llama,
    logits,
    quantize,
    reference_logits,
    tokens,
)

pytestmark = pytest.mark.usefixtures("without_gradients")

# The model's fused linears, by module -> the linears of transformers that they join.
JOINED = {
    "self_attn": {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "o_proj": ("o_proj",)},
    "mlp": {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)},
}


def of_each(scale: torch.Tensor, linear: torch.nn.Module) -> torch.Tensor:
    """The scales of blocks, one for each number of the weight; joined weights may have them by rows."""
    rows = scale if scale.shape[0] == linear.out_features else scale.repeat_interleave(128, 0)
    return rows.repeat_interleave(128, 1)[: linear.out_features, : linear.in_features]


@pytest.fixture
def quantized(kernel, device, generator):
    """A model with a checkpoint's every part, and token ids."""
    model = llama(generator, device=device, **VARIANTS["biases"])
    ids = tokens(generator, 2, 16, device)
    return kernel.quantization.quantize(model, [ids], fp8_dtype=FP8[0]), ids


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("activations, granularity", SCHEMES)
def test_a_checkpoint_brings_the_model_back(kernel, device, generator, tmp_path, tied, dtype, granularity, activations):
    model = llama(generator, dtype, device, tie_word_embeddings=tied, rope_parameters=LLAMA3_ROPE, **VARIANTS["biases"])
    model.generation_config.eos_token_id, model.generation_config.max_new_tokens = [2, 3], 77
    ids = tokens(generator, 2, 32, device)
    quantize(kernel, model, [ids], activations, granularity=granularity, fp8_dtype=FP8[0])
    wanted = logits(model, ids)
    kernel.quantization.save_quantized(model, tmp_path / "deep" / "fp8")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["fp8"]
    assert same_bytes(logits(model, ids), wanted)

    loaded = kernel.quantization.load_quantized(str(tmp_path / "deep" / "fp8"), device)
    shutil.rmtree(tmp_path / "deep")  # it holds its numbers itself
    assert not loaded.training and loaded.dtype == dtype
    assert (loaded.generation_config.eos_token_id, loaded.generation_config.max_new_tokens) == ([2, 3], 77)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert_same_state(loaded, model)
    assert same_bytes(logits(loaded, ids), wanted)


def test_a_model_without_generation_settings(kernel, device, quantized, tmp_path):
    model, ids = quantized
    model.generation_config = None
    kernel.quantization.save_quantized(model, tmp_path / "fp8")
    assert sorted(path.name for path in (tmp_path / "fp8").iterdir()) == ["config.json", "model.safetensors"]
    assert same_bytes(logits(kernel.quantization.load_quantized(tmp_path / "fp8", device), ids), logits(model, ids))


def on_fnuz(kernel, monkeypatch) -> None:
    """Checkpoints are loaded as for a device of float8_e4m3fnuz."""
    module = sys.modules[f"{kernel.__name__}.models.checkpoints.joined"]
    monkeypatch.setattr(module, "_device_fp8_dtype", lambda device: torch.float8_e4m3fnuz)


def test_on_a_device_of_the_other_format(kernel, device, formats, quantized, tmp_path, monkeypatch):
    model, ids = quantized
    for module in model.modules():
        if isinstance(module, kernel.quantization.Fp8Linear):
            module.input_scale *= 2  # room: calibration saw the model before its linears were rounded
    kernel.quantization.save_quantized(model, tmp_path / "fp8")
    on_fnuz(kernel, monkeypatch)
    loaded = kernel.quantization.load_quantized(tmp_path / "fp8", device)
    pairs = [
        (one, other)
        for one, other in zip(model.modules(), loaded.modules())
        if isinstance(one, kernel.quantization.Fp8Linear)
    ]
    assert len(pairs) == 8
    for one, other in pairs:
        assert other.weight.dtype == torch.float8_e4m3fnuz
        assert torch.equal(other.input_scale, 2 * one.input_scale)
        dequantized = [m.weight.double() * m.weight_scale.double().reshape(-1, 1) for m in (one, other)]
        assert torch.equal(*dequantized)
    # Nothing exceeds the largest number, where the formats differ: all else is a factor of 2.
    assert same_bytes(reference_logits(kernel, loaded, ids), reference_logits(kernel, model, ids))
    if torch.float8_e4m3fnuz in formats:
        assert same_bytes(logits(loaded, ids), logits(model, ids))
    with pytest.raises(ValueError, match="format is torch.float8_e4m3fnuz; checkpoints hold float8_e4m3fn"):
        kernel.quantization.save_quantized(loaded, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["fp8"]


def test_dynamic_scales_on_a_device_of_the_other_format(kernel, device, formats, generator, tmp_path, monkeypatch):
    """What the conversion of the loaded model gives, as that of the model in memory."""
    model, ids = llama(generator, device=device, **VARIANTS["biases"]), tokens(generator, 2, 16, device)
    kernel.quantization.quantize(model, activations="dynamic", fp8_dtype=FP8[0])
    kernel.quantization.save_quantized(model, tmp_path / "fp8")
    on_fnuz(kernel, monkeypatch)
    loaded = kernel.quantization.load_quantized(tmp_path / "fp8", device)
    original = reference_logits(kernel, model, ids)
    for module in model.modules():
        if isinstance(module, kernel.quantization.Fp8Linear):
            module.to_fnuz_()
            assert module.input_scale is None
    wanted = reference_logits(kernel, model, ids)
    assert same_bytes(reference_logits(kernel, loaded, ids), wanted)
    # Rows are scaled to 240 instead of 448: other roundings of the same numbers.
    assert 0 < distance(wanted, original) < 0.2
    if torch.float8_e4m3fnuz in formats:
        assert same_bytes(logits(loaded, ids), logits(model, ids))


def test_a_cast_model_comes_back_in_its_dtype(kernel, device, quantized, tmp_path):
    """Its configuration still has the dtype of before."""
    model = quantized[0].half()
    assert model.config.dtype != torch.float16
    kernel.quantization.save_quantized(model, tmp_path / "fp8")
    loaded = kernel.quantization.load_quantized(tmp_path / "fp8", device)
    assert {value.dtype for name, value in loaded.state_dict().items() if "norm" in name} == {torch.float16}
    if FP8[0] == kernel.fp8_dtype(device):
        assert_same_state(loaded, model)


def test_what_cannot_be_saved(kernel, generator, quantized, tmp_path):
    with pytest.raises(ValueError, match="the model is not quantised"):
        kernel.quantization.save_quantized(llama(generator), tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "note").write_text("mine")
    with pytest.raises(FileExistsError, match="old exists"):
        kernel.quantization.save_quantized(quantized[0], tmp_path / "old")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["old", "old/note"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("No space left on device")], ids=["Ctrl-C", "full disk"])
def test_an_interrupted_save_leaves_nothing(kernel, quantized, tmp_path, monkeypatch, error):
    def half(state, path, metadata):
        Path(path).write_bytes(b"half of it")
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["safetensors.torch"], "save_file", half)
        with pytest.raises(error if isinstance(error, type) else type(error)):
            kernel.quantization.save_quantized(quantized[0], tmp_path / "fp8")
    assert list(tmp_path.iterdir()) == []
    # Of a process that was killed, what lies about is no part of the next checkpoint.
    (tmp_path / ".fp8.partial").mkdir()
    (tmp_path / ".fp8.partial" / "left").write_text("over")
    kernel.quantization.save_quantized(quantized[0], tmp_path / "fp8")
    assert [path.name for path in tmp_path.iterdir()] == ["fp8"] and not (tmp_path / "fp8" / "left").exists()


# --- what transformers makes of it ---


def test_the_configuration_is_compressed_tensors(kernel, quantized, tmp_path):
    kernel.quantization.save_quantized(quantized[0], tmp_path / "fp8")
    config = json.loads((tmp_path / "fp8" / "config.json").read_text())["quantization_config"]
    known = ("quant_method", "format", "quantization_status", "ignore")
    assert [config[name] for name in known] == ["compressed-tensors", "float-quantized", "compressed", ["lm_head"]]
    (group,) = config["config_groups"].values()
    fp8 = dict(num_bits=8, type="float", symmetric=True)
    assert group["targets"] == ["Linear"] and group["weights"].items() >= (fp8 | {"strategy": "channel"}).items()
    assert group["input_activations"].items() >= (fp8 | {"strategy": "tensor", "dynamic": False}).items()


@pytest.mark.parametrize("activations, granularity", SCHEMES)
def test_transformers_reads_it(kernel, device, generator, tmp_path, granularity, activations):
    sizes = dict(VARIANTS["biases"])
    if granularity == "block":
        # compressed-tensors 0.17 tells blocks from channels by the scales' shape: two blocks either way at least.
        sizes |= dict(hidden_size=256, intermediate_size=512, num_attention_heads=2, num_key_value_heads=2)
    model, ids = llama(generator, device=device, **sizes), tokens(generator, 2, 24, device)
    quantize(kernel, model, [ids], activations, granularity=granularity, fp8_dtype=FP8[0])
    kernel.quantization.save_quantized(model, tmp_path / "fp8")
    # In float32, since in bfloat16 transformers rounds the scales to it.
    options = checkpoints.in_16_bits(tmp_path / "fp8")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "fp8", dtype=torch.float32, **options).to(device).eval()
    assert distance(logits(read, ids), logits(model, ids)) <= ANOTHER_DTYPE
    for ours, theirs in zip(model.model.layers, read.model.layers):  # decompressed by the call above
        for parent, names in JOINED.items():
            for name, parts in names.items():
                linear = getattr(getattr(ours, parent), name)
                scale = linear.weight_scale
                weight = linear.weight.float() * (
                    of_each(scale, linear) if granularity == "block" else scale.view(-1, 1)
                )
                modules = [getattr(getattr(theirs, parent), part) for part in parts]
                assert torch.equal(torch.cat([module.weight for module in modules]), weight)
                if activations == "static":
                    assert all(torch.equal(module.input_scale, linear.input_scale) for module in modules)


@pytest.mark.filterwarnings("ignore:.*the KV cache keeps the model's dtype")
@pytest.mark.parametrize("case", ["one half", "two kinds of scales", "the head"])
def test_models_quantised_in_part_come_back(kernel, device, generator, tmp_path, case):
    model, ids = llama(generator, **VARIANTS["grouped"]), tokens(generator, 2, 24)
    name, ignored = "compressed-tensors, channel, dynamic", ["lm_head"]
    if case == "one half":
        ignored.append("model.layers.1.mlp.up_proj")
    elif case == "two kinds of scales":
        name = "quark"  # joined linears get scales of channels, the others keep one
    else:
        ignored = []
    checkpoints.write(name, model, ids, tmp_path / "made", ignored)
    loaded = kernel.quantization.load_quantized(tmp_path / "made", device)
    saved_and_loaded(kernel.quantization, loaded, tmp_path / "saved", device)
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
    assert distance(logits(read, ids), logits(loaded, ids.to(device)).cpu()) <= ANOTHER_DTYPE


def test_the_byte_level_llama_keeps_its_quality(kernel, device, tmp_path):
    loaded = text.load(None, device.type)
    model, windows = loaded.model, text.held_out_windows(loaded.tokenizer, 256, 2)
    before = decoding.measure(model, loaded.tokenizer, windows, lambda _: None)
    kernel.quantization.quantize(model, activations="dynamic", fp8_dtype=FP8[0])
    kernel.quantization.save_quantized(model, tmp_path / "fp8")
    fast = kernelized(kernel, kernel.quantization.load_quantized(tmp_path / "fp8", device))
    after = decoding.measure(fast, loaded.tokenizer, windows, lambda _: None)
    assert 0.5 < before.bits_per_byte < 3 and abs(after.bits_per_byte - before.bits_per_byte) < 0.02
    assert decoding.share_of_equal(before, after) > 0.95
