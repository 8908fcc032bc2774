"""What published checkpoints hold beside weights and scales, and the other names and shapes that they have for them."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, JambaConfig, JetMoeConfig, Qwen2MoeConfig, Qwen3MoeConfig

from problems import checkpoints
from problems.buffers import same_bytes
from problems.checkpoints import assert_same_state, edit
from problems.tiny_llama import llama, logits, tokens
from problems.tiny_models import GROUPED

pytestmark = pytest.mark.usefixtures("without_gradients")

STATIC, DYNAMIC, BLOCKS = "fp8, static", "fp8, dynamic", "fp8, blocks"
CHANNEL, TENSOR = "compressed-tensors, channel, dynamic", "compressed-tensors, tensor, static"
INT8, ZEROS = "int8", "int8, zeros"
ATTENTION = "model.layers.1.self_attn"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def written(kernel, generator, tmp_path) -> Callable[..., Path]:
    """written(format) -> the folder of such a checkpoint."""

    def write(name: str, **changes) -> Path:
        model, folder = llama(generator, num_key_value_heads=2, **changes), tmp_path / "made"
        if name in (INT8, ZEROS):
            kernel.smoothquant.quantize(model, activations="dynamic", alpha=None, symmetric=name == INT8)
            kernel.smoothquant.save_quantized(model, folder)
        else:
            checkpoints.write(name, model, tokens(generator, 2, 12), folder)
        return folder

    return write


@pytest.fixture
def loader(kernel, device):
    """loader(format) -> what loads such a folder onto the device."""

    def of(name: str) -> Callable[[Path], torch.nn.Module]:
        module = kernel.smoothquant if name in (INT8, ZEROS) else kernel.quantization
        return lambda folder: module.load_quantized(folder, device)

    return of


def spare(*names: str, value: float = 0.5) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: torch.full((1,), value) for name in names})


def rest(name: str) -> str:
    return f"{ATTENTION}.{name}"


UNUSED = {
    "attention's scales": (STATIC, spare(rest("q_scale"), rest("prob_scale"), rest("prob_output_scale"))),
    "results of q": (DYNAMIC, spare(rest("q_proj.output_scale"))),
    "scales at linears": (DYNAMIC, spare(rest("k_proj.k_scale"), rest("qkv_proj.k_scale"), rest("attn.k_scale"))),
    "zero points of symmetric weights": (CHANNEL, spare(rest("q_proj.weight_zero_point"), value=0.0)),
    "zero points of symmetric inputs": (TENSOR, spare(rest("q_proj.input_zero_point"), value=0.0)),
    "scales of computed inputs": (DYNAMIC, spare(rest("q_proj.input_scale"), "model.layers.0.mlp.up_proj.input_scale")),
    "layers that predict more": (BLOCKS, spare("model.layers.2.embed_tokens.weight", "model.layers.61.eh_proj.weight")),
    "int8, attention's scales": (INT8, spare(rest("q_scale"), rest("k_scale"), rest("attn.v_scale"))),
    "int8, zero points": (INT8, spare(rest("q_proj.weight_zero_point"), value=0.0)),
    "int8, scales of computed inputs": (ZEROS, spare(rest("q_proj.input_scale"))),
    "int8, layers that predict more": (INT8, spare("model.layers.2.embed_tokens.weight")),
}


@pytest.mark.parametrize("case", UNUSED)
def test_one_warning_lists_what_nothing_uses(generator, written, case, loader, device):
    name, change = UNUSED[case]
    folder, ids = written(name), tokens(generator, 2, 9, device)
    with warnings.catch_warnings(record=True) as before:
        warnings.simplefilter("always")
        wanted = logits(loader(name)(folder), ids)
    added: Tensors = {}
    change(added)
    edit(folder, change)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = loader(name)(folder)
    ours = [str(each.message) for each in found if str(folder) in str(each.message)]
    assert len(ours) == 1 and len(found) - len(before) <= 1
    assert [each.filename for each in found if str(folder) in str(each.message)] == [__file__]
    for tensor in added:
        assert re.sub(r"\.\d+\.", ".*.", tensor) in ours[0]
    assert same_bytes(logits(model, ids), wanted)


@pytest.mark.parametrize("name, last", [(CHANNEL, "weight_zero_point"), (INT8, "weight_zero_point")])
def test_zero_points_that_are_none_are_refused(written, name, last, loader):
    folder = written(name)
    edit(folder, spare(rest(f"q_proj.{last}"), value=3.0))
    with pytest.raises(ValueError, match=rf"q_proj\.{last}: holds other numbers than 0"):
        loader(name)(folder)


@pytest.mark.parametrize("tensor", ["model.layers.1.mlp.more.weight", "model.layers.1.q_scales", "k_scale", "x.weight"])
@pytest.mark.parametrize("name", [DYNAMIC, INT8])
def test_others_stay_unknown(written, name, tensor, loader):
    folder = written(name)
    edit(folder, spare(tensor))
    with pytest.raises(ValueError, match=f"unknown tensor {tensor}"):
        loader(name)(folder)


@pytest.mark.parametrize("name", [CHANNEL, INT8])
def test_a_scheme_of_the_cache_is_noted(written, name, loader):
    folder = written(name)
    cache = dict(num_bits=8, type="float", symmetric=True, strategy="tensor", dynamic=False)
    edit(folder, config=lambda config: config["quantization_config"].update(kv_cache_scheme=cache))
    with pytest.warns(UserWarning, match="the KV cache keeps the model's dtype"):
        loader(name)(folder)


# --- other names and shapes ---


def renamed(old: str, new: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(f".{old}")]:
            tensors[name.removesuffix(old) + new] = tensors.pop(name)

    return change


def shaped(last: str, shape: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(f".{last}")]:
            tensors[name] = shape(tensors[name])

    return change


def both(*changes: Callable[[Tensors], None]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for each in changes:
            each(tensors)

    return change


def scalar(scale: torch.Tensor) -> torch.Tensor:
    return scale.reshape(())


ALIKE = {
    "transformers' names": (
        STATIC,
        both(
            *(renamed("weight_scale", "weight_scale_inv"), renamed("input_scale", "activation_scale")),
            *(shaped("weight_scale_inv", scalar), shaped("activation_scale", scalar)),
        ),
    ),
    "transformers' names, computed": (DYNAMIC, renamed("weight_scale", "weight_scale_inv")),
    "blocks by the other name": (BLOCKS, renamed("weight_scale_inv", "weight_scale")),
    "one by one": (
        STATIC,
        both(shaped("weight_scale", lambda s: s.reshape(1, 1)), shaped("input_scale", lambda s: s.reshape(1, 1))),
    ),
    "a row of channels": (CHANNEL, shaped("weight_scale", lambda s: s.reshape(1, -1))),
    "int8, a row of channels": (INT8, shaped("weight_scale", lambda s: s.reshape(1, -1))),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", ALIKE)
def test_other_names_and_shapes_of_the_same_numbers(generator, written, case, loader, device):
    name, change = ALIKE[case]
    folder, ids = written(name), tokens(generator, 2, 9, device)
    wanted = logits(loader(name)(folder), ids)
    edit(folder, change)
    assert same_bytes(logits(loader(name)(folder), ids), wanted)


def test_both_names_at_once_are_refused(written, loader):
    folder = written(DYNAMIC)
    edit(folder, lambda tensors: tensors.update({rest("q_proj.weight_scale_inv"): torch.ones(1)}))
    with pytest.raises(ValueError, match=r"unknown tensor .*q_proj\.weight_scale_inv"):
        loader(DYNAMIC)(folder)


@pytest.mark.parametrize("named", [0, 1])
@pytest.mark.parametrize("name", [CHANNEL, INT8])
def test_a_tensor_that_two_files_hold(generator, written, name, loader, device, named):
    """The index says which of them counts; the other may be of an earlier release."""
    folder, ids, norm = written(name), tokens(generator, 2, 9, device), "model.norm.weight"
    wanted, tensors = logits(loader(name)(folder), ids), checkpoints.stored(folder)
    (folder / "model.safetensors").unlink()
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    parts = [dict(list(tensors.items())[i::2]) for i in range(2)]
    where = {key: file for part, file in zip(parts, files) for key in part} | {norm: files[named]}
    parts[named][norm], parts[1 - named][norm] = tensors[norm], -tensors[norm]
    for part, file in zip(parts, files):
        safetensors.torch.save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert same_bytes(logits(loader(name)(folder), ids), wanted)


def old_key(config: dict) -> None:
    config["compression_config"] = config.pop("quantization_config")


def old_key_nested(config: dict) -> None:
    inner = config.pop("quantization_config")
    inner.pop("quant_method")
    config["compression_config"] = {"quant_method": "compressed-tensors", "quantization_config": inner}


def dense(config: dict) -> None:
    config["quantization_config"]["sparsity_config"] = {"format": "dense", "sparsity_structure": "unstructured"}


@pytest.mark.parametrize("change", [old_key, old_key_nested, dense], ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", [CHANNEL, TENSOR, INT8])
def test_settings_of_other_releases(generator, written, name, change, loader, device):
    folder, ids = written(name), tokens(generator, 2, 9, device)
    wanted = logits(loader(name)(folder), ids)
    edit(folder, config=change)
    assert same_bytes(logits(loader(name)(folder), ids), wanted)


@pytest.mark.parametrize("name", [CHANNEL, INT8])
def test_sparse_weights_are_refused(written, name, loader):
    folder = written(name)
    sparse = {"format": "sparse-24-bitmask"}
    edit(folder, config=lambda config: config["quantization_config"].update(sparsity_config=sparse))
    with pytest.raises(ValueError, match="sparsity_config: .*; known: none"):
        loader(name)(folder)


# --- tied embeddings ---


@pytest.mark.parametrize("name", [CHANNEL, INT8])
def test_two_tensors_of_one_that_is_tied(generator, written, name, loader, device):
    folder, ids = written(name, tie_word_embeddings=True), tokens(generator, 2, 9, device)
    wanted, embedding = logits(loader(name)(folder), ids), "model.embed_tokens.weight"
    # Equal ones are one.
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[embedding].clone()}))
    assert same_bytes(logits(loader(name)(folder), ids), wanted)
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": -tensors[embedding]}))
    with pytest.raises(ValueError, match=rf"lm_head\.weight and {embedding} differ"):
        loader(name)(folder)
    # As the message says: then both are kept.
    edit(folder, config=lambda config: config.update(tie_word_embeddings=False))
    assert same_bytes(logits(loader(name)(folder), ids), -wanted)


# --- experts ---

EXPERTS = GROUPED | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
ROUTERS = {
    "qwen2_moe": (Qwen2MoeConfig(**EXPERTS, shared_expert_intermediate_size=32), ("shared_expert_gate", "gate")),
    "qwen3_moe": (Qwen3MoeConfig(**EXPERTS, head_dim=16), ("gate",)),
    "jetmoe": (JetMoeConfig(**GROUPED | dict(num_local_experts=4, num_experts_per_tok=2, kv_channels=16)), ("router",)),
    "jamba": (
        JambaConfig(**GROUPED | dict(num_experts=4, use_mamba_kernels=False, attn_layer_period=2, attn_layer_offset=0)),
        ("router",),
    ),
}


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_routers_stay_and_the_warning_says_what_else(kernel, name, kind):
    config, routers = ROUTERS[name]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    before = sum(p.numel() for p in model.parameters())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        if kind == "fp8":
            kernel.quantization.quantize(model, activations="dynamic")
        else:
            kernel.smoothquant.quantize(model, activations="dynamic", alpha=None)
    made = kernel.quantization.Fp8Linear if kind == "fp8" else kernel.smoothquant.Int8Linear
    quantised = {name: module for name, module in model.named_modules() if isinstance(module, made)}
    assert quantised and not any(set(name.split(".")) & set(routers) for name in quantised)
    experts = [module for module in model.modules() if type(module).__name__ == "Fp8Experts"]
    # JetMoe's are no experts as transformers stacks them elsewhere.
    assert len(experts) == (0 if kind == "int8" or name == "jetmoe" else 1 if name == "jamba" else 2)
    share = 1 - sum(module.weight.numel() for module in quantised.values()) / before
    assert bool(found) != (kind == "fp8" and name == "qwen3_moe")  # all of it is fused
    message = f"{share:.0%} of its numbers stay as they are (experts among them)"
    assert any((message if not experts else "stay as they are") in str(each.message) for each in found) != bool(experts)


def test_a_checkpoint_with_experts_says_so(written, loader):
    """Of int8; those of FP8 are read (test_expert_checkpoints.py)."""
    folder = written(INT8)
    config = json.loads((folder / "config.json").read_text())
    made = Qwen3MoeConfig(**EXPERTS, head_dim=16).to_dict() | dict(dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(made | {"quantization_config": config["quantization_config"]}))
    with pytest.raises(ValueError, match="mixtures of experts are quantised to FP8 alone"):
        loader(INT8)(folder)


# --- what calibration takes ---


INPUTS = {
    "a tensor": lambda ids: ids,
    "a dictionary": lambda ids: {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids},
    "dictionaries": lambda ids: iter([{"input_ids": row[None], "labels": row[None]} for row in ids]),
    "padded": lambda ids: [
        {
            "input_ids": torch.nn.functional.pad(ids, (0, 5), value=7),
            "attention_mask": torch.nn.functional.pad(torch.ones_like(ids), (0, 5)),
        }
    ],
}


@pytest.mark.parametrize("case", INPUTS)
@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_calibration_takes_what_a_loader_yields(kernel, generator, case, kind):
    seed = generator.initial_seed()
    ids = tokens(generator, 2, 12)

    def made(inputs) -> torch.nn.Module:
        model = llama(torch.Generator().manual_seed(seed))
        if kind == "fp8":
            return kernel.quantization.quantize(model, inputs)
        return kernel.smoothquant.quantize(model, inputs, activations="dynamic")

    # Padding on the right changes no other position; only the sums of attention may take another order.
    wanted, got = made([ids]), made(INPUTS[case](ids))
    if case == "padded":
        for (name, x), y in zip(wanted.state_dict().items(), got.state_dict().values()):
            if name.endswith("input_scale"):
                torch.testing.assert_close(x, y, rtol=2**-6, atol=0)
    else:
        assert_same_state(got, wanted)


REFUSED = {
    "strings": (["some text"], "hold str"),
    "one row": (lambda ids: [ids[0]], r"input_ids are torch\.int64 \[12\]"),
    "floats": (lambda ids: [ids.float()], r"input_ids are torch\.float32"),
    "no ids": (lambda ids: [{"attention_mask": ids}], "hold no 'input_ids'"),
    "others": (lambda ids: [{"input_ids": ids, "pixels": ids}], "hold 'pixels'"),
    "lists": (lambda ids: [{"input_ids": ids.tolist()}], "input_ids is a list"),
    "nothing": ([], "empty"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_calibration_refuses_what_else_there_is(kernel, generator, case, kind):
    given, message = REFUSED[case]
    model, ids = llama(generator), tokens(generator, 2, 12)
    given = given(ids) if callable(given) else given
    with pytest.raises(ValueError, match=f"inputs: {message}"):
        if kind == "fp8":
            kernel.quantization.quantize(model, given)
        else:
            kernel.smoothquant.quantize(model, given, activations="dynamic")
    assert all(type(m) is not kernel.quantization.Fp8Linear for m in model.modules())
