"""The GPU launchers' configuration functions, compiled for the host."""

import ctypes
import shutil
import subprocess
from pathlib import Path

from tests.settings import ROOT

HOST = Path(__file__).resolve().parent / "host"


def compile_host(source: str, target: Path, *flags: str) -> Path:
    """A test's C++ source, with the machine's compiler."""
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++"))))
    command = [compiler, "-std=c++20", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run([*command, f"-I{ROOT}", str(HOST / source), "-o", str(target)], check=True)
    return target


INT, LONG, DOUBLE = ctypes.c_int, ctypes.c_int64, ctypes.c_double
# name of configs.cpp: (result, arguments, how many numbers it returns through a last pointer)
FUNCTIONS = {
    "rms_norm_config": (None, (LONG, LONG, INT), 4),
    "swiglu_config": (None, (LONG, LONG, INT), 4),
    "wrong_division": (LONG, (ctypes.c_void_p, LONG, ctypes.c_uint32), 0),
    "gemm_config": (None, (LONG, LONG, LONG, INT, INT), 2),
    "gemm_estimate": (DOUBLE, (INT, INT, INT, LONG, LONG, LONG), 0),
    "gemm_row_class": (LONG, (LONG,), 0),
    "cuda_rms_norm_config": (None, (LONG, LONG, INT, INT, INT), 5),
    "cuda_swiglu_config": (None, (LONG, LONG, INT, INT), 5),
    "cuda_rows_to_fetch": (LONG, (LONG, LONG, INT), 0),
    "cuda_rows_ahead": (LONG, (LONG, LONG, INT, INT, INT), 0),
    "cuda_next_at_once": (LONG, (LONG, LONG, INT, INT, INT), 0),
    "cuda_gemm_config": (None, (LONG, LONG, LONG, INT, INT), 3),
    "cuda_gemm_overlap": (None, (LONG, LONG, LONG, INT, INT), 3),
    "cuda_gemm_most_columns": (LONG, (LONG, INT), 0),
    "cuda_gemm_first_column": (LONG, (LONG, INT, INT), 0),
    "cuda_gemm_columns": (LONG, (INT,), 0),
    "cuda_gemm_slots": (LONG, (INT, LONG), 0),
    "cuda_gemm_step": (LONG, (INT, LONG), 0),
    "cuda_gemm_can_pace": (LONG, (INT, LONG), 0),
    "cuda_gemm_can_split": (LONG, (INT, LONG), 0),
    "cuda_gemm_clusters_alone": (LONG, (INT, LONG), 0),
    "cuda_gemm_warps": (LONG, (INT,), 0),
    "cuda_gemm_groups": (LONG, (INT, LONG), 0),
    "cuda_gemm_first_step": (LONG, (INT, LONG, LONG, INT, INT), 0),
}


def more_rows_may_have_other_bits(n: int, k: int, multiprocessors: int) -> bool:
    """Whether docs/numerics.md lets skinny_gemm give 17 rows and more other bits than up to 16, on an NVIDIA GPU."""
    each = n / multiprocessors
    in_clusters_of_four = k > 12288 and each > 16 and n <= 80 * (30 * multiprocessors // 132)
    return in_clusters_of_four or each > 128


class Configs:
    """configs.cpp as Python functions."""

    def __init__(self, path: Path):
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments, returned) in FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = [*arguments, *([ctypes.POINTER(LONG)] if returned else [])]
            setattr(self, name, self._returning(function, returned) if returned else function)

    @classmethod
    def compiled(cls, folder: Path) -> "Configs":
        return cls(compile_host("configs.cpp", folder / "configs.so", "-shared", "-fPIC"))

    @staticmethod
    def _returning(function, count: int):
        def call(*arguments: int) -> tuple[int, ...]:
            out = (LONG * count)()
            function(*arguments, out)
            return tuple(out)

        return call
