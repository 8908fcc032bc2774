"""Codes and scales keep their meaning: under casts, writes to weights, state dictionaries and save_pretrained."""

import copy

import pytest
import torch

from problems.buffers import same_bytes
from problems.tiny_llama import ANOTHER_DTYPE, distance, llama, logits, tokens

pytestmark = pytest.mark.usefixtures("without_gradients")

KINDS = ["fp8 static", "fp8 dynamic", "fp8 block", "mx", "int8", "int8 zeros", "opt"]
every_kind = pytest.mark.parametrize("kind", KINDS)
FP8_KINDS, INT8_KINDS = KINDS[:4], KINDS[4:]


def codes(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Whatever is no float of the model's own dtype."""
    return {name: value for name, value in model.state_dict().items() if value.dtype != torch.bfloat16}


# --- casts ---


@every_kind
@pytest.mark.parametrize("cast", ["half", "to"])
def test_a_cast_leaves_codes_and_scales(device, generator, of_kind, kind, cast):
    model, ids = of_kind(kind), tokens(generator, 2, 9, device)
    before, wanted = {name: value.clone() for name, value in codes(model).items()}, logits(model, ids)
    assert before
    model = model.half() if cast == "half" else model.to(torch.float16)
    for name, value in before.items():
        assert same_bytes(model.state_dict()[name], value), name
    got = logits(model, ids)
    assert got.dtype == torch.float16 and distance(got, wanted) <= ANOTHER_DTYPE
    assert logits(model.bfloat16(), ids).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", FP8_KINDS)
@pytest.mark.parametrize("cast", ["float", "double"])
def test_a_cast_that_fp8_cannot_follow_is_refused_at_once(of_kind, kind, cast):
    model = of_kind(kind)
    before = {name: value.clone() for name, value in codes(model).items()}
    with pytest.raises(TypeError, match="quantised linears take and give float16 or bfloat16"):
        getattr(model, cast)()
    assert all(same_bytes(model.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize("kind", INT8_KINDS)
def test_int8_models_become_float32(device, generator, of_kind, kind):
    model, ids = of_kind(kind), tokens(generator, 2, 9, device)
    wanted = logits(model, ids)
    got = logits(model.float(), ids)
    assert got.dtype == torch.float32 and distance(got, wanted) <= ANOTHER_DTYPE


@every_kind
def test_rows_may_lie_in_columns(device, generator, of_kind, kind):
    """As Jamba's and Zamba's layers hand them on."""
    linears = (
        each for each in of_kind(kind).modules() if hasattr(each, "weight_scale") and hasattr(each, "in_features")
    )
    for linear in list(linears)[:4]:
        x = torch.randn(1, linear.in_features, 5, generator=generator).to(device, torch.bfloat16).transpose(1, 2)
        assert same_bytes(linear(x), linear(x.contiguous()))


# --- what is derived from a weight ---


def assert_as(model: torch.nn.Module, other: torch.nn.Module, ids: torch.Tensor) -> None:
    assert same_bytes(logits(model, ids), logits(other, ids))


@every_kind
@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict(device, generator, of_kind, kind, assign):
    one, other, ids = of_kind(kind), of_kind(kind), tokens(generator, 2, 9, device)
    assert distance(logits(one, ids), logits(other, ids)) > 0.1
    one.load_state_dict(other.state_dict(), assign=assign)
    assert_as(one, other, ids)


def test_sums_of_tensors_without_versions(kernel, device, generator):
    with torch.inference_mode():
        original = torch.nn.Linear(64, 48).to(device, torch.bfloat16)
        made = kernel.smoothquant.Int8Linear.from_float(original, symmetric=False)
        made.weight_sum  # noqa: B018
        made.weight.copy_(torch.randint(-127, 128, (48, 64), generator=generator))
        assert torch.equal(made.weight_sum, made.weight.sum(-1, dtype=torch.int32)[None])


def test_sums_are_not_computed_again_without_need(kernel, device, of_kind):
    model = of_kind("int8 zeros")
    linear = next(m for m in model.modules() if isinstance(m, kernel.smoothquant.Int8Linear))
    assert linear.weight_sum is linear.weight_sum and of_kind("int8").model.layers[0].mlp.up_proj.weight_sum is None
    assert not any("weight_sum" in name for name, _ in model.named_buffers())


# --- state dictionaries ---


def test_a_float_state_is_no_quantised_one(generator, device, of_kind):
    float_state = llama(generator, device=device).state_dict()
    with pytest.raises(RuntimeError, match=r"q_proj\.weight: holds torch\.bfloat16; needs torch\.int8"):
        of_kind("int8").load_state_dict(float_state, strict=False)


@pytest.mark.parametrize(
    "kind, other",
    [("fp8 static", "fp8 dynamic"), ("fp8 dynamic", "fp8 block"), ("mx", "fp8 dynamic"), ("int8", "int8 zeros")],
)
def test_a_state_of_another_kind_is_refused(tmp_path, of_kind, kind, other):
    torch.save(of_kind(other).state_dict(), tmp_path / "state.pt")
    model, state = of_kind(kind), torch.load(tmp_path / "state.pt")
    before = {name: value.clone() for name, value in codes(model).items()}
    with pytest.raises(RuntimeError, match=r"_proj: holds .* needs "):
        model.load_state_dict(state, strict=False)
    assert all(same_bytes(model.state_dict()[name], value) for name, value in before.items())


def test_scales_are_not_rounded_to_exponents(of_kind):
    """Of a state without metadata, as safetensors makes it."""
    model, name = of_kind("mx"), "model.layers.1.mlp.down_proj.weight_scale"
    state = dict(model.state_dict())
    before = state[name].clone()
    state[name] = 1.3 * before.float()
    with pytest.raises(RuntimeError, match=rf"{name}: holds torch\.float32; needs torch\.float8_e8m0fnu"):
        model.load_state_dict(state)
    assert same_bytes(model.state_dict()[name], before)


# --- save_pretrained ---


@every_kind
def test_save_pretrained_is_refused(tmp_path, of_kind, kind):
    model = of_kind(kind)
    word = "quantization" if kind in FP8_KINDS else "smoothquant"
    for each in (model, model.base_model, copy.deepcopy(model)):
        with pytest.raises(ValueError, match=rf"{word}\.save_quantized writes the checkpoint"):
            each.save_pretrained(tmp_path / "there")
    assert not (tmp_path / "there").exists()


@every_kind
def test_a_loaded_model_refuses_save_pretrained_too(kernel, tmp_path, of_kind, kind):
    of = kernel.quantization if kind in FP8_KINDS else kernel.smoothquant
    of.save_quantized(of_kind(kind), tmp_path / "saved")
    with pytest.raises(ValueError, match=r"save_quantized writes the checkpoint"):
        of.load_quantized(tmp_path / "saved").save_pretrained(tmp_path / "there")
    assert not (tmp_path / "there").exists()
