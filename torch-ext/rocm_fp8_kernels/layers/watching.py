"""Whether somebody watches or wraps a module: then what a fused layer skips must be called, as transformers calls it.

Hooks count, and a forward in the module's place that is neither its class's nor one of this package's: accelerate's,
which brings offloaded tensors, or a user's own.
"""

from collections.abc import Callable
from types import MethodType

import torch
from torch.nn.modules import module as _modules

__all__ = ["is_watched", "ours", "to_write"]

# Functions, not their names: torch.compile before torch 2.15 traces the names of methods wrongly.
_forwards: set[Callable] = set()


def ours(forward: Callable) -> Callable:
    """Of a method that kernelize may put in the place of a forward: it is no wrapper."""
    _forwards.add(forward)
    return forward


def is_watched(module: torch.nn.Module) -> bool:
    if module._forward_pre_hooks or any(map(_observes, module._forward_hooks.values())):
        return True
    return bool(_modules._global_forward_hooks or _modules._global_forward_pre_hooks) or _is_wrapped(module)


def _is_wrapped(module: torch.nn.Module) -> bool:
    forward = module.forward
    if not isinstance(forward, MethodType):
        return True
    return forward.__func__ is not type(module).forward and forward.__func__ not in _forwards


def _observes(hook: Callable) -> bool:
    # Those that record hidden states stay after the first call that asked for them, and do nothing in others.
    return getattr(hook, "__module__", None) != "transformers.utils.output_capturing"


def to_write(result: torch.Tensor, *modules: torch.nn.Module) -> torch.Tensor:
    """The result of these modules as memory that may be written: whoever watches one of them may have kept it."""
    return result.clone() if any(map(is_watched, modules)) else result
