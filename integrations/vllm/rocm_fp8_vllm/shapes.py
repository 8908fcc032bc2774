"""Shapes of a file's tensors beside those that a model's settings ask for.

vLLM narrows a file's tensor to the rows and columns that a worker has. So rows that are too many are cut off, and one
number or one column is copied into all. Where a linear's tensor is too small, vLLM's loaders fail.
"""

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, MergedColumnParallelLinear, QKVParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

__all__ = ["is_padded", "why_not"]

# Of experts' weights: two numbers a byte, and a number each.
_FOUR_BITS, _EIGHT_BITS = (torch.uint8, torch.int8), (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


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
            wanted = _of_stack(module, name, own, given)
        elif _is_weight(name, own, given):
            wanted = _of_expert(module, own, part)
        else:  # scales, of which one would be copied into all
            wanted = own.shape[1:] if shape == () and own.dim() > 2 else shape
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


def _is_weight(name: str, own: torch.nn.Parameter, given: torch.Tensor) -> bool:
    """Of one expert, in a format whose rows are rows of the file."""
    return name.endswith(("weight", "weight_packed")) and own.dtype in (*_FOUR_BITS, *_EIGHT_BITS) and given.dim() < 3


def _of_expert(experts: RoutedExperts, own: torch.nn.Parameter, part: Any) -> tuple[int, int]:
    config = experts.moe_config
    rows, columns = config.intermediate_size, config.hidden_dim_unpadded
    if part[0] == "w2":
        rows, columns = columns, rows
    return rows, columns // 2 if own.dtype in _FOUR_BITS else columns


def _of_stack(experts: RoutedExperts, name: str, own: torch.nn.Parameter, given: torch.Tensor) -> tuple[int, ...]:
    """Of all experts, as gpt-oss' files have them. Its model cuts each worker's share, which may be any."""
    config = experts.moe_config
    sizes = [(config.intermediate_size_per_partition_unpadded, config.intermediate_size_per_partition)]
    sizes.append((config.hidden_dim_unpadded, config.hidden_dim))
    if ".w2_" in f".{name}":
        sizes.reverse()
    wanted = [size * unpadded // padded for size, (unpadded, padded) in zip(own.shape[1:], sizes)]
    split = 1 if ".w2_" in f".{name}" else 0
    if config.tp_size > 1 and given.dim() == own.dim() and split < len(wanted):
        wanted[split] = given.shape[1 + split]
    return len(own), *wanted


def is_padded(experts: RoutedExperts) -> bool:
    """Whether some of their rows or columns are in no file. A worker's share of gpt-oss may have no others."""
    config = experts.moe_config
    sizes = config.hidden_dim, config.intermediate_size_per_partition
    return sizes != (config.hidden_dim_unpadded, config.intermediate_size_per_partition_unpadded)
