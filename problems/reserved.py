"""Tensors larger than the machine's memory, of which a test touches a little: addresses with nothing behind them."""

import math
import mmap

import torch

NORESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python names from 3.13 on


def reserved(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros; a page that is written takes memory, one that is read takes none."""
    size = math.prod(shape) * dtype.itemsize
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(shape)
