"""Mixtures of MXFP4 experts for real engines: what their checkpoints hold, and what they compute in transformers."""

from collections.abc import Callable, Iterator
from pathlib import Path

import safetensors.torch
import torch

from problems import checkpoints, mx, mx_checkpoints
from problems.mx import BLOCK
from problems.tiny_moe import expert_modules
from tests.settings import SEED


def rounded(kernel, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes, exponents as bytes, what they stand for, in x's dtype: exact) of x [..., K]"""
    codes, scale = mx_checkpoints.mxfp4(kernel, x)
    return codes, scale.view(torch.uint8), mx.values(codes, scale).to(x.dtype)


def matrices(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, stacked matrices [E, N, K]) of all experts; writing to them changes the model."""
    transposed = model.config.model_type == "gpt_oss"
    for name, module in expert_modules(model).items():
        for part in ("gate_up_proj", "down_proj"):
            stacked = getattr(module, part).data
            yield f"{name}.{part}", stacked.transpose(1, 2) if transposed else stacked


@torch.no_grad()
def write_gpt_oss(kernel, model: torch.nn.Module, folder: Path) -> None:
    """Of a model whose experts are rounded already: no code is lost."""
    model.save_pretrained(folder)
    tensors = checkpoints.stored(folder)
    for name, stacked in matrices(model):
        del tensors[name]
        codes, scale, _ = rounded(kernel, stacked.contiguous())
        tensors[f"{name}_blocks"] = codes.unflatten(-1, (-1, BLOCK // 2))
        tensors[f"{name}_scales"] = scale
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoints.configure(folder, dict(quant_method="mxfp4", modules_to_not_convert=[]))


@torch.no_grad()
def defined(kernel, inputs: str, model: torch.nn.Module, layer: int, x, weights, chosen) -> torch.Tensor:
    """float64 [T, D]: what a layer's experts make of x [T, D] by these weights and choices [T, k]. The values between
    the two products are rounded to x's dtype. inputs: what becomes of both, in fused_moe's words."""
    experts, gpt = model.model.layers[layer].mlp.experts, model.config.model_type == "gpt_oss"
    stacked = [s for name, s in matrices(model) if name.startswith(f"model.layers.{layer}.")]
    biases = [getattr(experts, f"{part}_bias") if gpt else torch.zeros(1, 1) for part in ("gate_up_proj", "down_proj")]
    (w13, w2), (b13, b2) = (tuple(each.double() for each in both) for both in (stacked, biases))

    def entering(values: torch.Tensor) -> torch.Tensor:
        return mx_checkpoints.entering(kernel, inputs, values.to(x.dtype))

    given, out = entering(x), torch.zeros(x.shape, dtype=torch.float64)
    for expert in range(len(w13)):
        rows, slot = (chosen == expert).nonzero(as_tuple=True)
        products = given[rows] @ w13[expert].t() + b13[expert % len(b13)]
        if gpt:
            gate, up = products[:, ::2].clamp(max=7.0), products[:, 1::2].clamp(-7.0, 7.0)
            hidden = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        else:
            gate, up = products.chunk(2, -1)
            hidden = gate * torch.sigmoid(gate) * up
        y = entering(hidden) @ w2[expert].t() + b2[expert % len(b2)]
        out.index_add_(0, rows, weights[rows, slot, None].double() * y)
    return out


@torch.no_grad()
def with_rounded_experts(kernel, model: torch.nn.Module) -> torch.nn.Module:
    """In place: what MXFP4 holds of them."""
    for _, stacked in matrices(model):
        stacked.copy_(rounded(kernel, stacked.contiguous())[2])
    return model.eval()


@torch.no_grad()
def gpt_oss(kernel, change: Callable[[torch.nn.Module], torch.nn.Module] = lambda model: model) -> torch.nn.Module:
    """A GptOss with random weights, those of its experts of MXFP4: biases, sinks, a window of 128; sizes that divide by
    32 and by no more. change: before they are rounded."""
    from transformers import GptOssConfig, GptOssForCausalLM

    generator = torch.Generator().manual_seed(SEED)
    rope = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=256)
    rope |= dict(beta_fast=32.0, beta_slow=1.0, truncate=False)
    sizes = dict(vocab_size=256, hidden_size=288, intermediate_size=352, num_hidden_layers=3, head_dim=64)
    sizes |= dict(num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    sizes |= dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    config = GptOssConfig(**sizes, rope_parameters=rope, max_position_embeddings=1024, eos_token_id=None)
    model = GptOssForCausalLM(config).to(torch.bfloat16)
    for name, weight in model.named_parameters():
        values = torch.randn(weight.shape, generator=generator)
        if "norm" in name:
            values = 1 + 0.5 * values
        elif "sinks" in name:  # as heavy as many tokens
            values = 3 + values
        elif "bias" in name:
            values = 0.5 * values
        elif "embed" not in name:  # stacks of experts are transposed
            values = values / weight.shape[1] ** 0.5
        weight.copy_(values * (3 if "gate_up_proj" in name else 1))  # some products are beyond the limit
    return with_rounded_experts(kernel, change(model))
