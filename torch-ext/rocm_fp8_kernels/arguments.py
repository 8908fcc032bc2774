"""What of the arguments is looked at in Python: what allocates, copies or fails before the binding's own checks."""

import torch

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def check_dims(name: str, x: torch.Tensor, least: int, needs: str) -> None:
    if x.dim() < least:
        raise ValueError(f"{name}: {x.dim()} dimensions (shape {list(x.shape)}); needs {needs}")


def check_dtype(name: str, dtype: torch.dtype, allowed: tuple[torch.dtype, ...]) -> None:
    if dtype not in allowed:
        raise ValueError(f"{name}: {dtype}; allowed: {', '.join(map(str, allowed))}")


def check_no_self_overlap(name: str, x: torch.Tensor) -> None:
    reach = 0  # of the dimensions with smaller strides, in elements
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape) if n > 1):
        if stride <= reach:
            raise ValueError(f"{name}: shape {list(x.shape)} with strides {list(x.stride())} overlaps itself")
        reach += stride * (size - 1)


def rows(name: str, x: torch.Tensor, **written: torch.Tensor) -> torch.Tensor:
    """x, or a copy where its leading dimensions are no rows with one stride (those of a transposed batch are none).

    The kernel, which checks that what it writes overlaps no input, sees the copy only, so that the memory of x
    itself is checked here.
    """
    if x.dim() <= 2 or x.is_contiguous() or _is_rows(x):
        return x
    if not torch.compiler.is_compiling() and not x.is_meta and x.numel():
        begin, end = _extent(x)
        for other, tensor in written.items():
            if tensor.numel() and not tensor.is_meta and _extent(tensor)[0] < end and begin < _extent(tensor)[1]:
                raise ValueError(f"{other}: overlaps {name} in memory")
    return x.contiguous()


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
