"""AITER's tuned tables of block-scaled FP8 GEMMs: which instance of Composable Kernel was the fastest, and its time.

data/ck_block_scaled.csv has them (sources.py says how they were taken): of both tables of an MI300X all rows up to M =
8192, of an MI325X the shapes and split-K that those lack. The tuner kept the fastest of 19 instances.
"""

from pathlib import Path

from simulator.calibration.pairs import MEMORY_SIDE_CACHE, Library, Pair, rows
from simulator.calibration.store import DATA

TABLE = DATA / "ck_block_scaled.csv"
SPECIALISED = "2026"  # from then on kernels are padded in the dimensions that need it alone
REPETITIONS = 101  # copies of the inputs, one a repetition
# By AITER's number: threads and tile, bytes a load, XDL, its repetitions, threads of the loads of A and B, threads and
# width of a store, tiles of XDL a shuffle, pipeline.
INSTANCES = {
    0: "256x128x128x128_16x16_32x32_2x2_8x32x1_8x32x1_1x32x1x8_8_1x1_v3",
    1: "256x128x64x128_16x16_32x32_2x1_8x32x1_8x32x1_1x32x1x8_8_1x1_v3",
    2: "256x64x128x128_16x16_32x32_1x2_8x32x1_8x32x1_1x32x1x8_8_1x1_v3",
    3: "256x64x64x128_16x16_32x32_1x1_8x32x1_8x32x1_1x32x1x8_8_1x1_v3",
    5: "256x16x128x128_8x16_16x16_1x2_16x16x1_8x32x1_1x16x1x16_8_1x2_v1",
    6: "256x16x64x128_8x16_16x16_1x1_16x16x1_8x32x1_1x16x1x16_4_1x1_v1",
    7: "256x16x128x256_16x16_16x16_1x2_16x16x1_16x16x1_1x16x1x16_8_1x2_v1",
    8: "256x16x64x256_16x16_16x16_1x1_16x16x1_16x16x1_1x16x1x16_4_1x1_v1",
    9: "256x32x256x128_16x16_32x32_1x2_8x32x1_8x32x1_1x32x1x8_8_1x1_v1",
    10: "256x32x128x128_16x16_32x32_1x1_8x32x1_8x32x1_1x32x1x8_8_1x1_v1",
    11: "256x32x64x128_16x16_16x16_2x1_8x32x1_8x32x1_1x32x1x8_8_2x1_v1",
    12: "256x32x128x256_16x16_32x32_1x1_16x16x1_16x16x1_1x32x1x8_8_1x1_v1",
    13: "256x32x64x256_16x16_16x16_2x1_16x16x1_16x16x1_1x32x1x8_8_2x1_v1",
    14: "256x64x256x128_16x16_32x32_2x2_8x32x1_8x32x1_1x32x1x8_8_1x1_v1",
    15: "256x64x128x128_16x16_32x32_2x1_8x32x1_8x32x1_1x32x1x8_8_1x1_v1",
    16: "256x64x64x128_16x16_32x32_1x1_8x32x1_8x32x1_1x32x1x8_8_1x1_v1",
    17: "256x64x128x256_16x16_32x32_2x1_16x16x1_16x16x1_1x32x1x8_8_1x1_v1",
    18: "256x64x64x256_16x16_32x32_1x1_16x16x1_16x16x1_1x32x1x8_8_1x1_v1",
}


def parameters(instance: int) -> tuple[tuple[int, int, int], str]:
    """(tile, the device operator's parameters behind the specialisation)."""
    *fields, version = INSTANCES[instance].split("_")
    tile, ab1, xdl, waves, a, b, c, vector, shuffle = (list(map(int, each.split("x"))) for each in fields)
    transfer = "S<{0}>, S<1, 0, 2>, S<1, 0, 2>, 2, {1}, {1}, 0"
    listed = [
        *map(str, [tile[0], 1, 128, 128, *tile[1:], *ab1, *xdl, *waves]),
        transfer.format(", ".join(map(str, a)), ab1[0]),
        transfer.format(", ".join(map(str, b)), ab1[1]),
        *map(str, shuffle),
        f"S<{', '.join(map(str, c))}>, S<{', '.join(map(str, vector))}>",
        f"ck::BlockGemmPipelineScheduler::Intrawave, ck::BlockGemmPipelineVersion::{version}",
    ]
    return tuple(tile[1:]), ", ".join(listed)


def pair(row: dict[str, str]) -> Pair | None:
    """None: a kernel that would be padded in all dimensions, which spills registers here."""
    m, n, k, parts = (int(row[each]) for each in ("m", "n", "k", "parts"))
    tile, listed = parameters(int(row["instance"]))
    padded = m % tile[0] != 0
    if n % tile[1] or k % tile[2] or (padded and row["date"] < SPECIALISED):
        return None
    specialisation = "MPadding" if padded else "Default"
    library = Library(
        f"ck_block_scaled_{row['instance']}_{specialisation.lower()}",
        Path(__file__).with_suffix(".hip"),
        (f"-DPEER=ck::tensor_operation::device::GemmSpecialization::{specialisation}, {listed}",),
    )  # fmt: skip
    shape = f"{m}x{n}x{k}" + (f" in {parts} parts" if parts > 1 else "")
    buffers = m * k, n * k, 2 * m * n, 4 * m * (k // 128), 4 * -(-n // 128) * (k // 128)
    return Pair(
        f"AITER, FP8 block-scaled, {row['chip']}", "GEMM, FP8 block-scaled",
        f"{row['chip']} instance {row['instance']} {shape}", float(row["us"]), row["date"], library, buffers,
        (m, n, k, parts), group=f"{row['chip']} {m}x{n}x{k}", memsets=int(parts > 1),
        warm=REPETITIONS * (sum(buffers) - buffers[2]) < MEMORY_SIDE_CACHE,
    )  # fmt: skip


def pairs(table: Path = TABLE) -> list[Pair]:
    """Of each instance and shape the first table's time; the later table measured many again."""
    found: dict[str, Pair] = {}
    for row in rows(table):
        if each := pair(row):
            found.setdefault(each.name, each)
    return list(found.values())
