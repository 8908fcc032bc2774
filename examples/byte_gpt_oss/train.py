#!/usr/bin/env python3
"""Train the byte-level gpt-oss on the running interpreter's standard library.

    python -m examples.byte_gpt_oss.train --steps 4500 --rate 2e-3      # the checkpoint: 204 s of an H200

Text, schedule and measurement are those of the byte-level Llama (examples/byte_llama). What gpt-oss has and others have
not is here: sinks, layers that see 128 tokens by turns with layers that see all, experts with biases, their gate, and
rotation by YaRN. Experts are kept busy by a loss, transformers' own for this model.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import GptOssConfig

from examples.byte_deepseek.train import parse_arguments, run
from examples.byte_llama import corpus

CHECKPOINT = Path(__file__).resolve().parent / "checkpoint"


def model_config(**changes) -> GptOssConfig:
    """4.0 million parameters, of which a token takes 1.7; `changes` are fields of GptOssConfig."""
    rope = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=256)
    rope |= dict(beta_fast=32.0, beta_slow=1.0, truncate=False)
    fields = dict(
        hidden_size=256,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_local_experts=8,
        num_experts_per_tok=2,
        rope_parameters=rope,
        router_aux_loss_coef=0.01,
        output_router_logits=True,
        pad_token_id=None,
    )
    return GptOssConfig(**(corpus.CONFIG | fields | changes))


def as_one_mlp(
    experts: torch.nn.Module, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """All experts as one MLP, as of the byte-level DeepSeek.

    hidden [tokens, hidden]; chosen, weights [tokens, top k].
    """
    count = len(experts.gate_up_proj)
    of_expert = weights.new_zeros(len(hidden), count).scatter(1, chosen, weights)
    both = F.linear(hidden, experts.gate_up_proj.transpose(1, 2).flatten(0, 1), experts.gate_up_proj_bias.flatten())
    between = experts._apply_gate(both.view(len(hidden), count, -1)) * of_expert[..., None]
    added = F.linear(between.flatten(1), experts.down_proj.flatten(0, 1).t())
    return (added + of_expert @ experts.down_proj_bias).to(hidden.dtype)


def main(arguments: list[str] | None = None) -> int:
    settings, _, dropout = parse_arguments(arguments, "gpt-oss", CHECKPOINT, has_dense=False)
    return run(settings, model_config(max_position_embeddings=settings.length), dropout, as_one_mlp)


if __name__ == "__main__":
    sys.exit(main())
