"""Checkpoints as publishers lay them out and transformers reads them: patterns among the rules, rules with older names,
tensors of layers that predict more tokens, linears in 16 bits that no rule names; and adapters."""

import shutil
from pathlib import Path

import peft
import pytest
import torch

from problems import checkpoints
from problems.buffers import same_bytes
from problems.expert_models import model as expert_model
from problems.tiny_llama import fp8_linears, llama, logits, tokens

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of what is not fused, and of tensors that nothing uses
]


def saved(kernel, original: torch.nn.Module, folder: Path, granularity: str = "block") -> torch.nn.Module:
    made = kernel.quantization.quantize(original, activations="dynamic", granularity=granularity)
    kernel.quantization.save_quantized(made, folder)
    return made


def edit(folder: Path, tensors=None, settings=None) -> None:
    config = None if settings is None else lambda config: settings(config["quantization_config"])
    checkpoints.edit(folder, tensors, config)


PATTERNS = {
    "pattern": r"model\.layers\.\d+\.self_attn\.o_proj",
    "wild card": "model.layers.1.*",
    "beginning": "model.layers.0",
    "end": "down_proj",
    "no pattern": "*.o_proj",
}


@pytest.mark.parametrize("kind", PATTERNS)
def test_patterns_among_what_is_not_converted(kernel, generator, tmp_path, kind):
    """As transformers matches them: from the beginning of a module's name, up to a dot; or its end."""
    rule = PATTERNS[kind]
    made = saved(kernel, llama(generator, hidden_size=128, intermediate_size=256), tmp_path / "fp8")
    left_out = {
        "pattern": lambda name: name.endswith("self_attn.o_proj"),
        "wild card": lambda name: name.startswith("model.layers.1."),
        "beginning": lambda name: name.startswith("model.layers.0."),
        "end": lambda name: name.endswith("down_proj"),
        "no pattern": lambda name: False,
    }[kind]

    def tensors(held) -> None:
        for name in [
            name for name in held if name.endswith("_scale_inv") and left_out(name[: -len(".weight_scale_inv")])
        ]:
            weight = name.removesuffix("_scale_inv")
            scale = held.pop(name).repeat_interleave(128, 0)[: len(held[weight])].repeat_interleave(128, 1)
            held[weight] = (held[weight].float() * scale[:, : held[weight].shape[1]]).bfloat16()

    edit(tmp_path / "fp8", tensors, lambda settings: settings["modules_to_not_convert"].append(rule))
    found = kernel.quantization.load_quantized(tmp_path / "fp8")
    plain = {name for name, module in found.named_modules() if type(module) is torch.nn.Linear} - {"lm_head"}
    everything = {f"model.layers.{i}.{half}" for i in range(2) for half in (*ATTENTION, *MLP)}
    assert plain == {name for name in everything if left_out(name)}
    assert len(fp8_linears(kernel, found)) > 0 and len(fp8_linears(kernel, made)) == 8


ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


@pytest.mark.parametrize("names", ["published", "transformers"])
def test_rules_with_names_of_before(kernel, device, generator, tmp_path, names):
    """Mixtral's published rules say block_sparse_moe, transformers' modules are called mlp."""
    made = saved(kernel, expert_model("mixtral", generator), tmp_path / "fp8").to(device)
    older = names == "published"

    def settings(found) -> None:
        gone = "mlp" if older else "block_sparse_moe"
        found["modules_to_not_convert"] = [name for name in found["modules_to_not_convert"] if gone not in name]
        assert len(found["modules_to_not_convert"]) == 3

    edit(tmp_path / "fp8", settings=settings)
    found, ids = kernel.quantization.load_quantized(tmp_path / "fp8", device), tokens(generator, 2, 9, device)
    assert same_bytes(logits(found, ids), logits(made, ids))


