"""Fits what the models of GEMMs reckon with, and writes costs.h.

    python -m benchmarks tune costs streams                      # of skinny_gemm and block_scaled_gemm
    python -m benchmarks tune costs block_scaled_gemm --size 1024x1536x7168 --data points.jsonl
    python -m benchmarks tune costs int8_gemm --points 0         # of the points that there are
    python -m benchmarks tune costs h200 --times forms.json      # of `tune forms block_scaled_gemm --json`

Those of common/gemm/hip/choose.h are fitted to the simulator's clock. Every form that may take a size is estimated with
several parts of K; the points are kept and not made twice. Those of common/gemm/cuda/choice.h are fitted to times of
all configurations: sections h200 and h100 to block_scaled_gemm's on these chips, int8 to int8_gemm's.

The fit is the least sum of squares of the ratios' logarithms, from the costs of today. Estimates rank: what counts is a
point's error less the mean of its size's points, and little of that mean; the further a point is from its size's best,
the less it weighs. A cost that is zero stays so. It prints how far the model is from the points, and what it picks from
the best point of its size. An estimate is no measurement.
"""

import argparse
import collections
import ctypes
import datetime
import functools
import itertools
import json
import math
import re
import sys
from pathlib import Path

import torch

from benchmarks.harness.clock import estimated
from benchmarks.harness.forms import ARCHS, Config, Size, form_names
from benchmarks.harness.gpu_environment import commit
from benchmarks.harness.simulated_rocm import SimulatedRocm
from scripts.host_configs import configs

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "common" / "gemm" / "hip" / "costs.h"
POINTS = ROOT / "build" / ".work" / "costs"
MEASURED_HEADER = ROOT / "common" / "gemm" / "cuda" / "costs.h"
OPERATORS = ("skinny_gemm", "block_scaled_gemm", "int8_gemm")  # by their numbers in host_configs.cpp
# Section of the header -> its operators. MEASURED: of that of CUDA -> its operator.
SECTIONS = {"streams": OPERATORS[:2], "block_scaled_gemm": OPERATORS[1:2], "int8_gemm": OPERATORS[2:]}
MEASURED = {"h200": "block_scaled_gemm", "h100": "block_scaled_gemm", "int8": "int8_gemm"}
# Of the fit: how a point's weight falls with best / time, to nothing at FAR; what counts of a size's mean error.
NEARNESS, FAR, SIZES_SHARE = 4, 2, 0.2
PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
FEW = [(512, 7168), (1536, 2048), (2112, 7168), (7168, 2048), (4096, 7168), (24576, 1536), (4096, 14336), (2304, 16384)]
TILES = [
    *((64, 4096, 7168), (64, 7168, 2048), (128, 4096, 7168), (128, 7168, 2048), (256, 3072, 5120), (256, 14336, 256)),
    *((512, 1536, 4096), (1024, 512, 7168), (1024, 1536, 7168), (1024, 7168, 2048), (4096, 576, 5120)),
    *((1024, 4096, 512), (6144, 576, 7168), (6144, 1536, 2048)),
]
SIZES = {
    "streams": [(m, *size) for size in FEW for m in (8, 16, 32)],
    "block_scaled_gemm": TILES,
    "int8_gemm": [*((m, *size) for size in FEW[:4] for m in (16, 32)), *TILES],
}
Point = tuple  # operator, size (three), form, parts; of what was measured also pieces
Costs = dict[str, float]  # of a section; a form's name has its block's cycles


def header_of(section: str) -> Path:
    return MEASURED_HEADER if section in MEASURED else HEADER


def text_of(section: str) -> str:
    """A section's text in its header."""
    text = header_of(section).read_text()
    return re.search(rf"\n// {section}:.*?(?=\n// \w+:|\n}}  // namespace rocm_fp8)", text, re.S)[0]


def read(section: str, arch: int) -> Costs:
    text = text_of(section)
    fields = {name: float(value) for name, value in re.findall(r"\.(\w+) = ([\d.e+-]+),", text)}
    cycles = re.findall(r"BlockCycles (\w+)\{\{([\d.]+), ([\d.]+)\}\};", text)
    return fields | {name: float(both[arch]) for name, *both in cycles}


