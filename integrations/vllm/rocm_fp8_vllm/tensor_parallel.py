"""Sums over tensor-parallel workers, in one operator with the norm behind them.

vLLM's row-parallel linears, O and Down, end with an all-reduce of the workers' products. In a fused decoder layer they
hand on their own part instead, and the norm behind them adds: all_reduce_add_rms_norm_fp8. `PartialSum` is no tensor:
whatever else is done with it is done with the sum, or fails. Where no such norm takes it, the linear forms the sum.

Sums are formed by the package's Communicator over vLLM's tensor-parallel group. Each one's input depends on the sum
before it, so all workers form them in one order, compiled or not.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import MethodType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.modules import module as _modules
from torch.utils._pytree import tree_map
from vllm import envs
from vllm.distributed.parallel_state import GroupCoordinator, get_tp_group
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.platforms import current_platform

from . import SUMS, is_on
from .kernel import kernel

__all__ = ["PartialSum", "connect", "operators", "whole"]

_log = logging.getLogger("vllm.rocm_fp8_kernels")


# --- a part of a sum ---


class PartialSum:
    """This worker's part of a sum over workers. The sum is formed once, by whatever computes with this: on all workers,
    or the communicator raises an error."""

    part = _sum = None

    def __init__(self, part: torch.Tensor):
        self.part = part

    @property
    def is_formed(self) -> bool:
        return self._sum is not None

    def formed(self) -> torch.Tensor:
        if self._sum is None:
            self._sum = operators.all_reduce(self.part)
        return self._sum

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(whole, (args, kwargs or {}))
        return function(*args, **kwargs)

    # DeepSeek's layers ask for these, of which no sum need be formed.
    @property
    def dtype(self) -> torch.dtype:
        return self.part.dtype

    @property
    def shape(self) -> torch.Size:
        return self.part.shape

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.formed(), name)


def _of_sum(name: str):
    def method(self, *arguments):
        return getattr(self.formed(), name)(*map(whole, arguments))

    method.__name__ = name
    return method


for _name in ("add", "sub", "mul", "truediv", "matmul"):
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(PartialSum, _method, _of_sum(_method))
for _method in ("__neg__", "__getitem__", "__setitem__", "__len__", "__iter__"):
    setattr(PartialSum, _method, _of_sum(_method))


def whole(x: Any) -> Any:
    """The sum that x is a part of, or x itself."""
    return x.formed() if isinstance(x, PartialSum) else x


# --- who hands on, who takes ---


class _Onward(NamedTuple):
    """Where a row-parallel linear's result goes. In a tuple, so that no module becomes a submodule."""

    norm: torch.nn.Module | None  # which quantises; None: the linear forms the sum
    through: tuple[torch.nn.Module, ...]  # modules that return the result or are called with it

    def takes(self, part: torch.Tensor) -> bool:
        if self.norm is None or part.dtype != self.norm.weight.dtype or not self.norm.rocm_fp8_feeds.takes_fp8():
            return False
        return not (_modules._global_forward_hooks or _modules._global_forward_pre_hooks) and not any(
            module._forward_hooks or module._forward_pre_hooks for module in (self.norm, *self.through)
        )


def _forward(self: RowParallelLinear, input_: Any) -> Any:
    """RowParallelLinear's own, but for the sum. A LoRA's module around it does not call it."""
    bias = None if self.tp_rank > 0 or self.skip_bias_add else self.bias
    part = self.quant_method.apply(self, input_, bias)
    if self.rocm_fp8_onward.takes(part):
        output = PartialSum(part)
    else:
        output = operators.all_reduce(part)
    if not self.return_bias:
        return output
    return output, self.bias if self.skip_bias_add else None


def connect(model: torch.nn.Module, layers: Iterable[torch.nn.Module]) -> None:
    """Of a model whose norms are fused, in place. Collective: all workers of a group have the same layers.

    layers: decoder layers of `fusion`, each a norm, attention, a norm and an MLP.
    """
    if not is_on(SUMS):
        return
    onward = [
        (linear, _Onward(norm if norm is not None and "rocm_fp8_feeds" in norm.__dict__ else None, through))
        for layer, following in _with_following(model, layers)
        for linear, norm, through in _results(layer, following)
        if _sums(linear)
    ]
    taken = sum(each.norm is not None for _, each in onward)
    if not taken or communicator() is None:
        return
    for linear, each in onward:
        linear.rocm_fp8_onward = each
        linear.forward = MethodType(_forward, linear)  # its class stays what LoRA asks for
    _log.info("rocm-fp8-kernels: %d norms form the sums over %d workers", taken, get_tp_group().world_size)


def _with_following(model: torch.nn.Module, layers: Iterable[torch.nn.Module]) -> list[tuple]:
    """(layer, the one of them that stands behind it in a list of modules, or None)"""
    known = {id(layer): layer for layer in layers}
    lists = (each for each in model.modules() if isinstance(each, torch.nn.ModuleList))
    following = {id(first): known.get(id(second)) for each in lists for first, second in pairwise(each)}
    return [(layer, following.get(id(layer))) for layer in known.values()]