def test_tensors_that_transformers_passes_over(kernel, device, generator, tmp_path):
    """Qwen3-Next's and 3.5's mtp.*, at the top level."""
    made = saved(kernel, expert_model("qwen3_next", generator), tmp_path / "fp8").to(device)

    def tensors(held) -> None:
        held["mtp.fc.weight"] = torch.ones(8, 8, dtype=torch.bfloat16)
        held["mtp.layers.0.mlp.experts.0.up_proj.weight_scale_inv"] = torch.ones(1, 1)

    edit(tmp_path / "fp8", tensors)
    with pytest.warns(UserWarning, match=r"tensors that nothing here uses: mtp\.fc\.weight"):
        found = kernel.quantization.load_quantized(tmp_path / "fp8", device)
    ids = tokens(generator, 2, 9, device)
    assert same_bytes(logits(found, ids), logits(made, ids))
    edit(tmp_path / "fp8", lambda held: held.update({"other.weight": torch.ones(8)}))
    with pytest.raises(ValueError, match=r"unknown tensor other\.weight"):
        kernel.quantization.load_quantized(tmp_path / "fp8")


@pytest.mark.parametrize("kind, name", [("deepseek_v32", "indexer.weights_proj"), ("jamba", "mamba.dt_proj")])
@pytest.mark.parametrize("stored", ["in 16 bits", "in FP8"])
def test_a_linear_that_code_reads_and_no_rule_names(kernel, device, generator, tmp_path, kind, name, stored):
    """DeepSeek-V3.2's weights_proj is in bfloat16, and in no list. Whatever a file holds, the model has its numbers."""
    made = saved(kernel, expert_model(kind, generator), tmp_path / "fp8", "channel").to(device)
    places = [each for each, module in made.named_modules() if each.endswith(name)]
    assert places and all(type(made.get_submodule(each)) is torch.nn.Linear for each in places)

    def tensors(held) -> None:
        for each in places if stored == "in FP8" else ():
            weight = held[f"{each}.weight"]
            scale = weight.float().abs().amax(1, keepdim=True) / 448
            held[f"{each}.weight"] = (weight.float() / scale).to(torch.float8_e4m3fn)
            held[f"{each}.weight_scale"] = scale

    def settings(found) -> None:
        found["ignore"] = [each for each in found["ignore"] if each not in places]

    edit(tmp_path / "fp8", tensors, settings)
    found = kernel.quantization.load_quantized(tmp_path / "fp8", device)
    for each in places:
        module, own = found.get_submodule(each), made.get_submodule(each)
        assert type(module) is torch.nn.Linear
        far = (module.weight.float() - own.weight.float()).norm() / own.weight.float().norm()
        assert far == 0 if stored == "in 16 bits" else 0 < far < 2**-4.5
    logits(found, tokens(generator, 2, 9, device))


def test_adapters_are_merged_first(kernel, device, generator, tmp_path):
    """Names of PEFT's modules are read by nobody, and its layers cast their input to the dtype of a linear's weight."""
    adapted = peft.get_peft_model(llama(generator), peft.LoraConfig(target_modules=["q_proj"], r=4))
    for refused in (adapted, adapted.get_base_model()):
        with pytest.raises(ValueError, match=r"q_proj has an adapter that is not merged; merge_and_unload\(\)"):
            kernel.quantization.quantize(refused, activations="dynamic")
    model = llama(generator, device=device, tie_word_embeddings=False)
    kernel.quantization.quantize(model, activations="dynamic")
    on_the_head = peft.get_peft_model(model, peft.LoraConfig(target_modules=["lm_head"], r=4))
    with pytest.raises(ValueError, match=r"lm_head has an adapter that is not merged"):
        kernel.quantization.save_quantized(on_the_head, tmp_path / "fp8")
    assert not (tmp_path / "fp8").exists()
    merged = on_the_head.merge_and_unload()
    kernel.quantization.save_quantized(merged, tmp_path / "fp8")
    found, ids = kernel.quantization.load_quantized(tmp_path / "fp8", device), tokens(generator, 2, 9, device)
    assert same_bytes(logits(found, ids), logits(merged, ids))
    shutil.rmtree(tmp_path / "fp8")