def write(section: str, arch: int, costs: Costs, words: str) -> None:
    text = text_of(section)
    new = re.sub(r"// .*?(?=\n(?:namespace|constexpr))", f"// {section}: {words}", text, count=1, flags=re.S)
    for name, value in costs.items():
        number = f"{value:.4g}"
        new = re.sub(rf"\.{name} = [\d.e+-]+,", f".{name} = {number},", new)
        both = [number if place == arch else rf"\g<{place + 1}>" for place in range(len(ARCHS))]
        new = re.sub(rf" {name}\{{\{{([\d.]+), ([\d.]+)\}}\}}", f" {name}{{{{{', '.join(both)}}}}}", new)
    header_of(section).write_text(header_of(section).read_text().replace(text, new))


def models(points: list[Point], arch: int, costs: Costs) -> list[float]:
    """Of points of one operator, where they were measured; else of any."""
    if not points or len(points[0]) == 6:
        return [model(point, arch, costs) for point in points]
    operator, us = points[0][0], (ctypes.c_double * len(points))()
    numbers = (ctypes.c_double * len(costs))(*costs.values())
    configs().cuda_tiles_us(operator == "int8_gemm", numbers, len(points), _numbers(tuple(points)), us)
    return list(us)


@functools.lru_cache(1)
def _numbers(points: tuple[Point, ...]) -> ctypes.Array:
    place = {name: i for i, name in enumerate(form_names(points[0][0], "cuda"))}
    rows = [(*size, place[form], parts, pieces) for _, *size, form, parts, pieces in points]
    return (ctypes.c_int64 * (6 * len(rows)))(*itertools.chain(*rows))


def model(point: Point, arch: int, costs: Costs) -> float:
    operator, *size, form, parts = point
    fields = [value for name, value in costs.items() if name not in form_names(operator, "rocm")]
    numbers = (ctypes.c_double * (len(fields) + 1))(*fields, costs.get(form, 0))
    place = form_names(operator, "rocm").index(form)
    return configs().gemm_us(OPERATORS.index(operator), arch, place, parts, *size, numbers)


def wanted(section: str, arch: int, sizes: list[Size]) -> list[Point]:
    found = []
    for size, operator in itertools.product(sizes, SECTIONS[section]):
        for place, form in enumerate(form_names(operator, "rocm")):
            most = configs().gemm_most_parts(OPERATORS.index(operator), arch, place, *size)
            found += [(operator, *size, form, parts) for parts in PARTS if parts <= most]
    return found


def kept(path: Path) -> dict[Point, float]:
    lines = path.read_text().splitlines() if path.is_file() else []
    return {tuple(line[:6]): line[6] for line in map(json.loads, lines)}


def estimate(points: list[Point], arch: str, path: Path) -> None:
    rocm = SimulatedRocm.built()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for operator, *size, form, parts in points:
            us = 1e6 * estimated(rocm, operator, tuple(size), arch, Config(form, parts)).seconds
            file.write(json.dumps([operator, *size, form, parts, round(us, 4)]) + "\n")
            file.flush()


def measured(path: Path, operator: str) -> dict[Point, float]:
    """Of what `tune forms --json` has kept."""
    found = {}
    for result in json.loads(path.read_text())["results"]:
        for text, us in result["times"].items():
            config = Config.parse(text)
            if config.form != "fallback" and result["operator"] == operator:
                found[operator, *result["size"], config.form, config.split, config.pieces] = us
    return found


def sizes_of(us: dict[Point, float]) -> dict[tuple, list[Point]]:
    found = collections.defaultdict(list)
    for point in us:
        found[point[:4]].append(point)
    return found


