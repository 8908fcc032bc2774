"""Checkpoints of quantised models that lack a tensor, or have it otherwise, in real engines: refused, by its name."""

import re
import shutil

import pytest
import torch

from problems.tiny_moe import edit

from .cases import text
from .conftest import teacher_forced
from .settings import of_cpus_alone
from .steps import a_step

STATIC, MXFP4, GPT_OSS, INT8 = "Mixtral static", "Qwen3-MoE mxfp4", "gpt-oss", "int8, zero points"
DENSE, DEEPSEEK = "static", "DeepSeek-V3 blocks"
OTHER_MX = ("Qwen3-MoE mxfp4 quark W4A4", "Qwen3-MoE compressed-tensors, MXFP8")
LACKS = "{}: holds NaN, or the checkpoint lacks a part of it"
NAMES = "Following weights were not initialized from checkpoint: .*{}"
TYPE = "{}: torch.float8_e4m3fn by the settings, torch.{} in the checkpoint"
WIDE = "{}: torch.bfloat16 by the settings, torch.float8_e4m3fn in the checkpoint"
SHAPE = r"{{}}: \[{}\] by the settings, \[{}\] in the checkpoint"
NEGATIVE = "{}: holds NaN, infinity or negative numbers in the checkpoint"
BIAS = "{}: the checkpoint has this bias, and by config.json the model has none"
OF_FILE = r"{}: \[[\d, ]+\] by the settings, \[[\d, ]+\] in the checkpoint"


def with_nan(tensor: torch.Tensor, row: int, column: int) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.view(torch.uint8)[row, column] = 0x7F
    return tensor


