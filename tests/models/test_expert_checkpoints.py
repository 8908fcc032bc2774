"""Checkpoints of mixtures of experts as others publish them: what they compute, and which are refused."""

import copy
import re
from pathlib import Path

import pytest
import torch

from problems import checkpoints
from problems.buffers import same_bytes
from problems.checkpoints import saved_and_loaded
from problems.tiny_llama import distance, logits, near, on_reference, tokens
from problems.tiny_moe import (
    BIAS,
    apart,
    by_definition,
    edit,
    expert_modules,
    furthest,
    logits_with_one_routing,
    moe,
    near_modules,
    with_names_of_today,
    with_older_names,
    with_stacks,
)
from tests.models.test_bad_checkpoints import changed, refused, without
from tests.models.test_checkpoints import on_fnuz

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.filterwarnings("ignore:.*has no decoder layer that can be fused"),
    pytest.mark.filterwarnings("ignore:.*the KV cache keeps the model's dtype"),
]
BLOCKS, STATIC, CHANNEL = "fp8, blocks", "fp8, static", "compressed-tensors, channel, dynamic"
# (model, format, what is done to the files)
LAYOUTS = {
    "DeepSeek-V3": ("deepseek_v3", BLOCKS, None),
    "DeepSeek-V3.1, scales of powers of two": ("deepseek_v3", "fp8, blocks, ue8m0", None),
    "Qwen3-MoE": ("qwen3_moe", BLOCKS, None),
    "llm-compressor, blocks": ("qwen3_moe", "compressed-tensors, blocks", None),
    "llm-compressor, channels": ("qwen3_moe", CHANNEL, None),
    "llm-compressor, tensors": ("deepseek_v3", "compressed-tensors, tensor, dynamic", None),
    "llm-compressor, static": ("qwen3_moe", "compressed-tensors, tensor, static", None),
    "quark": ("mixtral", "quark", with_older_names),
    "Mixtral, static": ("mixtral", STATIC, with_older_names),
    "Mixtral, dynamic": ("mixtral", "fp8, dynamic", with_older_names),
    "Mixtral, channels": ("mixtral", CHANNEL, with_older_names),
    "stacked": ("qwen3_moe", BLOCKS, with_stacks),
    "stacked, powers of two": ("deepseek_v3", "fp8, blocks, ue8m0", with_stacks),
}


def write(name: str, model: torch.nn.Module, directory: Path, ignored: tuple[str, ...] = ()) -> None:
    """ignored: patterns of linears' names, beside the head."""
    separate, generator = apart(model), torch.Generator().manual_seed(3)
    found = [each for each in checkpoints.linears(separate) if any(re.fullmatch(pattern, each) for pattern in ignored)]
    ids = tokens(generator, 4, 96)  # so many that every expert has some
    checkpoints.write(name, separate, ids, directory, ("lm_head", *found))
    with_names_of_today(directory)


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_published_layout(kernel, device, formats, generator, tmp_path, case):
    name, form, change = LAYOUTS[case]
    model, ids = moe(name, generator), tokens(generator, 2, 11, device)
    write(form, model, tmp_path)
    defined = by_definition(copy.deepcopy(model).to(device), tmp_path, checkpoints.FORMATS[form])
    if change is not None:
        change(tmp_path)
    loaded = kernel.quantization.load_quantized(tmp_path, device)
    with kernel.by_reference():
        wanted, got = logits_with_one_routing([defined, loaded], ids)
    assert distance(got, wanted) <= near(device) and furthest(loaded, defined, generator) <= near_modules(device)
    for key, value in model.state_dict().items():  # routers, and what corrects their scores
        if ".mlp.gate." in key:
            assert same_bytes(loaded.state_dict()[key].cpu(), value)
    for module in expert_modules(loaded).values():
        assert module.power_of_two == checkpoints.FORMATS[form].power_of_two
    if torch.float8_e4m3fn in formats:
        before, count = kernel.call_counts()["grouped_gemm"], len(expert_modules(loaded))
        wanted, got = logits_with_one_routing([on_reference(kernel, copy.deepcopy(loaded)), loaded], ids)
        assert kernel.call_counts()["grouped_gemm"] == before + count and distance(got, wanted) <= near(device)