def fit(us: dict[Point, float], arch: int, costs: Costs) -> Costs:
    """Levenberg and Marquardt's method on the costs' logarithms."""
    points, by_size = list(us), sizes_of(us)
    best_of = {size: min(map(us.__getitem__, all_of)) for size, all_of in by_size.items()}
    time = torch.tensor(list(us.values()), dtype=torch.float64)
    place = {size: i for i, size in enumerate(by_size)}
    size_of = torch.tensor([place[point[:4]] for point in points])
    best = torch.tensor(list(best_of.values()), dtype=torch.float64)[size_of]
    weight = torch.where(time < FAR * best, (best / time) ** NEARNESS, 0)
    sums = torch.zeros(len(place), dtype=torch.float64)
    weight /= sums.index_add(0, size_of, weight)[size_of]
    free = [name for name, value in costs.items() if value]

    def named(logs: torch.Tensor) -> Costs:
        return costs | dict(zip(free, logs.exp().tolist()))

    def errors(logs: torch.Tensor) -> torch.Tensor:
        """Of each point beside its size's mean, and some of that mean."""
        of_point = (torch.tensor(models(points, arch, named(logs)), dtype=torch.float64) / time).log()
        mean = sums.index_add(0, size_of, weight * of_point)
        return torch.cat([weight.sqrt() * (of_point - mean[size_of]), SIZES_SHARE * mean])

    logs = torch.tensor([costs[name] for name in free], dtype=torch.float64).log()
    now, damping, nudge = errors(logs), 1e-2, 0.05
    while nudge > 1e-3:  # the models have kinks: where slopes lead nowhere, they are taken nearer
        nudges = nudge * torch.eye(len(free), dtype=torch.float64)
        slopes = torch.stack([(errors(logs + each) - errors(logs - each)) / (2 * nudge) for each in nudges], 1)
        curvature, down, before = slopes.T @ slopes, slopes.T @ now, now @ now
        while damping < 1e3:
            held = curvature + damping * torch.diag(curvature.diagonal() + 1e-4 * curvature.diagonal().max())
            step = torch.linalg.solve(held, -down).clamp(-0.5, 0.5)
            if (then := errors(logs + step)) @ then < before:
                logs, now, damping = logs + step, then, damping / 3
                break
            damping *= 4
        if before - now @ now < 1e-4 * before:
            nudge, damping = nudge / 2, 1e-2
    return named(logs)


def described(us: dict[Point, float], arch: int, costs: Costs) -> str:
    made = dict(zip(us, models(list(us), arch, costs)))
    squares = sum(math.log(made[point] / us[point]) ** 2 for point in us) / len(us)
    slower = []
    for size, points in sizes_of(us).items():
        pick = min(points, key=made.__getitem__)
        slower.append(us[pick] / min(map(us.__getitem__, points)))
        if slower[-1] > 1.05:
            print(f"{size}: {pick[4:]}, {100 * slower[-1] - 100:.0f} % slower than the best", file=sys.stderr)
    mean = math.prod(slower) ** (1 / len(slower))
    return (
        f"{len(us)} points, {100 * squares**0.5:.1f} % off; picks at {len(slower)} sizes: {100 * mean - 100:.1f} % "
        f"slower than the best in the mean, {100 * max(slower) - 100:.1f} % at most"
    )


def estimated_points(args: argparse.Namespace, arch: int) -> dict[Point, float]:
    path = args.data or POINTS / f"{ARCHS[arch]}.jsonl"
    sizes = [tuple(map(int, each.split("x"))) for each in args.size] or SIZES[args.section]
    points = wanted(args.section, arch, sizes)
    known = kept(path)
    estimate([each for each in points if each not in known][: args.points], ARCHS[arch], path)
    known = kept(path)
    return {point: known[point] for point in points if point in known}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=(*SECTIONS, *MEASURED))
    parser.add_argument("--arch", choices=ARCHS, help=f"whose clock, and whose cycles of a block (default: {ARCHS[0]})")
    parser.add_argument("--data", type=Path, help="points, a line each (default: in the build folder)")
    parser.add_argument("--size", action="append", default=[], metavar="MxNxK", help="in place of the usual ones")
    parser.add_argument("--points", type=int, help="estimate at most so many new ones")
    parser.add_argument("--times", type=Path, help="of h200, h100 and int8: the file that `tune forms --json` wrote")
    parser.add_argument("--write", action="store_true", help="write the header")
    args = parser.parse_args()
    if bool(args.times) != (args.section in MEASURED):
        parser.error(f"--times: of {', '.join(MEASURED)}, which need it")
    if args.times and (args.arch or args.data or args.size or args.points is not None):
        parser.error("--arch, --data, --size and --points are of estimates by the clock: they do not go with --times")
    arch = ARCHS.index(args.arch or ARCHS[0])
    us = measured(args.times, MEASURED[args.section]) if args.times else estimated_points(args, arch)
    costs = read(args.section, arch)
    print("today:", described(us, arch, costs))
    costs = fit(us, arch, costs)
    words = described(us, arch, costs)
    print("fitted:", words)
    print(*(f"{name} {value:.4g}" for name, value in costs.items()), sep="\n")
    if args.write:
        how = "--times FILE" if args.times else f"--arch {ARCHS[arch]}"
        command = f"python -m benchmarks tune costs {args.section} {how} --write"
        date = datetime.date.today().isoformat()
        write(args.section, arch, costs, f"`{command}`, {commit()}, {date}:\n// {words}.")
