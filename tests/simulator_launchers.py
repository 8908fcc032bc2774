"""The launch functions of the shipped ROCm library as Python calls on host tensors, run by the simulator.

The structures are those of common/launch.h and <operator>/<operator>.h.
"""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from simulator.library import Runtime
from simulator_harness import hip_toolchain

ROOT = Path(__file__).resolve().parents[1]
POINTER, INT64, INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz]  # enum DType
NATIVE_FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
ALIGNMENT = 256
SCRATCH = ctypes.CFUNCTYPE(POINTER, POINTER, INT64)


def fields(kind, names: str) -> list:
    return [(name, kind) for name in names.split()]


class Executor(ctypes.Structure):
    _fields_ = [*fields(POINTER, "stream parallel_for"), ("scratch", SCRATCH), ("context", POINTER)]


class SkinnyGemmArgs(ctypes.Structure):
    _fields_ = [
        *fields(POINTER, "a b scale_a scale_b bias out"),
        *fields(INT64, "m n k a_stride b_stride out_stride scale_a_stride scale_b_stride bias_stride"),
        *fields(INT32, "format out_dtype bias_dtype"),
    ]


class RmsNormFp8Args(ctypes.Structure):
    _fields_ = [
        *fields(POINTER, "x residual weight scale out"),
        *fields(INT64, "rows d x_stride residual_stride out_stride"),
        *fields(INT32, "dtype weight_dtype out_dtype"),
        ("epsilon", ctypes.c_float),
    ]


class SwigluFp8Args(ctypes.Structure):
    _fields_ = [
        *fields(POINTER, "x scale out"),
        *fields(INT64, "rows d x_stride out_stride"),
        *fields(INT32, "dtype out_dtype"),
    ]


def shipped_library() -> Path:
    found = sorted(ROOT.glob("build/torch-stable-abi*-rocm*-x86_64-linux/*.so"))
    if not found:
        pytest.skip("no ROCm build to test; run: python scripts/build.py --backend rocm")
    return found[-1]


def dtype_code(dtype: torch.dtype) -> int:
    return DTYPES.index(dtype)


class Launchers:
    """The three operators. Tensors live in buffers of `tensor`, which a kernel may touch to the byte and no further."""

    def __init__(self, **options):
        self.runtime = Runtime.shared(hip_toolchain().root / "include", **options)
        self.library = self.runtime.open(shipped_library())
        self._kept: list[np.ndarray] = []
        self._scratch = SCRATCH(self._allocate)
        self.executor = Executor(scratch=self._scratch)

    def _allocate(self, _, size: int) -> int:
        return self._buffer(size).ctypes.data

    def _buffer(self, size: int) -> np.ndarray:
        whole = np.zeros(size + ALIGNMENT, np.uint8)
        start = -whole.ctypes.data % ALIGNMENT
        buffer = whole[start : start + size]
        self._kept.append(whole)
        if size:
            self.runtime.memory.register(buffer)
        return buffer

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """A contiguous copy that kernels can reach."""
        buffer = torch.from_numpy(self._buffer(values.numel() * values.element_size()))
        copy = buffer.view(values.dtype).view(values.shape)
        copy.copy_(values)
        return copy

    def _launch(self, arch: str, name: str, arguments) -> None:
        function = getattr(self.library, name)
        function.restype = ctypes.c_char_p  # struct Status: one pointer
        with self.runtime.on(arch):
            error = self.runtime.call(function, ctypes.byref(arguments), ctypes.byref(self.executor))
        if error is not None:
            raise ValueError(error.decode())

    def skinny_gemm(self, arch, a, b, scale_a, scale_b, out, bias=None) -> None:
        arguments = SkinnyGemmArgs(
            a.data_ptr(), b.data_ptr(), scale_a.data_ptr(), scale_b.data_ptr(), bias.data_ptr() if bias is not None else None,
            out.data_ptr(), a.shape[0], b.shape[0], a.shape[1], a.stride(0), b.stride(0), out.stride(0),
            int(scale_a.numel() > 1), int(scale_b.numel() > 1), 1, dtype_code(a.dtype), dtype_code(out.dtype),
            dtype_code(bias.dtype if bias is not None else out.dtype),
        )  # fmt: skip
        self._launch(arch, "_ZN8rocm_fp818launch_skinny_gemmERKNS_14SkinnyGemmArgsERKNS_8ExecutorE", arguments)

    def rms_norm_fp8(self, arch, x, weight, scale, out, residual=None, epsilon=1e-6) -> None:
        arguments = RmsNormFp8Args(
            x.data_ptr(), residual.data_ptr() if residual is not None else None, weight.data_ptr(), scale.data_ptr(),
            out.data_ptr(), *x.shape, x.stride(0), residual.stride(0) if residual is not None else 0, out.stride(0),
            dtype_code(x.dtype), dtype_code(weight.dtype), dtype_code(out.dtype), epsilon,
        )  # fmt: skip
        self._launch(arch, "_ZN8rocm_fp819launch_rms_norm_fp8ERKNS_14RmsNormFp8ArgsERKNS_8ExecutorE", arguments)

    def swiglu_fp8(self, arch, x, scale, out) -> None:
        arguments = SwigluFp8Args(
            x.data_ptr(), scale.data_ptr(), out.data_ptr(), *out.shape, x.stride(0), out.stride(0),
            dtype_code(x.dtype), dtype_code(out.dtype),
        )  # fmt: skip
        self._launch(arch, "_ZN8rocm_fp817launch_swiglu_fp8ERKNS_13SwigluFp8ArgsERKNS_8ExecutorE", arguments)
