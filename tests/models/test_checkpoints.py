"""Checkpoints of quantised models: what is written comes back, whole or not at all, in the device's FP8 format."""

import shutil

import pytest
import safetensors.torch
import torch

from tests.problems.buffers import same_bytes
from tests.problems.inputs import FP8, HALF, short
from tests.problems.tiny_llama import (
    ACTIVATIONS,
    LLAMA3_ROPE,
    VARIANTS,
    distance,
    kernelized,
    llama,
    logits,
    quantize,
    tokens,
)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def quantized(kernel, device, generator):
    """A model with a checkpoint's every part, and token ids."""
    model = llama(generator, device=device, **VARIANTS["biases"])
    ids = tokens(generator, 2, 16, device)
    return kernel.quantization.quantize_llama(model, [ids], fp8_dtype=FP8[0]), ids


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_a_checkpoint_brings_the_model_back(kernel, device, generator, tmp_path, tied, dtype, granularity, activations):
    model = llama(generator, dtype, device, tie_word_embeddings=tied, rope_parameters=LLAMA3_ROPE, **VARIANTS["biases"])
    model.generation_config.eos_token_id, model.generation_config.max_new_tokens = [2, 3], 77
    ids = tokens(generator, 2, 32, device)
    quantize(kernel, model, [ids], activations, granularity=granularity, fp8_dtype=FP8[0])
    wanted = logits(model, ids)
    kernel.quantization.save_quantized(model, tmp_path / "deep" / "fp8")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "config.json",
        "fp8.safetensors",
        "generation_config.json",
    ]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["fp8"]
    assert same_bytes(logits(model, ids), wanted)

    loaded = kernel.quantization.load_quantized(str(tmp_path / "deep" / "fp8"), device)
    shutil.rmtree(tmp_path / "deep")  # it holds its numbers itself
    assert not loaded.training and loaded.dtype == dtype
    assert (loaded.generation_config.eos_token_id, loaded.generation_config.max_new_tokens) == ([2, 3], 77)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    state = model.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    assert all(same_bytes(value, state[name]) for name, value in loaded.state_dict().items())
    assert same_bytes(logits(loaded, ids), wanted)
    assert same_bytes(logits(kernelized(kernel, loaded), ids), logits(kernelized(kernel, model), ids))


def test_a_model_without_generation_settings(kernel, device, quantized, tmp_path):
    model, ids = quantized
    model.generation_config = None
    kernel.quantization.save_quantized(model, tmp_path / "fp8")
    assert sorted(path.name for path in (tmp_path / "fp8").iterdir()) == ["config.json", "fp8.safetensors"]
    assert same_bytes(logits(kernel.quantization.load_quantized(tmp_path / "fp8", device), ids), logits(model, ids))


