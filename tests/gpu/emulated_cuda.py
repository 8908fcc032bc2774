"""CUDA kernels on the host: their sources, compiled against host/emulated_cuda.h instead of common/cuda's headers."""

import ctypes
import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import torch

from problems.block_scaled_gemm import Inputs
from problems.gemm import BLOCK, E8M0
from tests.gpu.host_configs import HOST, compile_host
from tests.settings import ROOT

# What the emulation replaces. All other headers are the package's own.
REPLACED = (
    "async_copy",
    "cluster",
    "half_pairs",
    "hopper",
    "mbarrier",
    "mma",
    "mma_int8",
    "pdl",
    "quantize",
    "shared_memory",
    "tma",
    "vector",
    "wgmma",
)
# common/types.h
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float8_e4m3fn: 3, E8M0: 5, torch.uint8: 8}


def structure(*fields: tuple) -> type[ctypes.Structure]:
    return type("Structure", (ctypes.Structure,), {"_fields_": [(f"f{n}", kind) for n, kind in enumerate(fields)]})


# Of common/gemm/args.h and common/divider.h.
Operand = structure(ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * 2)
Scales = structure(ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * 2, *[ctypes.c_int32] * 2, ctypes.c_float)
Bias, Output = (structure(*front, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32) for front in ((), (ctypes.c_int64,)))
Divider = structure(*[ctypes.c_int32] * 3)


class Tensor(ctypes.Structure):
    _fields_ = [
        *(("data", ctypes.c_void_p), ("first_stride", ctypes.c_int64), ("second_stride", ctypes.c_int64)),
        *(("rows", ctypes.c_int), ("type", ctypes.c_int)),
    ]


def emulated_library(operator: str, *others: str) -> ctypes.CDLL:
    """host/emulated_OPERATOR.cpp; compiled once for each state of the sources, by whichever worker comes first. others:
    operators whose headers it includes."""
    folders = (operator, *others, "common")
    sources = [Path(__file__), HOST / f"emulated_{operator}.cpp", *sorted(HOST.glob("*.h"))]
    sources += sorted(path for name in folders for path in (ROOT / name).rglob("*.[hc]*"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources if path.is_file())).hexdigest()[:16]
    kept = ROOT / "build" / ".work" / "host"
    kept.mkdir(parents=True, exist_ok=True)
    library = kept / f"emulated_{operator}-{digest}.so"
    with open(kept / f"emulated_{operator}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_file():
            with tempfile.TemporaryDirectory(dir=kept) as folder:
                os.replace(_compile(Path(folder), operator, folders), library)
    return ctypes.CDLL(str(library))


def _compile(folder: Path, operator: str, folders: tuple[str, ...]) -> Path:
    """With a copy of the sources that it includes."""
    for name in folders:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("cpu", "hip", "*.cu"))
    headers = folder / "common" / "cuda"
    for name in REPLACED:
        (headers / f"{name}.h").write_text('#include "emulated_cuda.h"\n')
    (headers / "device.h").write_text('#include "emulated_launch.h"\n')
    (headers / "cuda.h").touch()  # the driver's
    for name in ("emulated_cuda.h", "emulated_launch.h"):
        shutil.copy(HOST / name, headers)
    flags = ("-shared", "-fPIC", f"-I{folder}", f"-I{headers}", "-Wno-unknown-pragmas", "-Wno-unused-function")
    return compile_host(f"emulated_{operator}.cpp", folder / "emulated.so", *flags)


class BlockScaledGemm:
    def __init__(self):
        self._library = emulated_library("block_scaled_gemm")

    def forms(self) -> list[tuple[int, int, int, int]]:
        """(swapped, wide rows, narrow rows, splits K) of each form."""
        found = []
        for form in range(self._library.form_count()):
            sizes = (ctypes.c_int * 4)()
            self._library.form_sizes(form, sizes)
            found.append(tuple(sizes))
        return found

    def run(self, inputs: Inputs, out: torch.Tensor, form: int, splits: int, pieces: int, multiprocessors: int) -> None:
        (m, k), n = inputs.a.shape, len(inputs.b)
        by_blocks = inputs.scale_a.dim() == 2 and inputs.scale_a.shape[1] > 1
        tensors = (Tensor * 6)(
            *(_operand(t) for t in (inputs.a, inputs.b)),
            _scales(inputs.scale_a, m, k, 0, True),
            _scales(inputs.scale_b, n, k, 1, by_blocks),
            Tensor(None, 0, 0, 0, 0) if inputs.bias is None else _tensor(inputs.bias, inputs.bias.stride(0), 0),
            _tensor(out, out.stride(0), 1),
        )
        self._library.run(form, splits, pieces, multiprocessors, (ctypes.c_int64 * 3)(m, n, k), tensors)


def _tensor(t: torch.Tensor, first: int, second: int, rows: int = 1) -> Tensor:
    return Tensor(t.data_ptr(), first, second, rows, TYPES.get(t.dtype, 0))


def _operand(t: torch.Tensor) -> Tensor:
    by_k = t.shape[1] == 1 or t.stride(1) == 1
    return _tensor(t, t.stride(0) if by_k else 1, 1 if by_k else t.stride(1))


def _scales(t: torch.Tensor, rows: int, k: int, dim: int, by_blocks: bool) -> Tensor:
    """As the binding reads them."""
    blocks, squares = -(-k // BLOCK), -(-rows // BLOCK)
    if t.numel() == 1:
        return _tensor(t, 0, 0)
    if t.dim() == 1:
        return _tensor(t, t.stride(0), 0)
    if t.shape == (rows, blocks):
        return _tensor(t, *t.stride())
    if t.shape == (squares, blocks) and (dim == 0 or by_blocks or t.shape != (1, rows)):
        return _tensor(t, *t.stride(), rows=BLOCK)
    return _tensor(t, t.stride(dim), 0)
