"""Tensor parallelism: a quantised model becomes one rank's share of it.

    rank r of n   qkv_proj      heads [r / n, (r + 1) / n) of Q, K and V: rows of the weight
                  o_proj        the columns that these heads give: a partial sum
                  gate_up_proj  the same share of Gate's rows and of Up's
                  down_proj     the columns that they give: a partial sum
    experts       of each one the same: rows of Gate and Up, columns of Down. So do shared experts, in the same sum
    q_b_proj, kv_b_proj    DeepSeek's attention: the rows of a share of the heads; o_proj as above

Partial sums are added by the communicator, in the norm behind them where possible (decoder.py).
Embeddings, norms, routers, DeepSeek's q_a and kv_a, and the head are whole on each rank: so all choose the same experts
and hold the same latent cache.
"""

import torch

from ...comm import Communicator
from ...ops.mx import MX_BLOCK
from ..codes import as_bytes, join
from .experts import Fp8Experts
from .halves import AttentionHalf, FusedAttention, FusedMLP
from .latent import FusedLatentAttention
from .linear import BLOCK, QuantizedLinear
from .moe import FusedMoe

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
        if isinstance(attention, AttentionHalf) and isinstance(mlp, FusedMLP | FusedMoe):
            found.append((name, module))
            split.update(id(part) for half in (attention, mlp) for part in half.modules())
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLinear | Fp8Experts) and id(module) not in split:
            raise ValueError(f"{name} is in no decoder layer that is fused as a whole; only those are split")
    if not found:
        raise ValueError(f"{type(model).__name__} has no fused decoder layer; quantize or load it first")
    return found


# --- what cannot be split ---


def _check(name: str, layer: torch.nn.Module, ranks: int) -> None:
    if isinstance(layer.self_attn, FusedLatentAttention):
        _check_latent_attention(name, layer.self_attn, ranks)
    else:
        _check_attention(name, layer.self_attn, ranks)
    mlp = layer.mlp
    if not isinstance(mlp, FusedMoe):
        _check_inner(name, mlp.down_proj.in_features, _unit(mlp.down_proj), ranks)
        return
    _check_inner(f"{name}: experts", mlp.experts.intermediate_size, _unit(mlp.experts), ranks)
    shared = getattr(mlp, "shared_experts", None)
    if shared is None:
        return
    if not isinstance(shared, FusedMLP):
        raise ValueError(f"{name}: shared_experts are not fused; only what is fused as a whole is split")
    _check_inner(f"{name}: shared_experts", shared.down_proj.in_features, _unit(shared.down_proj), ranks)


def _unit(module: QuantizedLinear | Fp8Experts) -> int:
    """How many inner values share a scale."""
    if module.format != "fp8":
        return MX_BLOCK
    return BLOCK if module.inputs == "group" else 1


def _check_inner(name: str, inner: int, unit: int, ranks: int) -> None:
    needed = ranks * unit
    if inner % needed:
        raise ValueError(f"{name}: {inner} inner values; {ranks} ranks need a multiple of {needed}")


def _check_blocks(name: str, linear: str, module: QuantizedLinear, size: int, *, rows: bool) -> None:
    """size: of a rank's share. Rows with scales of their own are cut anywhere: MX ones, and joined ones whose blocks
    meet."""
    unit, of_rows = _unit(module), rows and module.weight_scale.shape[0] == module.out_features
    if size % unit and not of_rows:
        raise ValueError(f"{name}: {linear}: a rank's {size} values hold no whole blocks of {unit}")


