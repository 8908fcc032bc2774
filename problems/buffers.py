"""Tensors inside larger buffers of poison: accesses beside them show. Bytes of tensors, and counts of threads."""

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch

# Leading poison of a guarded buffer, in bytes; the same follows the tensor.
GUARD_BYTES = 256


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, row after row, on the CPU."""
    # A clone has the strides of a contiguous tensor even where it has one element.
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(raw(a), raw(b))


def same_codes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same of floating-point numbers, where a NaN's sign and payload are nobody's contract."""
    nan = a.float().isnan()
    same = a.dtype == b.dtype and torch.equal(nan, b.float().isnan())
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.itemsize]
    return same and torch.equal(a.view(bits)[~nan], b.view(bits)[~nan])


def poison_byte(dtype: torch.dtype) -> int:
    """Repeated, a NaN of `dtype`: an element that is read by mistake, or never written, shows in the result."""
    return 0x80 if dtype == torch.float8_e4m3fnuz else 0xFF


class Guarded:
    """A tensor (`.t`) inside a larger buffer of poison: before it, after it and, with `pad`, between its rows.

    `pad` elements follow each row; `shift` elements move the start off any alignment but the element's own.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device, *, pad: int = 0, shift: int = 0):
        size = dtype.itemsize
        strides = [1]
        for i, length in enumerate(reversed(shape[1:])):
            strides.append(max(length, 1) * strides[-1] + (pad if i == 0 else 0))
        self._shape, self._strides = tuple(shape), tuple(reversed(strides))[-len(shape) :]
        self._offset = GUARD_BYTES // size + shift
        span = sum((length - 1) * s for length, s in zip(shape, self._strides)) + 1 if math.prod(shape) else 0
        self._poison = poison_byte(dtype)
        count = (self._offset + span + pad) * size + GUARD_BYTES
        self._bytes = torch.full((count,), self._poison, dtype=torch.uint8, device=device)
        self.t = self._inside(self._bytes, dtype)
        self._before = None

    def _inside(self, buffer: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return buffer.view(dtype).as_strided(self._shape, self._strides, self._offset)

    def holding(self, values: torch.Tensor) -> "Guarded":
        self.t.copy_(values)
        self._before = self._bytes.clone()
        return self

    def assert_guards_intact(self, what: str = "") -> None:
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[self.t.element_size()]
        inside = torch.zeros_like(self._bytes)
        self._inside(inside, integers).fill_(255 if integers == torch.uint8 else -1)
        touched = (self._bytes != self._poison) & (inside == 0)
        assert not touched.any(), f"{what}: bytes around the tensor were written, at {touched.nonzero()[:8].flatten()}"

    def assert_unchanged(self, what: str = "") -> None:
        """Not one byte differs from what `holding` put there (or from the poison)."""
        before = torch.full_like(self._bytes, self._poison) if self._before is None else self._before
        changed = (self._bytes != before).nonzero().flatten()
        assert len(changed) == 0, f"{what}: written, at {changed[:8]}"


def guarded(values: torch.Tensor, device, *, pad: int = 0, shift: int = 0) -> Guarded:
    return Guarded(values.shape, values.dtype, device, pad=pad, shift=shift).holding(values)


# name -> how a tensor of rows lies in memory. The odd numbers take every row off 16-byte alignment.
LAYOUTS = {"dense": {}, "padded": dict(pad=37, shift=3)}


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
