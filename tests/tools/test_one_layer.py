"""The checkpoints of benchmarks/one_layer.py: their layout, what is loaded of them, and the real models' sizes."""

import json

import pytest
import torch

from benchmarks import one_layer
from problems.tiny_llama import NEAR

SMALL = {
    "deepseek-v3": dict(
        hidden_size=256, moe_intermediate_size=128, n_routed_experts=16, num_attention_heads=4, num_key_value_heads=4,
        q_lora_rank=128, n_group=4, topk_group=2, num_experts_per_tok=4,
    ),
    "qwen3-235b": dict(
        hidden_size=256, moe_intermediate_size=128, num_experts=16, num_attention_heads=4, num_key_value_heads=2
    ),
}  # fmt: skip
# Beside layers with experts, in billions: DeepSeek-V3's three dense layers, embeddings and head; Qwen3's embeddings and
# head. The sums are what the models are said to have, 671 and 235.
WHOLE = {"deepseek-v3": (58, 3.6, 671), "qwen3-235b": (94, 1.2, 235)}


@pytest.mark.parametrize("name", one_layer.MODELS)
def test_the_sizes_are_the_models(name):
    of_layer = sum(n * k for _, n, k in one_layer.linears(one_layer.settings(name))) / 1e9
    layers, others, said = WHOLE[name]
    assert abs(layers * of_layer + others - said) < 0.5


@pytest.mark.parametrize("name", one_layer.MODELS)
@pytest.mark.filterwarnings("ignore:.*tensors that nothing here uses")
def test_a_small_one_loads_and_runs(kernel, device, tmp_path, name):
    if device.type != "cpu":
        pytest.skip("the benchmark is a CPU's")
    folder = tmp_path / "layer"
    one_layer.write(one_layer.settings(name, **SMALL[name]), folder, in_file=1 << 19)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 2 and set(index.values()) <= {path.name for path in folder.iterdir()}
    result = one_layer.check(kernel, folder)
    assert result["distance"] <= NEAR
    expected = sum(n * k for _, n, k in one_layer.linears(one_layer.settings(name, **SMALL[name])))
    assert expected < result["parameters"] < 1.01 * expected + 16 * 256 + 1024
    # DeepSeek's kv_b is there in 16 bits, too.
    absorbed = 2 * 512 * 4 * 256 if name == "deepseek-v3" else 0
    assert result["bytes_a_parameter"] < 1.02 + absorbed / expected


def test_what_predicts_more_tokens_is_left_with_a_word(kernel, tmp_path):
    folder = tmp_path / "layer"
    one_layer.write(one_layer.settings("deepseek-v3", **SMALL["deepseek-v3"]), folder)
    with pytest.warns(UserWarning, match=r"tensors that nothing here uses: model\.layers\.\*\.enorm\.weight"):
        model = kernel.quantization.load_quantized(folder)
    names = {type(module).__name__ for module in model.modules()}
    assert {"Fp8DeepseekV3Attention", "Fp8DeepseekV3MoE", "Fp8DeepseekV3TopkRouter"} <= names
    assert model.model.layers[0].self_attn.kv_b_proj.weight.dtype == torch.float8_e4m3fn
