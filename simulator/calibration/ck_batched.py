"""AITER's batched GEMMs in INT8 and bf16, made of Composable Kernel: times of its tuner on an MI300X (sources.py).

data/ck_batched.csv has them: AITER's name of the fastest instance spells its parameters. Scales and results are bf16.
Left out: INT8 256x256x128, which spills with clang 22, and bf16 256x256x32 with pipeline v4, which moves data to
accumulation registers by an instruction unknown to the simulator.
"""

import re
from pathlib import Path

from simulator.calibration.pairs import Library, Pair, rows
from simulator.calibration.store import DATA

DATE = "2025-08-11"  # of the tables
TABLE = DATA / "ck_batched.csv"
NAME = re.compile(
    r"_(?P<tile>\d+x\d+x\d+x\d+)_(?P<mfma>\d+x\d+)_(?P<waves>\d+x\d+)_(?P<a>\d+x\d+x\d+)_(?P<b>\d+x\d+x\d+)"
    r"_(?P<c>\d+x\d+x\d+x\d+)_(?P<vector>\d+x\d+x\d+)_(?P<shuffle>\d+x\d+)_(?P<scheduler>\w+)_(?P<pipeline>v\d)$"
)


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
        flags=tuple(f"-DPEER_{key}={value}" for key, value in macros.items()),
    )


def pairs(table: Path = TABLE) -> list[Pair]:
    found = []
    for row in rows(table):
        kind, name = row["type"], row["instance"]
        batch, m, n, k = (int(row[each]) for each in ("batch", "m", "n", "k"))
        size = 1 if kind == "int8" else 2
        buffers = [size * batch * m * k, size * batch * n * k, 2 * batch * m * n]
        if kind == "int8":
            buffers += [2 * batch * n, 2 * batch * m]
        found.append(
            Pair(
                source="AITER, batched CK GEMM",
                kind="GEMM, INT8 batched" if kind == "int8" else "GEMM, bf16 batched",
                name=f"{name} {batch}x{m}x{n}x{k}",
                microseconds=float(row["us"]),
                date=DATE,
                library=library(kind, name, m, n, k),
                buffers=tuple(buffers),
                sizes=(batch, m, n, k),
                group=f"{kind} {batch}x{m}x{n}x{k}",
            )
        )
    return found
