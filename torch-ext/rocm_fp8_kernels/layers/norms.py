"""Which RMSNorms round as the operator rms_norm does.

transformers opens more than a hundred classes to kernels by the one name "RMSNorm". Most round to the input's type
before the weight is multiplied, as Llama's; some multiply in float32 and round once. A name does not say which, so each
class is asked once: its own forward computes rows that tell.
"""

import functools
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import reference

__all__ = ["rounds_as_rms_norm"]

_WIDTH, _EPSILON = 96, 0.25


@torch.compiler.assume_constant_result
def rounds_as_rms_norm(kind: type[torch.nn.Module]) -> bool:
    """Whether `kind.forward` reads `weight` and `variance_epsilon` alone, and gives rms_norm's bytes in float16 and
    bfloat16: of ordinary rows, very small and very large ones, zeros, infinities and NaN."""
    return _asked(kind)


@functools.cache
def _asked(kind: type[torch.nn.Module]) -> bool:
    # Numbers, not those of a trace or an export that may be under way.
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
        return all(_same(kind, dtype) for dtype in (torch.bfloat16, torch.float16))


def _same(kind: type[torch.nn.Module], dtype: torch.dtype) -> bool:
    drawn = torch.randn(18, _WIDTH, generator=torch.Generator().manual_seed(0), device="cpu")
    weight, x = drawn[0].to(dtype), drawn[1:].to(dtype)
    x[9:11] *= torch.finfo(dtype).max / 8  # some overflow
    x[11:13] *= torch.finfo(dtype).smallest_normal
    x[13] = 0.0
    x[14, ::7], x[15, 3], x[16, 5] = float("inf"), float("-inf"), float("nan")
    try:
        own = kind.forward(SimpleNamespace(weight=weight, variance_epsilon=_EPSILON), x.clone())
    except Exception:  # it reads what the operator does not know
        return False
    if not isinstance(own, torch.Tensor) or own.dtype != dtype:
        return False
    return torch.equal(own.view(torch.int16), reference.rms_norm(x, weight, _EPSILON).view(torch.int16))
