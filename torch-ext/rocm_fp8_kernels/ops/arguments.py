"""Checks that Python makes before it calls the binding, which checks all other arguments.

Python checks an argument where it allocates a result from it, copies it, or would itself fail on it. Errors are like
the binding's: RuntimeError, `<operator>: <argument>: what it is; what is allowed`.
"""

from collections.abc import Callable
from typing import NoReturn

import torch

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
SCALES = (torch.float32, torch.float8_e8m0fnu)
WIDE = (torch.bfloat16, torch.float16, torch.float32)

_Tensor = torch.Tensor  # looked up for each argument of each call


def refuse(operator: str, argument: str, why: str) -> NoReturn:
    raise RuntimeError(f"{operator}: {argument}: {why}")


def check_tensors(operator: str, **arguments: torch.Tensor) -> None:
    for name in arguments:
        if not isinstance(arguments[name], _Tensor):
            refuse(operator, name, f"{type(arguments[name]).__name__}; needs a tensor")


def check_dims(operator: str, name: str, x: torch.Tensor, least: int, needs: str) -> None:
    if x.dim() < least:
        refuse(operator, name, f"{x.dim()} dimensions (shape {list(x.shape)}); needs {needs}")


def check_no_self_overlap(operator: str, name: str, x: torch.Tensor) -> None:
    reach = 0  # of the dimensions with smaller strides, in elements
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape) if n > 1):
        if stride <= reach:
            refuse(operator, name, f"shape {list(x.shape)} with strides {list(x.stride())} overlaps itself")
        reach += stride * (size - 1)


def bytes_of_e8m0(operator: str, name: str, scale: torch.Tensor) -> torch.Tensor:
    """A GEMM's scale as the operators take it: Inductor compiles none with an argument of float8_e8m0fnu itself."""
    if scale.dtype not in SCALES:
        refuse(operator, name, f"dtype {scale.dtype}; allowed: {', '.join(map(str, SCALES))}")
    return scale.view(torch.uint8) if scale.dtype == torch.float8_e8m0fnu and scale.dim() else scale


def result(
    operator: str,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    allowed: tuple[torch.dtype, ...],
    allocate: Callable[[torch.dtype | None], torch.Tensor],
    name: str = "out",
) -> torch.Tensor:
    """`out`, whose own dtype the binding checks, or what `allocate` makes of out_dtype. `name` is the argument's."""
    if out_dtype is not None and out_dtype not in allowed:
        of = "scale_dtype" if name == "scale_out" else "out_dtype"
        refuse(operator, of, f"{out_dtype}; allowed: {', '.join(map(str, allowed))}")
    if out is None:
        return allocate(out_dtype)
    if not isinstance(out, _Tensor):
        check_tensors(operator, **{name: out})
    if out_dtype is not None and out_dtype != out.dtype:
        refuse(operator, "out_dtype", f"{out_dtype}, but out has dtype {out.dtype}")
    return out


def rows(operator: str, name: str, x: torch.Tensor, **written: torch.Tensor) -> torch.Tensor:
    """x, or a copy where its leading dimensions are no rows with one stride (those of a transposed batch are none).

    The kernel checks that what it writes overlaps no input. It sees the copy only, so the memory of x itself is
    checked here.
    """
    if x.dim() <= 2 or x.is_contiguous() or _is_rows(x):
        return x
    check_apart(operator, name, x, **written)
    return x.contiguous()


def check_apart(operator: str, name: str, x: torch.Tensor, **written: torch.Tensor) -> None:
    if torch.compiler.is_compiling() or x.is_meta or not x.numel():
        return
    begin, end = _extent(x)
    for other, tensor in written.items():
        if tensor.numel() and not tensor.is_meta and _extent(tensor)[0] < end and begin < _extent(tensor)[1]:
            refuse(operator, other, f"overlaps {name} in memory")


def _is_rows(x: torch.Tensor) -> bool:
    expected = None
    for i in range(x.dim() - 2, -1, -1):
        if x.shape[i] == 1:
            continue
        if expected is not None and x.stride(i) != expected:
            return False
        expected = x.stride(i) * x.shape[i]
    return True


def _extent(x: torch.Tensor) -> tuple[int, int]:
    span = sum((n - 1) * s for n, s in zip(x.shape, x.stride())) + 1
    return x.data_ptr(), x.data_ptr() + span * x.element_size()