def _results(layer: torch.nn.Module, following: torch.nn.Module | None) -> Iterator[tuple]:
    """(a linear, the norm that its result goes to, or None, the modules on the way) for O and Down of a layer"""
    attention, mlp = layer.self_attn, getattr(layer, "mlp", None)
    linear, latent = getattr(attention, "o_proj", None), getattr(attention, "mla_attn", None)
    yield linear, layer.post_attention_layernorm, (linear, attention, *((latent,) if latent is not None else ()))
    linear = getattr(mlp, "down_proj", None)
    if following is None:
        yield linear, None, ()
    else:
        yield linear, following.input_layernorm, (linear, mlp, layer, following)


def _sums(linear: torch.nn.Module | None) -> bool:
    if type(linear) is not RowParallelLinear or "forward" in linear.__dict__ or not hasattr(linear, "rocm_fp8_linear"):
        return False
    return linear.tp_size > 1 and linear.reduce_results and linear.input_is_parallel


# --- the communicator ---

_group: GroupCoordinator | None = None
_communicator = None


def communicator():
    """This worker's, over vLLM's tensor-parallel group; made at the group's first call, which is collective, and closed
    before the group ends. None, after one line that says why: the sums stay vLLM's."""
    global _group, _communicator
    group = get_tp_group()
    if group is not _group:
        _group, _communicator = group, _make(group)
    return _communicator


def _make(group: GroupCoordinator):
    made = reason = None
    try:
        made = kernel.comm.Communicator(
            group.cpu_group if current_platform.is_cpu() else group.device_group,
            # As long as vLLM waits for a step: workers compile at their own pace.
            timeout=min(max(envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, 1), 3600),
            device=group.device,
        )
    except Exception as error:  # ranks on several hosts, more than 8, GPUs that do not see each other
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    reasons: list[str | None] = [None] * group.world_size
    dist.all_gather_object(reasons, reason, group=group.cpu_group)
    if any(reasons):
        if made is not None:
            made.__exit__(RuntimeError, None, None)  # the others have none
        _log.warning("rocm-fp8-kernels: sums over workers stay vLLM's: %s", next(filter(None, reasons)))
        return None
    destroy = group.destroy

    def close_and_destroy() -> None:
        close()
        destroy()

    group.destroy = close_and_destroy
    return made


def close() -> None:
    """Collective, at the worker's end."""
    global _group, _communicator
    closing, _group, _communicator = _communicator, None, None
    if closing is None:
        return
    try:
        closing.close()
    except RuntimeError as error:  # another worker has ended without it
        closing.__exit__(type(error), error, None)


def _opened():
    if _communicator is None:
        raise RuntimeError("rocm-fp8-kernels: a sum over workers after their communicator was closed")
    return _communicator


# --- operators, which find the communicator themselves: no graph holds it ---

_library = torch.library.Library("rocm_fp8_vllm", "FRAGMENT")
_library.define("all_reduce(Tensor part) -> Tensor")
_library.define(
    "all_reduce_add_rms_norm_fp8(Tensor part, Tensor(a!) residual, Tensor weight, Tensor scale, float epsilon, *,"
    " ScalarType out_dtype) -> Tensor"
)
_library.define(
    "all_reduce_add_rms_norm_dynamic_fp8(Tensor part, Tensor(a!) residual, Tensor weight, float epsilon, *,"
    " str scaling, int group_size=128, bool power_of_two=False, Tensor? scale_ub=None, bool column_major_scales=False,"
    " ScalarType out_dtype) -> (Tensor, Tensor)"
)
operators = torch.ops.rocm_fp8_vllm


def _all_reduce(part):
    return _opened().all_reduce(part)


def _all_reduce_fake(part):
    return part.new_empty(part.shape)


def _static(part, residual, weight, scale, epsilon, *, out_dtype):
    return _opened().all_reduce_add_rms_norm_fp8(part, residual, weight, scale, epsilon, out_dtype=out_dtype)


def _static_fake(part, residual, weight, scale, epsilon, *, out_dtype):
    return part.new_empty(part.shape, dtype=out_dtype)


def _dynamic(part, residual, weight, epsilon, **keywords):
    return _opened().all_reduce_add_rms_norm_dynamic_fp8(part, residual, weight, epsilon, **keywords)


def _dynamic_fake(part, residual, weight, epsilon, **keywords):
    return kernel.rms_norm_dynamic_fp8(part, weight, epsilon, **keywords)


for _name, _function, _fake in (
    ("all_reduce", _all_reduce, _all_reduce_fake),
    ("all_reduce_add_rms_norm_fp8", _static, _static_fake),
    ("all_reduce_add_rms_norm_dynamic_fp8", _dynamic, _dynamic_fake),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"rocm_fp8_vllm::{_name}", _fake, lib=_library)
