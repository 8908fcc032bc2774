"""Shapes of a file's tensors beside those that a model's settings ask for.

vLLM narrows a file's tensor to the rows and columns that a worker has. So rows that are too many are cut off, and one
number or one column is copied into all. Where a linear's tensor is too small, vLLM's loaders fail.
"""

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoeWeightScaleSupported
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, MergedColumnParallelLinear, QKVParallelLinear
from vllm.model_executor.layers.quantization.utils.ocp_mx_utils import OCP_MX_BLOCK_SIZE
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

__all__ = ["is_padded", "of_gpt_oss", "why_not"]

_CHANNEL = FusedMoeWeightScaleSupported.CHANNEL.value


def why_not(module: torch.nn.Module, name: str, own: torch.nn.Parameter, given: torch.Tensor, part: Any) -> str | None:
    """Why a file's tensor is none for this part of a module's parameter, by its shape."""
    shape = tuple(given.shape)
    if isinstance(module, LinearBase):
        wanted = _of_linear(module, own, part)
        fits = given.dim() != own.dim() or all(size <= most for size, most in zip(shape, wanted))
    elif isinstance(module, VocabParallelEmbedding) and name.endswith("weight"):
        wanted = (module.org_vocab_size, *own.shape[1:])
        fits = shape == wanted
    elif isinstance(module, RoutedExperts) and own.dim() > 1:
        if part[0] is None:
            wanted = _of_stack(module, name, own)
        elif given.dim() > 2:  # vLLM takes it for what all experts here have, and copies one into all
            wanted = (len(own), *shape[1:])
        else:
            wanted = _of_expert(module, own, part) if _has_files_layout(module, name, own) else shape
        fits = shape == tuple(wanted)
    else:
        return None
    return None if fits else f"{list(wanted)} by the settings, {list(shape)} in the checkpoint"


def _of_linear(linear: LinearBase, own: torch.nn.Parameter, part: Any) -> tuple[int, ...]:
    """The most that vLLM reads of a part, by all workers together."""
    rows = {}
    if isinstance(linear, QKVParallelLinear):
        heads = dict(q=linear.total_num_heads, k=linear.total_num_kv_heads, v=linear.total_num_kv_heads)
        rows = {
            each: count * (linear.v_head_size if each == "v" else linear.head_size) for each, count in heads.items()
        }
    elif isinstance(linear, MergedColumnParallelLinear):
        rows = dict(enumerate(linear.output_sizes))
    whole = sum(rows.values()) or linear.output_size
    most = sum(rows[each] for each in part) if isinstance(part, tuple) else rows.get(part, whole)
    if own.dim() and len(own) != sum(linear.output_partition_sizes):  # scales of blocks or of parts
        block = getattr(linear, "weight_block_size", None)
        most = -(-most // block[0]) if block else len(own) * linear.tp_size
    workers = linear.input_size // getattr(linear, "input_size_per_partition", linear.input_size)
    return most, *(size * workers for size in own.shape[1:])


def _has_files_layout(experts: RoutedExperts, name: str, own: torch.nn.Parameter) -> bool:
    """Whether rows and columns are a file's, but for padding, what other workers have, and gates beside ups."""
    refined = "_scale" in name and getattr(experts.quant_method, "weight_scale_refine", None)  # to smaller blocks
    has_axes = own.dim() > 2 or name.endswith("bias")
    return has_axes and not getattr(own, "is_transposed", False) and not refined


def _of_expert(experts: RoutedExperts, own: torch.nn.Parameter, part: Any) -> tuple[int, ...]:
    """Of one expert, by all workers together: its weights, biases, and scales. vLLM leaves padding as it is. Of "w13"
    gates and ups are one tensor."""
    config, (rows, *columns) = experts.moe_config, own.shape[1:]
    sizes = [(config.intermediate_size, config.intermediate_size_per_partition)]
    sizes.append((config.hidden_dim_unpadded, config.hidden_dim))
    if part[0] == "w2":
        sizes.reverse()
    elif part[0] != "w13" and config.is_act_and_mul:
        rows //= 2
    wanted = [-(-size * whole // here) for size, (whole, here) in zip((rows, *columns), sizes)]
    return (wanted[0], 1) if getattr(own, "quant_method", None) == _CHANNEL else tuple(wanted)


def _of_stack(experts: RoutedExperts, name: str, own: torch.nn.Parameter) -> tuple[int, ...]:
    """Of all experts, as gpt-oss' files have them. Its model has cut a worker's share: whole blocks, of which the last
    worker has fewer."""
    config = experts.moe_config
    share = -(-config.intermediate_size // (OCP_MX_BLOCK_SIZE * config.tp_size)) * OCP_MX_BLOCK_SIZE
    inner = max(0, min(share, config.intermediate_size - config.tp_rank * share))
    sizes = [(inner, config.intermediate_size_per_partition), (config.hidden_dim_unpadded, config.hidden_dim)]
    if ".w2_" in f".{name}":
        sizes.reverse()
    return len(own), *(size * unpadded // padded for size, (unpadded, padded) in zip(own.shape[1:], sizes))


def of_gpt_oss(experts: RoutedExperts, down: bool, kind: str) -> tuple[int, ...]:
    """Of all experts and all workers, as a file of gpt-oss has it. kind: "blocks", "scales" or "bias"."""
    config = experts.moe_config
    rows, columns = 2 * config.intermediate_size, config.hidden_dim_unpadded
    if down:
        rows, columns = columns, config.intermediate_size
    blocks = columns // OCP_MX_BLOCK_SIZE
    of_row = dict(blocks=(blocks, OCP_MX_BLOCK_SIZE // 2), scales=(blocks,), bias=())
    return config.num_logical_experts, rows, *of_row[kind]


def is_padded(experts: RoutedExperts) -> bool:
    """Whether some of their rows or columns are in no file. A worker's share of gpt-oss may have no others."""
    config = experts.moe_config
    sizes = config.hidden_dim, config.intermediate_size_per_partition
    return sizes != (config.hidden_dim_unpadded, config.intermediate_size_per_partition_unpadded)