@pytest.mark.parametrize("change", [None, with_older_names], ids=["names of today", "older names"])
@pytest.mark.parametrize("form", [BLOCKS, CHANNEL])
def test_experts_that_are_left_out(kernel, device, generator, tmp_path, form, change):
    """They stay transformers' own, in a checkpoint that is written anew, too."""
    model, ids = moe("mixtral", generator), tokens(generator, 2, 11, device)
    write(form, model, tmp_path / "made", (r".*\.experts\..*",))
    if change is not None:
        change(tmp_path / "made")
    loaded = kernel.quantization.load_quantized(tmp_path / "made", device)
    for name, module in expert_modules(loaded).items():
        own = model.get_submodule(name)
        assert type(module) is type(own) and not module.down_proj.requires_grad
        assert all(
            same_bytes(getattr(module, stack).cpu(), getattr(own, stack)) for stack in ("gate_up_proj", "down_proj")
        )
    again = saved_and_loaded(kernel.quantization, loaded, tmp_path / "saved", device)
    assert same_bytes(logits(again, ids), logits(loaded, ids))


PATTERNS = {
    "a name": ["model.layers.0.block_sparse_moe.experts.2.w1", *(f"re:.*experts.{e}.w[123]" for e in range(4))],
    "w1": [r"re:.*block_sparse_moe\.experts\.\d+\.w1$", r"re:.*w2", "re:.*\\.w3"],
    "w[123]": [r"re:.*block_sparse_moe\.experts\.\d+\.w[123]$"],
    "w[1-3]": [r"re:.*experts\..*\.w[1-3]"],
    "today's": [r"re:.*mlp\.experts.*"],
}


@pytest.mark.parametrize("case", PATTERNS)
def test_rules_by_older_names(kernel, generator, tmp_path, case):
    model = moe("mixtral", generator)
    write(CHANNEL, model, tmp_path, (r".*\.experts\..*",))
    with_older_names(tmp_path)
    ignored = dict(ignore=["lm_head", "re:.*block_sparse_moe.gate", *PATTERNS[case]])
    checkpoints.edit(tmp_path, config=lambda config: config["quantization_config"].update(ignored))
    loaded = kernel.quantization.load_quantized(tmp_path)
    for name, module in expert_modules(loaded).items():
        assert same_bytes(module.down_proj, model.get_submodule(name).down_proj)


def test_static_scales_come_back(kernel, device, generator, tmp_path):
    """Different scales of gate and up have become those of channels: a group of its own in what is written."""
    write(STATIC, moe("mixtral", generator), tmp_path / "made")
    loaded = kernel.quantization.load_quantized(tmp_path / "made", device)
    experts = next(iter(expert_modules(loaded).values()))
    assert experts.gate_up_scale.shape == (4, 2 * 256, 1) and experts.down_scale.shape == (4, 1, 1)
    stored = checkpoints.stored(tmp_path / "made")
    scales = [value for key, value in stored.items() if "layers.0" in key and key.endswith("up_proj.input_scale")]
    assert len(scales) == 4 and torch.equal(experts.input_scale.cpu(), torch.stack(scales).max().reshape(1))
    saved_and_loaded(kernel.quantization, loaded, tmp_path / "saved", device)


def test_equal_scales_of_an_expert_stay_one(kernel, generator, tmp_path):
    write(STATIC, moe("mixtral", generator), tmp_path)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if key.endswith("up_proj.weight_scale")]:
            tensors[key] = tensors[key.replace("up_proj", "gate_proj")].clone()

    edit(tmp_path, change)
    experts = next(iter(expert_modules(kernel.quantization.load_quantized(tmp_path)).values()))
    assert experts.gate_up_scale.shape == (4, 1, 1)


