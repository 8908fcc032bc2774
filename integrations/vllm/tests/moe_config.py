"""What vLLM knows of a mixture before it is made, for choices of experts without an engine."""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation


def moe_config(parallel: dict | None = None, **changes) -> SimpleNamespace:
    """Attributes of vLLM's FusedMoEConfig."""
    alone = dict(
        tp_size=1, dp_size=1, use_all2all_kernels=False, enable_eplb=False, use_batched_activation_format=False
    )
    default = dict(in_dtype=torch.bfloat16, has_bias=False, moe_backend="auto", is_act_and_mul=True)
    default |= dict.fromkeys(("swiglu_alpha", "swiglu_beta", "swiglu_limit"))
    default |= dict.fromkeys(("activation_situ_beta", "activation_situ_linear_beta"))
    default |= dict(activation=MoEActivation.SILU, is_lora_enabled=False, has_hash_routing=False)
    default |= dict(routing_method=None, router_logits_dtype=None, hidden_dim=256, intermediate_size_per_partition=192)
    default |= dict(require_decomposed_backend=False)  # vLLM 0.33 reads it
    return SimpleNamespace(**(default | changes), moe_parallel_config=SimpleNamespace(**alone | (parallel or {})))


class Routed:
    """Rows that random experts are chosen for, with weights. mapped: of twice as many, this rank's every second one."""

    def __init__(self, generator: torch.Generator, rows: int, experts: int, top: int, mapped: bool):
        self.everyone = 2 * experts if mapped else experts
        of_rank = [e // 2 if e % 2 else -1 for e in range(self.everyone)]
        self.expert_map = torch.tensor(of_rank, dtype=torch.int32) if mapped else None
        chosen = [torch.randperm(self.everyone, generator=generator)[:top] for _ in range(rows)]
        self.chosen = torch.stack(chosen).to(torch.int32)
        self.weights = torch.rand(rows, top, generator=generator)

    def added_up(self, y: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
        """float64 [rows, D]. y: what an expert of this rank makes of a row."""
        total = []
        for row, chosen in enumerate(self.chosen.tolist()):
            here = chosen if self.expert_map is None else self.expert_map[chosen].tolist()
            of_row = [w * y(expert, row) for w, expert in zip(self.weights[row].double(), here) if expert >= 0]
            total.append(sum(of_row, torch.zeros_like(y(0, row))))
        return torch.stack(total)

    def call(self, x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, activation: MoEActivation) -> dict:
        """What vLLM calls its experts with; they write to `output`."""
        nothing = dict.fromkeys(("a1q_scale", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta"))
        given = dict(output=torch.empty_like(x), hidden_states=x, w1=w13, w2=w2, activation=activation)
        given |= dict(topk_weights=self.weights, topk_ids=self.chosen, expert_map=self.expert_map)
        return nothing | given | dict(global_num_experts=self.everyone)
