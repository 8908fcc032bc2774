"""The ROCm GEMMs beside Composable Kernel and AITER, all by the simulator's clock: an MI300X, or ours on an MI350X.

    python -m benchmarks simulate gemms block_scaled_gemm [--only MxNxK ...] [--config FORM[,split=N]] [--parts]
    python -m benchmarks simulate gemms int8_gemm --arch gfx950
    python -m benchmarks simulate gemms linear_abde_i8 --ck PATH

block_scaled_gemm has the shapes of the AMD FP8 GEMM challenge; beside it stands the fastest of the instances of CK that
AITER's tables for an MI300X name for a shape, or for the nearest M. int8_gemm is W8A8 beside AITER's published times;
linear_abde_i8 has OPT's sizes, beside CK's batched GEMM with the tile of AMD's article on SmoothQuant, and with the
fastest of all tiles tried. With --ck, CK's instances without a recording are compiled and run (PATH:
simulator/calibration/record.py); recordings are kept in build/calibration. Estimates rank; they are no measurement
(simulator/README.md). `python -m benchmarks tune forms OPERATOR --clock ARCH` tries other configurations.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import ck_smoothquant, clock, sections
from benchmarks.harness.clock import CALLS, estimated
from benchmarks.harness.forms import ARCHS, Size, form_names, picked
from benchmarks.harness.gemm_cases import CHALLENGE, OPT
from benchmarks.harness.simulated_rocm import SimulatedRocm
from benchmarks.harness.table import Table
from simulator.calibration import ck_block_scaled, record, store
from simulator.calibration.pairs import Pair
from simulator.timing import cost

# Of AITER's W8A8, microseconds; None: nothing is published.
AITER = {(16384, 1536, 5120): 211.7, (1024, 5120, 1280): 18.3, (16, 5120, 5120): None, (1, 5120, 5120): None}
SIZES = {"block_scaled_gemm": CHALLENGE, "int8_gemm": tuple(AITER), "linear_abde_i8": OPT}
# The columns beside ours.
PEERS = {
    "block_scaled_gemm": ("CK, instance",),
    "int8_gemm": ("AITER",),
    "linear_abde_i8": ("CK, the article's tile", "CK, the fastest"),
}
RECORDINGS = {"block_scaled_gemm": "ck_challenge.npz", "linear_abde_i8": "ck_smoothquant.npz"}


def shown(size: Size) -> str:
    return "x".join(map(str, size))


def ck_pairs(operator: str) -> Iterator[Pair]:
    """AITER's for an MI300X of the nearest M. Of SmoothQuant's the article's tile reads M copies of D."""
    if operator == "linear_abde_i8":
        for each in ck_smoothquant.INSTANCES:
            yield from (each.pair(*size, broadcast=each != ck_smoothquant.ARTICLE) for size in OPT)
        return
    rows = [row for row in ck_block_scaled.rows(ck_block_scaled.TABLE) if row["chip"] == "MI300X"]
    for m, n, k in CHALLENGE:
        mine = [row for row in rows if (int(row["n"]), int(row["k"])) == (n, k) and int(row["m"]) >= 1024]

        def away(row: dict, m: int = m) -> tuple[int, int]:
            return abs(int(row["m"]) - m), -int(row["m"])

        for date in {row["date"] for row in mine}:
            table = [row for row in mine if row["date"] == date]
            nearest = min(map(away, table))
            pairs = (ck_block_scaled.pair(row | {"m": str(m)}) for row in table if away(row) == nearest)
            yield from filter(None, pairs)


def ck_estimates(operator: str, ck: Path | None, libraries: Path) -> dict[str, float]:
    """Name of an instance and a shape -> microseconds, of stored recordings; with `ck` those that lack one are made."""
    path = record.OBJECTS / RECORDINGS[operator]
    kept = {each.name: each for each in store.load(path)} if path.is_file() else {}
    if ck:
        missing = {pair.name: pair for pair in ck_pairs(operator) if pair.name not in kept}
        for each in record.recorded(list(missing.values()), ck, libraries):
            kept[each.name] = each
            store.save(path, list(kept.values()))
    return {name: 1e6 * cost.estimate(each.recording, timing="profiler").seconds for name, each in kept.items()}


def peers(operator: str, size: Size, estimates: dict[str, float]) -> list[tuple[float | None, str]]:
    """Of each column: microseconds and what they are of."""
    if operator == "int8_gemm":
        return [(AITER.get(size), "")]
    there = re.compile(rf"(?:^|\s){shown(size)}(?: in \d+ parts)?$")
    found = {name: us for name, us in estimates.items() if there.search(name)}
    best = min(found, key=found.__getitem__, default="")
    if operator == "block_scaled_gemm":
        return [(found.get(best), best and re.search(r"instance (\d+)", best)[1])]
    article = f"{ck_smoothquant.ARTICLE.name}, D copied"
    return [(found.get(f"{article}: {shown(size)}"), article), (found.get(best), best.split(":")[0])]


def main() -> None:
    parser = clock.parser(__doc__)
    parser.add_argument("operator", choices=CALLS)
    parser.add_argument("--only", action="append", default=[], metavar="MxNxK")
    parser.add_argument("--parts", action="store_true", help="print what the estimate is made of")
    parser.add_argument("--ck", type=Path, metavar="PATH", help="compile and run what has no recording yet")
    parser.add_argument("--library", type=Path, help="folder of CK's compiled instances (default: build/calibration)")
    args = parser.parse_args()
    operator, beside = args.operator, args.arch == ARCHS[0]
    if args.ck and (operator not in RECORDINGS or not beside):
        parser.error(f"--ck: nothing of Composable Kernel's stands beside {operator} on {args.arch}")
    if args.library and not args.ck:
        parser.error("--library needs --ck")
    if args.config and (args.config.pieces or args.config.form not in form_names(CALLS[operator][1], "rocm")):
        parser.error(f"--config: {operator} has no form {args.config} on ROCm")
    with sections.recorded("simulated_gemms", args):
        run(args, beside)


def run(args, beside: bool) -> None:
    operator, rocm, library = args.operator, SimulatedRocm.built(), args.library or record.OBJECTS
    estimates = ck_estimates(operator, args.ck, library) if operator in RECORDINGS and beside else {}
    columns = [column for peer in PEERS[operator] for column in (f"{peer}, us", "which", "by ours")]
    timed = ["ours, us", *(f"{peer}, us" for peer in PEERS[operator])]
    table = Table(["M x N x K", "form, parts", "ours, us", "bound", *columns], timed)
    ratios: dict[str, list[float]] = {}
    for size in [tuple(map(int, each.split("x"))) for each in args.only] or SIZES[operator]:
        result = estimated(rocm, operator, size, args.arch, args.config)
        us = 1e6 * result.seconds
        config = args.config or picked(CALLS[operator][1], size, args.arch)
        cells = [shown(size), str(config), f"{us:.1f}", result.bound]
        for peer, (theirs, which) in zip(PEERS[operator], peers(operator, size, estimates) if beside else ()):
            cells += [f"{theirs:.1f}", which, f"{theirs / us:.2f}"] if theirs else ["none", "", ""]
            ratios.setdefault(peer, []).extend([theirs / us] if theirs else [])
        cells += [""] * (4 + len(columns) - len(cells))
        table.row(*cells)
        if args.parts:
            print(cost.describe(result))
    for peer, of in ratios.items():
        if of:
            mean = math.prod(of) ** (1 / len(of))
            print(f"times as fast as {peer}: geometric mean of {len(of)} {mean:.3f}, least {min(of):.2f}")
