"""Mixtures of experts for real engines: models that know text where that can be, and their checkpoints."""

import json
from pathlib import Path

import torch

from problems import checkpoints
from problems.tiny_moe import apart, edit, moe, with_names_of_today, with_older_names
from tests.settings import SEED

from .settings import ON_CPU

# Numbers of a DeepSeek's head without a position, and its values. On CUDA vLLM computes prompts of 128 alone.
WIDTH = 64 if ON_CPU else 128


@torch.no_grad()
def upcycled(dense: torch.nn.Module, kind: str, **sizes) -> torch.nn.Module:
    """A dense model as a mixture of 4 experts: each is the dense MLP, its weights changed by half. It still knows
    the text. Routers are random. Another choice of experts moves a byte's information by 1.7 bits."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    generator = torch.Generator().manual_seed(SEED)
    kept = dense.config.to_dict()
    others = (
        "model_type",
        "architectures",
        "mlp_bias",
        "pretraining_tp",
        "transformers_version",
        "tie_word_embeddings",
    )
    config = {name: value for name, value in kept.items() if name not in others}
    config = CONFIG_MAPPING[kind](**config | sizes, num_experts_per_tok=2, tie_word_embeddings=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    state = dense.state_dict()
    missing, _ = model.load_state_dict(state, strict=False)
    assert all(".mlp." in name or "_norm." in name for name in missing), missing

    def of_experts(weight: torch.Tensor) -> torch.Tensor:
        changes = torch.randn((4, *weight.shape), generator=generator)
        return (weight * (1 + 0.5 * changes)).bfloat16()

    for index, layer in enumerate(model.model.layers):
        gate, up, down = (state[f"model.layers.{index}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        layer.mlp.experts.gate_up_proj.copy_(torch.cat([of_experts(gate), of_experts(up)], 1))
        layer.mlp.experts.down_proj.copy_(of_experts(down))
        layer.mlp.gate.weight.copy_(torch.randn(layer.mlp.gate.weight.shape, generator=generator) / 16)
    return model.eval()


def write(form: str, model: torch.nn.Module, ids: torch.Tensor, folder: Path, ignored: tuple[str, ...]) -> None:
    """As published: a tensor for each matrix of an expert, routers among what is ignored; Mixtral's older names."""
    routers = [name for name, _ in model.named_modules() if name.endswith(".mlp.gate")]
    checkpoints.write(form, apart(model), ids, folder, (*ignored, *routers))
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    if settings["quant_method"] == "compressed-tensors":
        # The library names linears alone, and transformers' routers are none.
        checkpoints.configure(folder, settings | dict(ignore=[*settings["ignore"], *routers]))
        edit(folder, _one_input_scale)
    with_names_of_today(folder)
    if model.config.model_type in ("mixtral", "minimax_m2"):
        with_older_names(folder)
    if model.config.model_type == "minimax_m2":  # as published; transformers takes it for granted
        checkpoints.configure(folder, None, scoring_func="sigmoid", use_routing_bias=True)
    if model.config.model_type == "deepseek_v3":  # what vLLM asks for, and transformers takes for granted
        checkpoints.configure(folder, None, topk_method="noaux_tc", scoring_func="sigmoid", moe_layer_freq=1)


def _one_input_scale(tensors: dict[str, torch.Tensor]) -> None:
    """Of gate and up, which vLLM asks for in compressed-tensors, and llm-compressor writes."""
    for name in [each for each in tensors if ".experts." in each and each.endswith("gate_proj.input_scale")]:
        tensors[name] = tensors[name.replace("gate_proj", "up_proj")].clone()


@torch.no_grad()
def follow_sizes(model: torch.nn.Module, dense: torch.nn.Module, ids: torch.Tensor) -> torch.nn.Module:
    """Gives norms of queries and keys weights with which they give about what dense's linears gave."""

    def follow(norm: torch.nn.Module, linear: torch.nn.Module) -> torch.utils.hooks.RemovableHandle:
        def hook(module, inputs, output) -> None:
            norm.weight.fill_(output.float().square().mean().sqrt())

        return linear.register_forward_hook(hook)

    handles = []
    for ours, theirs in zip(model.model.layers, dense.model.layers):
        handles.append(follow(ours.self_attn.q_norm, theirs.self_attn.q_proj))
        handles.append(follow(ours.self_attn.k_norm, theirs.self_attn.k_proj))
    dense(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()
    return model.eval()


@torch.no_grad()
def minimax(dense: torch.nn.Module, ids: torch.Tensor) -> torch.nn.Module:
    """A MiniMax-M2: a sigmoid without groups, and biases of deviation 1, which decide what is chosen."""
    generator = torch.Generator().manual_seed(SEED + 1)
    model = follow_sizes(upcycled(dense, "minimax_m2", num_local_experts=4, rotary_dim=64), dense, ids)
    for layer in model.model.layers:
        layer.mlp.e_score_correction_bias = torch.nn.Buffer(torch.randn(4, generator=generator))
    return model


@torch.no_grad()
def deepseek(name: str = "deepseek_v3", **changes) -> torch.nn.Module:
    """A DeepSeek-V3, or V2, with random weights, and with the sizes of its latent attention that kernels are made for.
    Its positions are beyond those that the frequencies were made for, as YaRN has it."""
    generator = torch.Generator().manual_seed(SEED)
    latent = dict(
        moe_intermediate_size=256,
        q_lora_rank=128,
        kv_lora_rank=512,
        qk_nope_head_dim=WIDTH,
        qk_rope_head_dim=64,
        v_head_dim=WIDTH,
    )
    yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=256)
    latent["rope_parameters"] = yarn | dict(mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1)
    sizes = dict(vocab_size=256, hidden_size=256, num_hidden_layers=3, max_position_embeddings=1024)
    return moe(name, generator, **(sizes | latent | changes))


@torch.no_grad()
def wide_heads(model: torch.nn.Module) -> torch.nn.Module:
    """A DeepSeek-V3 whose heads have 64 numbers without a position and 64 values, with 128 of both: it computes the
    same, but for rounding."""
    narrow, wide, rotated = 64, 128, model.config.qk_rope_head_dim
    sizes = dict(qk_nope_head_dim=wide, qk_head_dim=wide + rotated, v_head_dim=wide)
    config = type(model.config)(**model.config.to_dict() | sizes)
    made, heads = type(model)(config).to(model.dtype), config.num_attention_heads
    # Scores are divided by the root of a head's size.
    larger = ((wide + rotated) / (narrow + rotated)) ** 0.5

    weights = model.state_dict()
    for name, weight in weights.items():
        if name.endswith(("q_b_proj.weight", "kv_b_proj.weight")):  # of each head 64 rows, then 64 rotated or values
            first, other = weight.unflatten(0, (heads, narrow + narrow)).split(narrow, 1)
            is_query = ".q_b_proj" in name
            parts = (first * larger, other * larger) if is_query else (first, _below(other, wide))
            weights[name] = torch.cat([_below(parts[0], wide), parts[1]], 1).flatten(0, 1)
        elif name.endswith("o_proj.weight"):
            weights[name] = _below(weight.t().unflatten(0, (heads, narrow)), wide).flatten(0, 1).t()
    made.load_state_dict(weights)
    return made.eval()


def _below(parts: torch.Tensor, rows: int) -> torch.Tensor:
    """[heads, fewer rows, columns] with zeros below, up to so many rows."""
    return torch.nn.functional.pad(parts, (0, 0, 0, rows - parts.shape[1]))
