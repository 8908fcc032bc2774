"""Whether somebody watches, wraps or replaces a part of a fused layer: then it is called, as transformers calls it.

Hooks count, and any forward but those whose function the fused layers know: this package's, those of transformers and
torch. So a wrapper counts (accelerate's, which brings offloaded tensors, or a user's own), and a module of a user's own
class that was put into the place of a part.
"""

import inspect
from collections.abc import Callable
from types import MethodType

import torch
from torch.nn.modules import module as _modules

from .norms import rounds_as_rms_norm

__all__ = ["call", "is_watched", "ours", "plain_norm", "plain_silu", "to_write"]

# Functions, not their names: torch.compile before torch 2.15 traces the names of methods wrongly.
_forwards: set[Callable] = set()


def ours(forward: Callable) -> Callable:
    """Of a forward of this package, or one that kernelize may put in the place of another: it is no wrapper."""
    _forwards.add(forward)
    return forward


def is_watched(module: torch.nn.Module) -> bool:
    if module._forward_pre_hooks or any(map(_observes, module._forward_hooks.values())):
        return True
    return bool(_modules._global_forward_hooks or _modules._global_forward_pre_hooks) or _is_wrapped(module)


def plain_norm(norm: torch.nn.Module) -> bool:
    """Whether nobody watches it, and it computes what the operators do."""
    return not is_watched(norm) and rounds_as_rms_norm(type(norm))


def plain_silu(activation: torch.nn.Module) -> bool:
    from .experts import is_silu

    return not is_watched(activation) and is_silu(activation)


def call(module: torch.nn.Module, *args, more: dict, **kwargs):
    """module(*args, **kwargs), with `more` as further keywords if its forward takes them. A wrapper that takes what
    transformers gives, and nothing else, gets that."""
    if not _is_wrapped(module) or _takes(module.forward, more):
        kwargs |= more
    return module(*args, **kwargs)


def _takes(forward: Callable, keywords: dict) -> bool:
    try:
        parameters = inspect.signature(forward).parameters
    except (TypeError, ValueError):  # nobody can tell
        return False
    return keywords.keys() <= parameters.keys() or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _is_wrapped(module: torch.nn.Module) -> bool:
    forward = module.forward
    if not isinstance(forward, MethodType):
        return True
    if forward.__func__ in _forwards:
        return False
    return forward.__func__ is not type(module).forward or not _is_of_a_library(type(module))


@torch.compiler.assume_constant_result
def _is_of_a_library(kind: type) -> bool:
    """Whether a class has its forward from transformers or torch. Which of them it is whoever asks knows."""
    owner = next(each for each in kind.__mro__ if "forward" in vars(each))
    return owner.__module__.partition(".")[0] in ("transformers", "torch")


def _observes(hook: Callable) -> bool:
    # Those that record hidden states stay after the first call that asked for them, and do nothing in others.
    return getattr(hook, "__module__", None) != "transformers.utils.output_capturing"


def to_write(result: torch.Tensor, *modules: torch.nn.Module) -> torch.Tensor:
    """The result of these modules as memory that may be written: whoever watches one of them may have kept it."""
    return result.clone() if any(map(is_watched, modules)) else result
