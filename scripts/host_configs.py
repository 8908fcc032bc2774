"""The launchers' configurations and tables of forms, from the sources' own headers: host_configs.cpp, compiled for the
host on first use."""

import ctypes
import functools
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(__file__).with_suffix(".cpp")


def compile_host(source: Path, target: Path, *flags: str) -> Path:
    """A C++ source against the package's headers, with the machine's compiler."""
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++"))))
    command = [compiler, "-std=c++20", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run([*command, f"-I{ROOT}", str(source), "-o", str(target)], check=True)
    return target


INT, LONG, DOUBLE = ctypes.c_int, ctypes.c_int64, ctypes.c_double
# name of configs.cpp: (result, arguments, how many numbers it returns through a last pointer)
FUNCTIONS = {
    "block_scaled_config": (None, (LONG, LONG, LONG, INT), 2),
    "block_scaled_estimate": (DOUBLE, (INT, INT, INT, LONG, LONG, LONG), 0),
    "int8_config": (None, (LONG, LONG, LONG, LONG, INT, INT), 2),
    "int8_estimate": (DOUBLE, (INT, INT, INT, LONG, LONG, LONG, LONG), 0),
    "int8_fallback_shape": (INT, (INT,), 0),
    "cuda_block_scaled_config": (None, (LONG, LONG, LONG, INT, INT, INT), 3),
    "cuda_int8_config": (None, (LONG, LONG, LONG, INT), 3),
    "cuda_tiles_us": (None, (INT, ctypes.POINTER(DOUBLE), LONG, ctypes.POINTER(LONG), ctypes.POINTER(DOUBLE)), 0),
    "cuda_grouped_config": (None, (LONG, LONG, LONG, LONG, LONG, INT), 5),
    "grouped_config": (None, (LONG, LONG, LONG, LONG, INT, INT, LONG), 2),
    "cuda_mla_config": (None, (INT, INT, LONG, LONG, LONG, INT), 3),
    "mla_config": (None, (LONG, LONG, LONG, INT, INT), 2),
    "mla_direct_config": (None, (LONG, LONG, LONG), 2),
    "grouped_gated": (INT, (LONG, LONG, LONG, INT), 0),
    "grouped_item": (INT, (INT, INT, INT, INT), 0),
    "block_scaled_row_class": (LONG, (LONG,), 0),
    "block_scaled_fallback_shape": (INT, (INT,), 0),
    "rms_norm_config": (None, (LONG, LONG, INT, INT), 4),
    "swiglu_config": (None, (LONG, LONG, INT, INT), 4),
    "columns_of_a_launch": (LONG, (LONG, LONG, LONG), 0),
    "wrong_division": (LONG, (ctypes.c_void_p, LONG, ctypes.c_uint32), 0),
    "gemm_config": (None, (LONG, LONG, LONG, INT, INT), 2),
    "gemm_estimate": (DOUBLE, (INT, INT, INT, LONG, LONG), 0),
    "gemm_most_parts": (INT, (INT, INT, INT, LONG, LONG, LONG), 0),
    "gemm_us": (DOUBLE, (INT, INT, INT, INT, LONG, LONG, LONG, ctypes.POINTER(DOUBLE)), 0),
    "gemm_row_class": (LONG, (LONG,), 0),
    "cuda_rms_norm_config": (None, (LONG, LONG, INT, INT, INT), 5),
    "cuda_swiglu_config": (None, (LONG, LONG, INT, INT), 5),
    "cuda_rows_to_fetch": (LONG, (LONG, LONG, INT), 0),
    "cuda_rows_ahead": (LONG, (LONG, LONG, INT, INT, INT), 0),
    "cuda_next_at_once": (LONG, (LONG, LONG, INT, INT, INT), 0),
    "cuda_gemm_config": (None, (LONG, LONG, LONG, INT, INT), 3),
    "cuda_gemm_overlap": (None, (LONG, LONG, LONG, INT, INT), 3),
    "cuda_gemm_most_columns": (LONG, (LONG, INT), 0),
    "cuda_gemm_columns": (LONG, (INT,), 0),
    "cuda_gemm_stages": (LONG, (INT, LONG), 0),
    "cuda_gemm_step": (LONG, (INT, LONG), 0),
    "cuda_gemm_can_pace": (LONG, (INT, LONG), 0),
    "cuda_gemm_can_split": (LONG, (INT, LONG), 0),
    "cuda_gemm_clusters_alone": (LONG, (INT, LONG), 0),
    "cuda_gemm_warps": (LONG, (INT,), 0),
    "cuda_gemm_groups": (LONG, (INT, LONG), 0),
    "cuda_gemm_first_step": (LONG, (INT, LONG, LONG, INT, INT), 0),
}


class Configs:
    """configs.cpp as Python functions."""

    def __init__(self, path: Path):
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments, returned) in FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = [*arguments, *([ctypes.POINTER(LONG)] if returned else [])]
            setattr(self, name, self._returning(function, returned) if returned else function)
        loaded.tables.restype = ctypes.c_char_p
        self.tables = json.loads(loaded.tables())

    @staticmethod
    def _returning(function, count: int):
        def call(*arguments: int) -> tuple[int, ...]:
            out = (LONG * count)()
            function(*arguments, out)
            return tuple(out)

        return call


@functools.cache
def configs() -> Configs:
    """Of the headers as they are now; compiled once for each state of them."""
    headers = sorted(path for each in ROOT.glob("*/hip") for path in each.parent.rglob("*.h"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (SOURCE, *headers))).hexdigest()[:16]
    library = ROOT / "build" / ".work" / "host" / f"configs-{digest}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        partial = library.with_suffix(f".{os.getpid()}")
        os.replace(compile_host(SOURCE, partial, "-shared", "-fPIC"), library)
    return Configs(library)