def _check_attention(name: str, attention: FusedAttention, ranks: int) -> None:
    heads, kv_heads = attention.config.num_attention_heads, attention.config.num_key_value_heads
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        raise ValueError(
            f"{name}: {heads} heads of queries, {kv_heads} of keys and values; {ranks} ranks split neither"
        )
    d, own = attention.head_dim, heads // ranks
    _check_blocks(name, "o_proj", attention.o_proj, own * d, rows=False)
    _check_blocks(name, "qkv_proj", attention.qkv_proj, d * min(own, max(kv_heads // ranks, 1)), rows=True)


def _check_latent_attention(name: str, attention: FusedLatentAttention, ranks: int) -> None:
    heads = attention.num_heads
    if heads % ranks:
        raise ValueError(f"{name}: {heads} heads; {ranks} ranks do not split them")
    own = heads // ranks
    _check_blocks(name, "o_proj", attention.o_proj, own * attention.v_head_dim, rows=False)
    queries = "q_kv_a_proj" if attention.q_lora_rank is None else "q_b_proj"
    _check_blocks(name, queries, getattr(attention, queries), own * attention.qk_head_dim, rows=True)
    of_head = attention.qk_nope_head_dim + attention.v_head_dim
    _check_blocks(name, "kv_b_proj", attention.kv_b_proj, own * of_head, rows=True)


# --- a rank's share ---


def _keep_share(layer: torch.nn.Module, rank: int, ranks: int) -> None:
    if isinstance(layer.self_attn, FusedLatentAttention):
        _keep_latent_heads(layer.self_attn, rank, ranks)
    else:
        _keep_heads(layer.self_attn, rank, ranks)
    mlp = layer.mlp
    if isinstance(mlp, FusedMoe):
        keep_inner_of_experts(mlp.experts, rank, ranks)
        mlp = getattr(mlp, "shared_experts", None)
    if mlp is not None:
        _keep_inner(mlp, rank, ranks)


def _keep_heads(attention: FusedAttention, rank: int, ranks: int) -> None:
    d, heads, kv_heads = attention.head_dim, attention.heads, attention.kv_heads
    own, own_kv = heads // ranks, max(kv_heads // ranks, 1)
    # Fewer heads of keys than ranks: neighbours have the same one.
    first_kv = rank * kv_heads // ranks
    starts = (rank * own, heads + first_kv, heads + kv_heads + first_kv)
    rows = [(start * d, (start + count) * d) for start, count in zip(starts, (own, own_kv, own_kv))]
    _keep_rows(attention.qkv_proj, rows)
    _keep_columns(attention.o_proj, rank * own * d, (rank + 1) * own * d, bias=rank == 0)
    attention.heads, attention.kv_heads, attention.num_key_value_groups = own, own_kv, own // own_kv


def _keep_latent_heads(attention: FusedLatentAttention, rank: int, ranks: int) -> None:
    heads = attention.num_heads
    own = heads // ranks

    def of_heads(size: int) -> tuple[int, int]:
        return rank * own * size, (rank + 1) * own * size

    queries = of_heads(attention.qk_head_dim)
    if attention.q_lora_rank is None:
        joined = attention.q_kv_a_proj
        _keep_rows(joined, [queries, (heads * attention.qk_head_dim, joined.out_features)])
    else:
        _keep_rows(attention.q_b_proj, [queries])
    _keep_rows(attention.kv_b_proj, [of_heads(attention.qk_nope_head_dim + attention.v_head_dim)])
    _keep_columns(attention.o_proj, *of_heads(attention.v_head_dim), bias=rank == 0)
    attention.num_heads = own
    attention.absorb()


def _keep_inner(mlp: FusedMLP, rank: int, ranks: int) -> None:
    inner = mlp.down_proj.in_features
    first, last = rank * inner // ranks, (rank + 1) * inner // ranks
    _keep_rows(mlp.gate_up_proj, [(first, last), (inner + first, inner + last)])
    _keep_columns(mlp.down_proj, first, last, bias=rank == 0)


def keep_inner_of_experts(experts: Fp8Experts, rank: int, ranks: int) -> None:
    inner = experts.intermediate_size
    first, last = rank * inner // ranks, (rank + 1) * inner // ranks

    def of_gate_up(t: torch.Tensor, unit: int = 1) -> torch.Tensor:
        if experts.gate.get("interleaved"):
            return join([t[:, 2 * first : 2 * last]])
        return join([t[:, (at + first) // unit : (at + last) // unit] for at in (0, inner)], dim=1)

    def of_down(t: torch.Tensor, unit: int) -> torch.Tensor:
        return as_bytes(t)[:, :, first // unit : last // unit].contiguous().view(t.dtype)

    if (kind := experts.weights()["gate_up_proj"]) != "tensor":
        experts.gate_up_scale = of_gate_up(experts.gate_up_scale, BLOCK if kind == "block" else 1)
    experts.gate_up_proj = of_gate_up(experts.gate_up_proj)
    experts.down_proj = of_down(experts.down_proj, 2 if experts.format == "mxfp4" else 1)
    if (unit := _unit(experts)) > 1:
        experts.down_scale = of_down(experts.down_scale, unit)
    if experts.gate_up_bias is not None:
        experts.gate_up_bias = of_gate_up(experts.gate_up_bias)
    if rank > 0:
        experts.down_bias = None  # it counts once


def _keep_rows(linear: QuantizedLinear, parts: list[tuple[int, int]]) -> None:
    def rows_of(t: torch.Tensor, unit: int = 1) -> torch.Tensor:
        return join([t[first // unit : -(-last // unit)] for first, last in parts])

    of_rows = linear.weight_scale.shape[0] == linear.out_features
    if linear.weights == "channel":
        linear.weight_scale = rows_of(linear.weight_scale[0])[None]
    elif linear.weights != "tensor":
        linear.weight_scale = rows_of(linear.weight_scale, 1 if of_rows else BLOCK)
    linear.weight = rows_of(linear.weight)
    if linear.bias is not None:
        linear.bias = rows_of(linear.bias)


def _keep_columns(linear: QuantizedLinear, first: int, last: int, *, bias: bool) -> None:
    def columns_of(t: torch.Tensor, unit: int) -> torch.Tensor:
        return as_bytes(t)[:, first // unit : -(-last // unit)].contiguous().view(t.dtype)

    linear.weight = columns_of(linear.weight, 2 if linear.format == "mxfp4" else 1)
    if (unit := _unit(linear)) > 1:
        linear.weight_scale = columns_of(linear.weight_scale, unit)
    if linear.bias is not None and not bias:
        linear.bias = None  # it counts once