def test_layers_that_predict_more_are_left_out(kernel, generator, tmp_path):
    write(BLOCKS, moe("deepseek_v3", generator), tmp_path)
    more = {f"model.layers.2.mlp.experts.{e}.up_proj.weight": torch.zeros(1) for e in range(8)}
    edit(tmp_path, lambda tensors: tensors.update(more))
    with pytest.warns(UserWarning, match=r"nothing here uses: model\.layers\.\*\.mlp\.experts\.\*\.up_proj\.weight"):
        kernel.quantization.load_quantized(tmp_path)


def test_a_bias_of_scores_keeps_its_type(kernel, generator, tmp_path):
    model = moe("deepseek_v3", generator)
    write(BLOCKS, model, tmp_path)
    gate = kernel.quantization.load_quantized(tmp_path).model.layers[1].mlp.gate
    assert getattr(gate, BIAS).dtype == torch.float32
    assert gate.weight.dtype == model.model.layers[1].mlp.gate.weight.dtype  # float32 since transformers 5.24


def test_codes_of_the_other_format(kernel, device, generator, tmp_path, monkeypatch):
    """As on gfx942: half as much a code, twice the scale."""
    write(STATIC, moe("mixtral", generator), tmp_path)
    plain = kernel.quantization.load_quantized(tmp_path, device)
    on_fnuz(kernel, monkeypatch)
    loaded = kernel.quantization.load_quantized(tmp_path, device)
    for one, other in zip(expert_modules(plain).values(), expert_modules(loaded).values(), strict=True):
        for stack, scale in (("gate_up_proj", "gate_up_scale"), ("down_proj", "down_scale")):
            assert getattr(other, stack).dtype == torch.float8_e4m3fnuz
            assert torch.equal(*(getattr(m, stack).float() * getattr(m, scale) for m in (one, other)))
        assert torch.equal(other.input_scale, 2 * one.input_scale)
        assert torch.equal(other.hidden_scale, 2 * one.hidden_scale)
    with pytest.raises(ValueError, match="format is torch.float8_e4m3fnuz; checkpoints hold float8_e4m3fn"):
        kernel.quantization.save_quantized(loaded, tmp_path / "other")


