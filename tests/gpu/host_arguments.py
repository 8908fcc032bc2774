"""Arguments of the ROCm kernels, laid out by the sources' own headers (host/arguments.cpp, compiled for the host)."""

import ctypes
from pathlib import Path

import torch

from tests.gpu.host_configs import compile_host

LARGEST = 4096  # bytes of kernel arguments that HIP takes


def name(dtype: torch.dtype) -> bytes:
    return str(dtype).removeprefix("torch.").encode()


class Arguments:
    """Bytes that a launch takes in the place of an operator's arguments."""

    def __init__(self, folder: Path):
        self._library = ctypes.CDLL(str(compile_host("arguments.cpp", folder / "arguments.so", "-shared", "-fPIC")))
        for function in ("rms_norm_args", "swiglu_args", "divider", "counters_bytes"):
            getattr(self._library, function).restype = ctypes.c_int64
        self._library.counters.restype = ctypes.c_char_p

    @staticmethod
    def _bytes(function, *arguments) -> bytes:
        buffer = ctypes.create_string_buffer(LARGEST)
        size = function(buffer, *arguments)
        return buffer.raw[:size]

    def rms_norm(self, x, residual, weight, scale, out, epsilon: float) -> bytes:
        """Of dense rows; `residual` may be None."""
        pointers = [ctypes.c_void_p(t.data_ptr() if t is not None else None) for t in (x, residual, weight, scale, out)]
        sizes = [ctypes.c_int64(size) for size in x.shape]
        types = [name(t.dtype) for t in (x, weight, out)]
        return self._bytes(self._library.rms_norm_args, *pointers, *sizes, *types, ctypes.c_float(epsilon))

    def swiglu(self, x, scale, out) -> bytes:
        """Of dense rows."""
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, scale, out)]
        sizes = [ctypes.c_int64(size) for size in out.shape]
        return self._bytes(self._library.swiglu_args, *pointers, *sizes, name(x.dtype), name(out.dtype))

    def divider(self, divisor: int) -> bytes:
        return self._bytes(self._library.divider, ctypes.c_int64(divisor))

    @property
    def counters_bytes(self) -> int:
        """Of one launch's counters."""
        return self._library.counters_bytes()

    def counters(self, counters_for, stream: int) -> tuple[int, bytes | None]:
        """(address, error) of counters_for(stream); `counters_for` is a function of a loaded library."""
        found = ctypes.c_void_p()
        function = ctypes.cast(counters_for, ctypes.c_void_p)
        error = self._library.counters(function, ctypes.c_void_p(stream), ctypes.byref(found))
        return found.value, error
