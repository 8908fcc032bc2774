"""Tensor parallelism: a quantised model becomes one rank's share of it.

    rank r of n   qkv_proj      heads [r / n, (r + 1) / n) of Q, K and V: rows of the weight
                  o_proj        the columns that these heads give: a partial sum
                  gate_up_proj  the same share of Gate's rows and of Up's
                  down_proj     the columns that they give: a partial sum

Partial sums are added by the communicator, in the norm behind them where possible (../../layers/decoder.py).
Embeddings, norms and the head are whole on each rank.
"""

import torch

from ...comm import Communicator
from .halves import FusedAttention, FusedMLP
from .linear import BLOCK, Fp8Linear

__all__ = ["parallelize"]


@torch.no_grad()
def parallelize(model: torch.nn.Module, communicator: Communicator) -> torch.nn.Module:
    """As quantization.parallelize."""
    layers = _layers(model)
    if communicator.ranks == 1:
        return model
    for name, layer in layers:
        if getattr(layer, "communicator", None) is not None:
            raise ValueError(f"{name} is one rank's share already")
        _check(name, layer, communicator.ranks)
    for _, layer in layers:
        _keep_share(layer, communicator.rank, communicator.ranks)
        layer.communicator = communicator
    return model


def _layers(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    found, split = [], set()
    for name, module in model.named_modules():
        attention, mlp = getattr(module, "self_attn", None), getattr(module, "mlp", None)
        if isinstance(attention, FusedAttention) and isinstance(mlp, FusedMLP):
            found.append((name, module))
            split.update(id(linear) for half in (attention, mlp) for linear in half.modules())
    for name, module in model.named_modules():
        if isinstance(module, Fp8Linear) and id(module) not in split:
            raise ValueError(f"{name} is in no decoder layer that is fused as a whole; only those are split")
    if not found:
        raise ValueError(f"{type(model).__name__} has no fused decoder layer; quantize or load it first")
    return found


def _check(name: str, layer: torch.nn.Module, ranks: int) -> None:
    config = layer.self_attn.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        raise ValueError(
            f"{name}: {heads} heads of queries, {kv_heads} of keys and values; {ranks} ranks split neither"
        )
    inner = layer.mlp.down_proj.in_features
    unit = BLOCK if layer.mlp.down_proj.weights == "block" else 1
    if inner % (ranks * unit):
        raise ValueError(f"{name}: {inner} inner values; {ranks} ranks need a multiple of {ranks * unit}")
    for linear, part in (("o_proj", heads * layer.self_attn.head_dim), ("qkv_proj", layer.self_attn.head_dim)):
        module = getattr(layer.self_attn, linear)
        of_rows = module.weights == "block" and module.weight_scale.shape[0] == module.out_features
        size = part // ranks if linear == "o_proj" else part * min(heads // ranks, max(kv_heads // ranks, 1))
        if module.weights == "block" and size % BLOCK and not (of_rows and linear == "qkv_proj"):
            raise ValueError(f"{name}: {linear}: a rank's {size} values hold no whole blocks of {BLOCK}")


def _keep_share(layer: torch.nn.Module, rank: int, ranks: int) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    d, heads, kv_heads = attention.head_dim, attention.heads, attention.kv_heads
    own, own_kv = heads // ranks, max(kv_heads // ranks, 1)
    # Fewer heads of keys than ranks: neighbours have the same one.
    first_kv = rank * kv_heads // ranks
    starts = (rank * own, heads + first_kv, heads + kv_heads + first_kv)
    rows = [(start * d, (start + count) * d) for start, count in zip(starts, (own, own_kv, own_kv))]
    _keep_rows(attention.qkv_proj, rows)
    _keep_columns(attention.o_proj, rank * own * d, (rank + 1) * own * d, bias=rank == 0)
    attention.heads, attention.kv_heads, attention.num_key_value_groups = own, own_kv, own // own_kv

    inner = mlp.down_proj.in_features
    first, last = rank * inner // ranks, (rank + 1) * inner // ranks
    _keep_rows(mlp.gate_up_proj, [(first, last), (inner + first, inner + last)])
    _keep_columns(mlp.down_proj, first, last, bias=rank == 0)


def _keep_rows(linear: Fp8Linear, parts: list[tuple[int, int]]) -> None:
    def rows_of(t: torch.Tensor, unit: int = 1) -> torch.Tensor:
        return torch.cat([t[first // unit : -(-last // unit)] for first, last in parts])

    of_rows = linear.weights == "block" and linear.weight_scale.shape[0] == linear.out_features
    linear.weight = rows_of(linear.weight.view(torch.uint8)).view(linear.weight.dtype)
    if linear.weights == "channel":
        linear.weight_scale = rows_of(linear.weight_scale[0])[None]
    elif linear.weights == "block":
        linear.weight_scale = rows_of(linear.weight_scale, 1 if of_rows else BLOCK)
    if linear.bias is not None:
        linear.bias = rows_of(linear.bias)
    linear.out_features = linear.weight.shape[0]


def _keep_columns(linear: Fp8Linear, first: int, last: int, *, bias: bool) -> None:
    linear.weight = linear.weight.view(torch.uint8)[:, first:last].contiguous().view(linear.weight.dtype)
    if linear.weights == "block":
        linear.weight_scale = linear.weight_scale[:, first // BLOCK : -(-last // BLOCK)].contiguous()
    if linear.bias is not None and not bias:
        linear.bias = None  # it counts once
    linear.in_features = last - first