def test_convert_leaves_quantised_experts_to_load_quantized(kernel, generator, tmp_path):
    from transformers import AutoModelForCausalLM

    write(CHANNEL, moe("qwen3_moe", generator), tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    names = list(expert_modules(read))
    with pytest.raises(ValueError, match=rf"{names[0]} is quantised, and decompressed by transformers; load_quantized"):
        kernel.quantization.convert(read)
    assert list(expert_modules(read)) == names


# --- refused ---

EXPERT = "model.layers.1.mlp.experts.3"


def with_nan(codes: torch.Tensor) -> torch.Tensor:
    codes.view(torch.uint8)[0, 5] = 0x7F
    return codes


BAD = {
    "no weight": (BLOCKS, without(f"{EXPERT}.up_proj.weight"), f"no tensor {EXPERT}.up_proj.weight"),
    "no scale": (CHANNEL, without(f"{EXPERT}.down_proj.weight_scale"), f"no tensor {EXPERT}.down_proj.weight_scale"),
    "no input scale": (STATIC, without(f"{EXPERT}.up_proj.input_scale"), f"no tensor {EXPERT}.up_proj.input_scale"),
    "shape": (
        BLOCKS,
        changed(f"{EXPERT}.up_proj.weight", lambda codes: codes[:128].clone()),
        f"{EXPERT}.up_proj.weight: shape [128, 128]; needs [256, 128]",
    ),
    "shape of scales": (
        BLOCKS,
        changed(f"{EXPERT}.up_proj.weight_scale_inv", lambda scale: scale[:1].clone()),
        f"{EXPERT}.up_proj.weight_scale_inv: shape [1, 1]; needs [2, 1]",
    ),
    "dtype": (
        CHANNEL,
        changed(f"{EXPERT}.up_proj.weight", lambda codes: codes.bfloat16()),
        f"{EXPERT}.up_proj.weight: dtype BF16; needs F8_E4M3",
    ),
    "NaN": (CHANNEL, changed(f"{EXPERT}.up_proj.weight", with_nan), f"{EXPERT}.up_proj.weight: holds NaN"),
    "scale": (
        CHANNEL,
        changed(f"{EXPERT}.up_proj.weight_scale", lambda scale: -scale),
        f"{EXPERT}.up_proj.weight_scale: holds -",
    ),
    "one more expert": (
        BLOCKS,
        lambda tensors: tensors.update({"model.layers.1.mlp.experts.4.up_proj.weight": torch.zeros(1)}),
        "unknown tensor model.layers.1.mlp.experts.4.up_proj.weight",
    ),
    "two names": (
        BLOCKS,
        lambda tensors: tensors.update({"model.layers.1.block_sparse_moe.experts.3.w1.weight": torch.zeros(1)}),
        f"model.layers.1.block_sparse_moe.experts.3.w1.weight and {EXPERT}.gate_proj.weight are one tensor",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_checkpoints_are_refused(kernel, generator, tmp_path, case):
    form, change, message = BAD[case]
    write(form, moe("mixtral", generator), tmp_path)
    edit(tmp_path, change)
    refused(kernel, tmp_path, message)


STACKS = {
    "shape": ("gate_up_proj", lambda codes: codes[:3].clone(), "shape [3, 512, 128]; needs [4, 512, 128]"),
    "shape of scales": (
        "down_proj_scale_inv",
        lambda scale: scale[:, :, :1].clone(),
        "shape [4, 1, 1]; needs [4, 1, 2]",
    ),
    "dtype": ("down_proj", lambda codes: codes.bfloat16(), "dtype BF16; needs F8_E4M3"),
}


@pytest.mark.parametrize("case", STACKS)
def test_bad_stacks_are_refused(kernel, generator, tmp_path, case):
    last, change, message = STACKS[case]
    write(BLOCKS, moe("mixtral", generator), tmp_path)
    with_stacks(tmp_path)
    edit(tmp_path, changed(f"model.layers.1.mlp.experts.{last}", change))
    refused(kernel, tmp_path, f"model.layers.1.mlp.experts.{last}: {message}")


def test_stacks_have_scales_of_blocks(kernel, generator, tmp_path):
    write("fp8, dynamic", moe("mixtral", generator), tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"model.layers.0.mlp.experts.down_proj": torch.zeros(4, 128, 256)}))
    refused(kernel, tmp_path, "mlp.experts: stacked experts with scales by tensor; known: blocks of 128")


@pytest.mark.parametrize("ignored, other", [(r"3\..*", "3.gate_proj"), (r"\d+\.down_proj", "0.down_proj")])
def test_experts_have_one_scheme(kernel, generator, tmp_path, ignored, other):
    write(CHANNEL, moe("qwen3_moe", generator), tmp_path, (rf".*layers\.1\.mlp\.experts\.{ignored}",))
    first, other = (f"model.layers.1.mlp.experts.{name}" for name in ("0.gate_proj", other))
    refused(kernel, tmp_path, f"{first} and {other} are quantised in different ways: experts have one scheme")


def test_blocks_hold_rows_of_one_matrix(kernel, generator, tmp_path):
    write(BLOCKS, moe("qwen3_moe", generator, moe_intermediate_size=192), tmp_path)
    refused(kernel, tmp_path, "experts' intermediate size is 192; blocks of 128x128 need a multiple of 128")


def test_an_upper_bound_of_scales_is_refused(kernel, generator, tmp_path):
    write("fbgemm_fp8", moe("qwen3_moe", generator), tmp_path)
    refused(kernel, tmp_path, "model.layers.0.mlp.experts: activation_scale_ub; experts' scales have no upper bound")


def test_other_activations_are_refused(kernel, generator, tmp_path):
    write(BLOCKS, moe("mixtral", generator), tmp_path)
    checkpoints.configure(tmp_path, None, hidden_act="gelu")
    refused(kernel, tmp_path, "mlp.experts: these experts are not supported: their activation is GELU")
