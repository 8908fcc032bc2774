"""AITER's batched GEMMs in INT8 and bf16, made of Composable Kernel: times of its tuner on an MI300X.

The tuner (aiter/utility/mp_tuner.py, aiter/test_common.py) takes the kernels' own times from a profile of 101 calls.
Calls have copies of the arguments in turn, so that no cache holds them from the call before.
Scales and results are bf16. AITER compiles with flushed denormals besides, which no instruction's time depends on.
"""

import csv
import io
import re
from pathlib import Path

from benchmarks.calibration.build import CK_OPTIONS
from benchmarks.calibration.pairs import Checkouts, Library, Pair

DATE = "2025-08-11"  # of the rows that are taken
TABLES = {"int8": "aiter/configs/a8w8_tuned_batched_gemm.csv", "bf16": "aiter/configs/bf16_tuned_batched_gemm.csv"}
UNITS, ARCH = "304", "gfx942"
# (M, N, K) by type, over M and over the instances. Left out: INT8 256x256x128, which spills with clang 22, and bf16
# 256x256x32 with pipeline v4, which moves data to accumulation registers by an instruction unknown to the simulator.
CHOSEN = {
    "int8": [
        (1, 8192, 1024), (32, 1280, 8192), (32, 8192, 1024), (64, 1280, 8192), (64, 8192, 1024), (128, 1280, 8192),
        (128, 8192, 1024), (256, 1280, 8192), (512, 1280, 8192), (1024, 8192, 1024), (2048, 1280, 8192),
        (2048, 8192, 1024),
    ],
    "bf16": [
        (1, 1280, 8192), (1, 8192, 1024), (32, 1280, 8192), (32, 8192, 1024), (64, 1280, 8192), (64, 8192, 1024),
        (128, 1280, 8192), (128, 8192, 1024), (512, 1280, 8192), (1024, 1280, 8192), (1024, 8192, 1024),
        (4096, 1280, 8192),
    ],
}  # fmt: skip
NAME = re.compile(
    r"_(?P<tile>\d+x\d+x\d+x\d+)_(?P<mfma>\d+x\d+)_(?P<waves>\d+x\d+)_(?P<a>\d+x\d+x\d+)_(?P<b>\d+x\d+x\d+)"
    r"_(?P<c>\d+x\d+x\d+x\d+)_(?P<vector>\d+x\d+x\d+)_(?P<shuffle>\d+x\d+)_(?P<scheduler>\w+)_(?P<pipeline>v\d)$"
)


def rows(checkouts: Checkouts, kind: str) -> dict[tuple[int, int, int], dict[str, str]]:
    """The table's rows of this GPU by (M, N, K)."""
    text = checkouts.text("aiter", TABLES[kind])
    table = [row for row in csv.DictReader(io.StringIO(text)) if (row["gfx"], row["cu_num"]) == (ARCH, UNITS)]
    return {(int(row["M"]), int(row["N"]), int(row["K"])): row for row in table}


def library(kind: str, kernel: str, m: int, n: int, k: int) -> Library:
    """The instance that a row names, padded as AITER decides: INT8 where a tile is not full, bf16 never."""
    found = NAME.search(kernel)
    part = {key: [int(each) for each in value.split("x")] for key, value in found.groupdict().items() if "x" in value}
    threads, tile_m, tile_n, tile_k = part["tile"]
    k_a = tile_k // part["a"][0]
    k_b = 16 if kind == "int8" else tile_k // part["b"][0]
    padded = kind == "int8" and (m % tile_m or n % tile_n or k % tile_k)

    def listed(*numbers: int) -> str:
        return ", ".join(map(str, numbers))

    macros = {
        "INT8": int(kind == "int8"),
        "SPEC": "MNKPadding" if padded else "Default",
        "TILE": listed(threads, tile_m, tile_n, tile_k, k_a, k_b, *part["mfma"], *part["waves"]),
        "A": f"S<{listed(*part['a'])}>",
        "B": f"S<{listed(*part['b'])}>",
        "KA": k_a,
        "KB": k_b,
        "SHUFFLE": f"{listed(*part['shuffle'])}, S<{listed(*part['c'])}>, S<{listed(*part['vector'])}>",
        "SCHEDULER": found["scheduler"].capitalize(),
        "PIPELINE": found["pipeline"],
    }
    return Library(
        name=f"ck_{kernel}_{macros['SPEC'].lower()}",
        source=Path(__file__).with_suffix(".hip"),
        flags=(*CK_OPTIONS, *(f"-DPEER_{key}={value}" for key, value in macros.items())),
        includes=("ck:usr/include",),
    )


def pairs(checkouts: Checkouts) -> list[Pair]:
    found = []
    for kind, shapes in CHOSEN.items():
        table, size = rows(checkouts, kind), 1 if kind == "int8" else 2
        for m, n, k in shapes:
            row = table[m, n, k]
            batch = int(row["B"])
            if row["splitK"] != "0":
                raise ValueError(f"split K is not made here: {row}")
            buffers = [size * batch * m * k, size * batch * n * k, 2 * batch * m * n]
            if kind == "int8":
                buffers += [2 * batch * n, 2 * batch * m]
            found.append(
                Pair(
                    source="AITER, batched CK GEMM",
                    kind="GEMM, INT8 batched" if kind == "int8" else "GEMM, bf16 batched",
                    name=f"{row['kernelName']} {batch}x{m}x{n}x{k}",
                    microseconds=float(row["us"]),
                    date=DATE,
                    library=library(kind, row["kernelName"], m, n, k),
                    buffers=tuple(buffers),
                    sizes=(batch, m, n, k),
                    group=f"{kind} {batch}x{m}x{n}x{k}",
                )
            )
    return found