def test_on_a_device_of_the_other_format(kernel, device, formats, quantized, tmp_path, monkeypatch):
    model, ids = quantized
    for module in model.modules():
        if isinstance(module, kernel.quantization.Fp8Linear):
            module.input_scale *= 2  # room: calibration saw the model before its linears were rounded
    kernel.quantization.save_quantized(model, tmp_path / "fp8")
    monkeypatch.setattr(kernel.quantization, "_device_fp8_dtype", lambda device: torch.float8_e4m3fnuz)
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
    assert same_bytes(logits(loaded, ids), logits(model, ids))
    if torch.float8_e4m3fnuz in formats:
        assert same_bytes(logits(kernelized(kernel, loaded), ids), logits(kernelized(kernel, model), ids))
    with pytest.raises(ValueError, match="format is torch.float8_e4m3fnuz; checkpoints hold float8_e4m3fn"):
        kernel.quantization.save_quantized(loaded, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["fp8"]


def test_dynamic_scales_on_a_device_of_the_other_format(kernel, device, formats, generator, tmp_path, monkeypatch):
    """What the conversion of the loaded model gives, as that of the model in memory."""
    model, ids = llama(generator, device=device, **VARIANTS["biases"]), tokens(generator, 2, 16, device)
    kernel.quantization.quantize_llama(model, activations="dynamic", fp8_dtype=FP8[0])
    kernel.quantization.save_quantized(model, tmp_path / "fp8")
    monkeypatch.setattr(kernel.quantization, "_device_fp8_dtype", lambda device: torch.float8_e4m3fnuz)
    loaded = kernel.quantization.load_quantized(tmp_path / "fp8", device)
    original = logits(model, ids)
    for module in model.modules():
        if isinstance(module, kernel.quantization.Fp8Linear):
            module.to_fnuz_()
            assert module.input_scale is None
    assert same_bytes(logits(loaded, ids), logits(model, ids))
    # Rows are scaled to 240 instead of 448: other roundings of the same numbers.
    assert 0 < distance(logits(model, ids), original) < 0.2
    if torch.float8_e4m3fnuz in formats:
        assert same_bytes(logits(kernelized(kernel, loaded), ids), logits(kernelized(kernel, model), ids))


def rewritten(file, **changes: str | None) -> None:
    """With other entries in its metadata; None takes one away."""
    with safetensors.safe_open(file, framework="pt") as opened:
        metadata = {k: v for k, v in (opened.metadata() | changes).items() if v is not None}
    safetensors.torch.save_file(safetensors.torch.load_file(file), file, metadata=metadata)


def test_what_a_checkpoint_says_of_its_activations(kernel, device, quantized, checkpoint):
    """Nothing means static, as in those that were written before there were others."""
    file, (model, ids) = checkpoint / "fp8.safetensors", quantized
    rewritten(file, activations=None)
    assert same_bytes(logits(kernel.quantization.load_quantized(checkpoint, device), ids), logits(model, ids))
    rewritten(file, activations="dynamic")
    with pytest.raises(ValueError, match="input_scale"):
        kernel.quantization.load_quantized(checkpoint)
    rewritten(file, activations="mixed")
    with pytest.raises(ValueError, match="fp8.safetensors: activations 'mixed'; known: static, dynamic"):
        kernel.quantization.load_quantized(checkpoint)


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
        path.write_bytes(b"half of it")
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(safetensors.torch, "save_file", half)
        with pytest.raises(error if isinstance(error, type) else type(error)):
            kernel.quantization.save_quantized(quantized[0], tmp_path / "fp8")
    assert list(tmp_path.iterdir()) == []
    # Of a process that was killed, what lies about is no part of the next checkpoint.
    (tmp_path / ".fp8.partial").mkdir()
    (tmp_path / ".fp8.partial" / "left").write_text("over")
    kernel.quantization.save_quantized(quantized[0], tmp_path / "fp8")
    assert [path.name for path in tmp_path.iterdir()] == ["fp8"] and not (tmp_path / "fp8" / "left").exists()


@pytest.fixture
def checkpoint(kernel, quantized, tmp_path):
    kernel.quantization.save_quantized(quantized[0], tmp_path / "fp8")
    return tmp_path / "fp8"


def test_a_missing_checkpoint_is_named(kernel, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=f"{folder.name}/fp8.safetensors: no such file"):
            kernel.quantization.load_quantized(folder)


def test_a_foreign_file_is_refused(kernel, checkpoint):
    state = safetensors.torch.load_file(checkpoint / "fp8.safetensors")
    for metadata, shown in ((None, "None"), ({"format": "pt"}, "'pt'")):
        safetensors.torch.save_file(state, checkpoint / "fp8.safetensors", metadata=metadata)
        with pytest.raises(ValueError, match=f"fp8.safetensors: format {shown}; needs 'rocm-fp8-kernels.1'"):
            kernel.quantization.load_quantized(checkpoint)


def test_a_tensor_that_is_missing_or_too_many_is_named(kernel, checkpoint):
    file, name = checkpoint / "fp8.safetensors", "model.layers.1.mlp.down_proj.weight_scale"
    with safetensors.safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    state = safetensors.torch.load_file(file)
    for changed in ({k: v for k, v in state.items() if k != name}, state | {"unknown": torch.zeros(1)}):
        safetensors.torch.save_file(changed, file, metadata=metadata)
        with pytest.raises(ValueError, match=name if name not in changed else "unknown"):
            kernel.quantization.load_quantized(checkpoint)


def test_a_damaged_file_is_named(kernel, checkpoint):
    file = checkpoint / "fp8.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ValueError, match="fp8.safetensors"):
        kernel.quantization.load_quantized(checkpoint)


def test_a_checkpoint_without_its_configuration_is_named(kernel, checkpoint):
    (checkpoint / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="config.json"):
        kernel.quantization.load_quantized(checkpoint)
