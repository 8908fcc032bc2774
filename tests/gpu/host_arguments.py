"""Arguments of the ROCm kernels, laid out by the sources' own headers (host/arguments.cpp, compiled for the host)."""

import ctypes
from pathlib import Path

import torch

from tests.gpu.host_configs import compile_host

LARGEST = 4096  # bytes of kernel arguments that HIP takes


def name(dtype: torch.dtype) -> bytes:
    return str(dtype).removeprefix("torch.").encode()


def pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


class Arguments:
    """Bytes that a launch takes in the place of an operator's arguments."""

    def __init__(self, folder: Path):
        self._library = ctypes.CDLL(str(compile_host("arguments.cpp", folder / "arguments.so", "-shared", "-fPIC")))
        for function in (
            *("rms_norm_args", "swiglu_args", "divider", "counters_bytes"),
            *("dynamic_scale", "quantized_rows", "flat_work", "maxima"),
        ):
            getattr(self._library, function).restype = ctypes.c_int64
        self._library.counters.restype = ctypes.c_char_p

    @staticmethod
    def _bytes(function, *arguments) -> bytes:
        buffer = ctypes.create_string_buffer(LARGEST)
        size = function(buffer, *arguments)
        return buffer.raw[:size]

    def rms_norm(self, x, residual, weight, scale, out, epsilon: float, dynamic=None, normalized=None) -> bytes:
        """Of dense rows; `residual` may be None. `dynamic`: dynamic_scale's, with `scale` None."""
        pointers = [pointer(t) for t in (x, residual, weight, scale, out)]
        sizes = [ctypes.c_int64(size) for size in x.shape]
        types = [name(t.dtype) for t in (x, weight, out)]
        scales = dynamic, pointer(normalized)
        return self._bytes(self._library.rms_norm_args, *pointers, *sizes, *types, ctypes.c_float(epsilon), *scales)

    def swiglu(self, x, scale, out) -> bytes:
        """Of dense rows."""
        pointers = [pointer(t) for t in (x, scale, out)]
        sizes = [ctypes.c_int64(size) for size in out.shape]
        return self._bytes(self._library.swiglu_args, *pointers, *sizes, name(x.dtype), name(out.dtype))

    def dynamic_scale(self, scales, upper_bound, fp8_max: float, group: int, power_of_two: bool) -> bytes:
        """`scales` [rows, groups], of any strides. `group`: its size; 0 of a row, -1 of the tensor."""
        exponents = scales.dtype == torch.float8_e8m0fnu
        strides = [ctypes.c_int64(stride) for stride in scales.stride()]
        rule = ctypes.c_float(fp8_max), group, power_of_two or exponents, exponents
        return self._bytes(self._library.dynamic_scale, pointer(scales), *strides, pointer(upper_bound), *rule)

    def quantized_rows(self, scale, dynamic: bytes | None, out) -> bytes:
        """Of dense rows; by `scale` or by dynamic_scale's."""
        sizes = [ctypes.c_int64(size) for size in out.shape]
        rest = dynamic, pointer(out), *sizes, name(out.dtype)
        return self._bytes(self._library.quantized_rows, pointer(scale), *rest)

    def flat_work(self, a_row: int, count: int) -> bytes:
        return self._bytes(self._library.flat_work, ctypes.c_int64(a_row), ctypes.c_int64(count))

    def maxima(self, maxima: torch.Tensor | None) -> bytes:
        count = 0 if maxima is None else maxima.numel()
        return self._bytes(self._library.maxima, pointer(maxima), ctypes.c_int64(count))

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
