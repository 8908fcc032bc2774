"""AITER's tuned tables of block-scaled FP8 GEMMs: which instance of Composable Kernel was the fastest, and its time.

The times are of torch's profiler: the launches' own time on the device, the mean of about 100 without outliers, inputs
rotated through more memory than caches hold. The tuner kept the fastest of 19 instances.
"""

import csv
import io
from pathlib import Path

from benchmarks.calibration.build import CK_OPTIONS
from benchmarks.calibration.pairs import MEMORY_SIDE_CACHE, Checkouts, Library, Pair

FOLDER = "aiter/configs"
# (commit, date, table, whose chip): the tables of one chip that were tuned anew; today's are of an MI325X.
TABLES = (
    ("2f2fbb2567", "2025-09-08", f"{FOLDER}/a8w8_blockscale_tuned_gemm.csv", "MI300X"),
    ("1a4121e559", "2026-04-30", f"{FOLDER}/model_configs/a8w8_blockscale_tuned_gemm_ds_v3.csv", "MI300X"),
    ("84493f0e5b", "2026-07-23", f"{FOLDER}/model_configs/a8w8_blockscale_tuned_gemm_ds_v3.csv", "MI325X"),
)
ARCH, UNITS = "gfx942", "304"
LARGEST_M = 8192
SPECIALISED = "2026"  # from then on kernels are padded in the dimensions that need it alone
REPETITIONS = 101  # copies of the inputs, one a repetition
# Of MI325X: split-K, which the other tables have not, and these shapes besides.
MI325X_M = (1024, 2048, 4096, 8192)
SPLIT_M = (16, 64, 128, 256, 512, 1024)


def rows(checkouts: Checkouts) -> list[dict]:
    found = []
    for commit, date, table, chip in TABLES:
        for row in csv.DictReader(io.StringIO(checkouts.text("aiter", table, commit))):
            if (row["cu_num"], row.get("gfx", ARCH), row.get("libtype", "ck")) == (UNITS, ARCH, "ck"):
                found.append(row | {"date": date, "chip": chip})
    return found


NAME_FIELDS = 14
NAMES = f"{FOLDER}/model_configs/a8w8_blockscale_tuned_gemm_glm5_1.csv", TABLES[-1][2]


def names(checkouts: Checkouts) -> dict[str, str]:
    """Instance's number -> its name in today's tables, which has a field more than in earlier ones."""
    found = {}
    for table in NAMES:
        for row in csv.DictReader(io.StringIO(checkouts.text("aiter", table))):
            if row["libtype"] == "ck" and len(row["kernelName"].split("_")) == NAME_FIELDS:
                found[row["kernelId"]] = row["kernelName"]
    return found


def parameters(name: str) -> tuple[tuple[int, int, int], str]:
    """(tile, the device operator's parameters behind the specialisation) of an instance, which its name spells out."""
    fields = name.removeprefix("a8w8_blockscale_").split("_")
    block, tile, ab1, xdl, waves, a, b, c, vector, shuffle = (list(map(int, each.split("x"))) for each in fields[:10])
    version = fields[11]
    assert block == [1, 128, 128] and fields[10] == "intrawave", name
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


def chosen(row: dict, m: int, split: int) -> bool:
    return row["chip"] == "MI300X" or m in (SPLIT_M if split > 1 else MI325X_M)


def pair(row: dict, name: str) -> Pair | None:
    """`name`: of today; it is the row's but for the fifth field."""
    fields = name.split("_")
    if row["kernelName"] not in (name, "_".join(fields[:6] + fields[7:])):
        raise ValueError(f"instance {row['kernelId']} was {row['kernelName']}, and is {name}")
    m, n, k = (int(row[each]) for each in "MNK")
    tile, listed = parameters(name)
    padded = m % tile[0] != 0
    split = 1 << int(row["splitK"])
    if n % tile[1] or k % tile[2] or (padded and row["date"] < SPECIALISED):
        return None  # padded in all dimensions, which spills registers here
    if not chosen(row, m, split):
        return None
    specialisation = "MPadding" if padded else "Default"
    library = Library(
        f"ck_block_scaled_{row['kernelId']}_{specialisation.lower()}",
        Path(__file__).with_suffix(".hip"),
        (*CK_OPTIONS, f"-DPEER=ck::tensor_operation::device::GemmSpecialization::{specialisation}, {listed}",),
        ("ck:usr/include",),
    )  # fmt: skip
    shape = f"{m}x{n}x{k}" + (f" in {split} parts" if split > 1 else "")
    buffers = m * k, n * k, 2 * m * n, 4 * m * (k // 128), 4 * -(-n // 128) * (k // 128)
    return Pair(
        f"AITER, FP8 block-scaled, {row['chip']}", "GEMM, FP8 block-scaled",
        f"{row['chip']} instance {row['kernelId']} {shape}", float(row["us"]), row["date"], library, buffers,
        (m, n, k, split), group=f"{row['chip']} {m}x{n}x{k}", memsets=int(split > 1),
        warm=REPETITIONS * (sum(buffers) - buffers[2]) < MEMORY_SIDE_CACHE,
    )  # fmt: skip


def pairs(checkouts: Checkouts) -> list[Pair]:
    """Of each instance and shape the first table's time; later tables measured many again."""
    found: dict[str, Pair] = {}
    known = names(checkouts)
    for row in rows(checkouts):
        if int(row["M"]) <= LARGEST_M and (each := pair(row, known[row["kernelId"]])):
            found.setdefault(each.name, each)
    return list(found.values())