CHANGES = {
    "absent": lambda tensor: None,
    "in bfloat16": lambda tensor: tensor.to(torch.bfloat16),
    "in FP8": lambda tensor: tensor.to(torch.float8_e4m3fn),
    "as integers": lambda tensor: tensor.to(torch.uint8),
    "in bytes": lambda tensor: tensor.view(torch.uint8),
    "a row": lambda tensor: tensor[:1].contiguous(),
    "384 rows": lambda tensor: tensor[:384].contiguous(),
    "twice": lambda tensor: tensor.repeat(2, 1),
    "a column": lambda tensor: tensor[:, :1].contiguous(),
    "a number": lambda tensor: tensor[0, 0].clone(),
    "NaN": lambda tensor: tensor * float("nan"),
    "NaN amid": lambda tensor: with_nan(tensor, len(tensor) // 2, tensor.shape[1] // 2),
    "flat": lambda tensor: tensor.flatten(1),
    "doubled": lambda tensor: tensor.repeat_interleave(2, 1),
}
# Of layer 1: (case, the end of a tensor's name, what becomes of it, the message, whose name it has)
FAULTS = [
    (STATIC, "experts.2.w1.weight_scale", "absent", LACKS, "experts.w13_weight_scale"),
    (STATIC, "experts.2.w2.input_scale", "absent", LACKS, "experts.w2_input_scale"),
    (STATIC, "experts.2.w3.weight", "absent", LACKS, "experts.w13_weight"),
    # vLLM copies the row, or the number, into all.
    (STATIC, "experts.2.w3.weight", "a row", SHAPE.format("768, 256", "1, 256"), "experts.w13_weight"),
    (STATIC, "experts.2.w3.weight", "a number", SHAPE.format("768, 256", ""), "experts.w13_weight"),
    (STATIC, "experts.2.w3.weight", "384 rows", SHAPE.format("768, 256", "384, 256"), "experts.w13_weight"),
    (STATIC, "experts.2.w1.input_scale", "absent", LACKS, "experts.w13_input_scale"),
    (STATIC, "experts.2.w3.input_scale", "absent", LACKS, "experts.w13_input_scale"),
    (STATIC, "experts.2.w1.input_scale", "NaN", NEGATIVE, "experts.w13_input_scale"),
    (STATIC, "experts.2.w3.weight", "in bytes", TYPE.format("{}", "uint8"), "experts.w13_weight"),
    (STATIC, "self_attn.q_proj.weight", "in bytes", TYPE.format("{}", "uint8"), "qkv_proj.weight"),
    (STATIC, "o_proj.weight", "NaN amid", LACKS, "o_proj.weight"),
    (STATIC, "experts.2.w3.weight", "NaN amid", LACKS, "experts.w13_weight"),
    (STATIC, "o_proj.weight", "in bfloat16", TYPE.format("{}", "bfloat16"), "o_proj.weight"),
    (STATIC, "self_attn.k_proj.weight", "absent", LACKS, "qkv_proj.weight"),
    (STATIC, "block_sparse_moe.gate.weight", "absent", LACKS, "gate.weight"),
    (STATIC, "input_layernorm.weight", "absent", NAMES, "layers.1.input_layernorm.weight"),
    (STATIC, "model.embed_tokens.weight", "absent", LACKS, "embed_tokens.weight"),
    (STATIC, "self_attn.k_proj.weight", "twice", SHAPE.format("128, 256", "256, 256"), "qkv_proj.weight"),
    (STATIC, "lm_head.weight", "in FP8", WIDE, "lm_head.weight"),
    (STATIC, "model.embed_tokens.weight", "a column", SHAPE.format("256, 256", "256, 1"), "embed_tokens.weight"),
    (STATIC, "input_layernorm.weight", "in FP8", WIDE, "input_layernorm.weight"),
    (STATIC, "input_layernorm.weight", "NaN", LACKS, "input_layernorm.weight"),
    (DENSE, "mlp.up_proj.weight_scale", "absent", LACKS, "gate_up_proj.weight_scale"),
    (DENSE, "mlp.up_proj.input_scale", "absent", LACKS, "gate_up_proj.input_scale"),
    (DENSE, "mlp.down_proj.weight_scale", "as integers", "{}: torch.float32 by the", "down_proj.weight_scale"),
    (MXFP4, "experts.2.up_proj.weight_packed", "absent", LACKS, "experts.w13_weight_packed"),
    (MXFP4, "experts.2.down_proj.weight_scale", "absent", LACKS, "experts.w2_weight_scale"),
    (INT8, "self_attn.k_proj.weight_scale", "absent", LACKS, "qkv_proj.weight_scale"),
    (INT8, "mlp.down_proj.weight", "absent", LACKS, "down_proj.weight"),
    (DEEPSEEK, "mlp.gate.e_score_correction_bias", "absent", LACKS, "gate.e_score_correction_bias"),
    (GPT_OSS, "down_proj_blocks", "absent", LACKS, "experts.w2_weight"),
    (GPT_OSS, "gate_up_proj_scales", "absent", LACKS, "experts.w13_weight_scale"),
    (GPT_OSS, "gate_up_proj_bias", "absent", LACKS, "experts.w13_bias"),
    (GPT_OSS, "q_proj.bias", "absent", LACKS, "qkv_proj.bias"),
    (GPT_OSS, "down_proj_blocks", "flat", OF_FILE, "mlp.experts.down_proj_blocks"),
    (GPT_OSS, "gate_up_proj_bias", "doubled", OF_FILE, "mlp.experts.gate_up_proj_bias"),
    (GPT_OSS, "sinks", "absent", NAMES, "layers.1.attn.sinks"),
]
LAYER = "model.layers.1."


def changed(folder, target, change) -> str:
    """A copy of a checkpoint; change: of its tensors, in place."""
    shutil.copytree(folder, target)
    edit(target, change)
    return str(target)


@pytest.mark.parametrize("name, end, change, message, own", FAULTS, ids=[", ".join(each[:3]) for each in FAULTS])
def test_what_a_checkpoint_lacks_is_refused(name, end, change, message, own, engine, checkpoint, tmp_path):
    def fault(tensors: dict[str, torch.Tensor]) -> None:
        (found,) = (each for each in tensors if each.endswith(end) and (LAYER in each or "layers" not in each))
        made = CHANGES[change](tensors.pop(found))
        if made is not None:
            tensors[found] = made

    model = changed(checkpoint(name), tmp_path / "changed", fault)
    named = re.escape(own).replace("experts.w", "experts.routed_experts.w")
    with pytest.raises(ValueError, match=message.format(named)):
        engine(name, enforce_eager=True, model=model)


@pytest.mark.parametrize(
    "module", ["self_attn.q_proj", "self_attn.o_proj", "block_sparse_moe.experts.2.w1", "input_layernorm"]
)
def test_a_bias_that_the_model_has_no_place_for_is_refused(module, engine, checkpoint, tmp_path):
    """One of zeros, as GPTQ's files have it, is none."""
    name = f"{LAYER}{module}.bias"

    def add(tensors: dict[str, torch.Tensor], value: float) -> None:
        tensors[name] = torch.full((tensors[f"{LAYER}{module}.weight"].shape[0],), value, dtype=torch.bfloat16)

    model = changed(checkpoint(STATIC), tmp_path / "ones", lambda tensors: add(tensors, 1.0))
    with pytest.raises(ValueError, match=BIAS.format(re.escape(name))):
        engine(STATIC, enforce_eager=True, model=model)
    model = changed(checkpoint(STATIC), tmp_path / "zeros", lambda tensors: add(tensors, 0.0))
    engine(STATIC, enforce_eager=True, model=model)


def test_a_bias_of_joined_latents_or_of_a_stack_is_refused(engine, checkpoint, tmp_path):
    for name in (f"{LAYER}self_attn.q_a_proj.bias", f"{LAYER}mlp.experts.down_proj_bias"):
        model = changed(checkpoint(DEEPSEEK), tmp_path / name, lambda tensors: tensors.update({name: torch.ones(128)}))
        with pytest.raises(ValueError, match=BIAS.format(re.escape(name))):
            engine(DEEPSEEK, enforce_eager=True, model=model)


def test_of_gates_and_ups_input_scales_the_largest_counts(engine, checkpoint, tmp_path):
    """vLLM takes the one that it loads last. Here the largest are ups'."""

    def swap(tensors: dict[str, torch.Tensor]) -> None:
        for gate in [each for each in tensors if each.endswith(".w1.input_scale")]:
            up = gate.replace(".w1.", ".w3.")
            tensors[gate], tensors[up] = tensors[up].clone(), tensors[gate].clone()
            assert tensors[gate] == 2 * tensors[up]

    ids = text(2, 200)
    expected = teacher_forced(engine(STATIC, enforce_eager=True), ids)[1]
    model = changed(checkpoint(STATIC), tmp_path / "swapped", swap)
    assert torch.equal(teacher_forced(engine(STATIC, enforce_eager=True, model=model), ids)[1], expected)


def test_a_quantised_head_is_refused_where_vllm_has_none(engine):
    """It would compute with the codes, without their scales."""
    with pytest.raises(ValueError, match=WIDE.format("lm_head.weight")):
        engine("dynamic, with its head", enforce_eager=True)


def test_files_in_a_kernels_layout_are_refused(engine):
    with pytest.raises(ValueError, match="load_format sharded_state: not for fp8. Load the checkpoint itself"):
        engine(STATIC, enforce_eager=True, load_format="sharded_state")


@pytest.mark.parametrize(
    "name",
    [
        *(STATIC, "byte DeepSeek, tied"),
        *(pytest.param(each, marks=of_cpus_alone) for each in (MXFP4, GPT_OSS)),
        *(pytest.param(each, marks=[of_cpus_alone, pytest.mark.full]) for each in OTHER_MX),
    ],
)
def test_weights_that_vllm_draws_are_left_alone(name, engine):
    """MX: vLLM fills no codes, which on a GPU are what its memory held, NaN among them."""
    llm = engine(name, enforce_eager=True, load_format="dummy")
    if name == "byte DeepSeek, tied":
        assert teacher_forced(llm, text(1, 50))[1].isfinite().all()
    elif name != STATIC:
        step = a_step(llm)
        assert step["grouped_gemm"] == step["grouped_gemm_gate"] == step["moe_combine"] > 0
