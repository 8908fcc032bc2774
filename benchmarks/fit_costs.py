"""Fits what the models of common/gemm/hip/choose.h reckon with to the simulator's clock, and writes costs.h.

    python -m benchmarks tune costs streams                      # of skinny_gemm and block_scaled_gemm
    python -m benchmarks tune costs block_scaled_gemm --size 1024x1536x7168 --data points.jsonl
    python -m benchmarks tune costs int8_gemm --points 0         # of the points that there are

Every form that may take a size is estimated with several parts of K; the points are kept and not made twice. The fit
is the least sum of squares of the ratios' logarithms, from the costs of today; points far from a size's best weigh
less. A cost that is zero stays so. It prints how far the model is from the clock, and what it picks from the best
point of its size. Estimates rank; they are no measurement.
"""

import argparse
import collections
import ctypes
import datetime
import itertools
import json
import math
import re
import sys
from pathlib import Path

from benchmarks.harness.clock import estimated
from benchmarks.harness.forms import ARCHS, Config, Size, form_names
from benchmarks.harness.gpu_environment import commit
from benchmarks.harness.simulated_rocm import SimulatedRocm
from scripts.host_configs import configs

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "common" / "gemm" / "hip" / "costs.h"
POINTS = ROOT / "build" / ".work" / "costs"
OPERATORS = ("skinny_gemm", "block_scaled_gemm", "int8_gemm")  # by their numbers in host_configs.cpp
# Section of the header -> its operators.
SECTIONS = {"streams": OPERATORS[:2], "block_scaled_gemm": OPERATORS[1:2], "int8_gemm": OPERATORS[2:]}
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
Point = tuple[str, int, int, int, str, int]  # operator, size, form, parts
Costs = dict[str, float]  # of a section; a form's name has its block's cycles


def text_of(section: str) -> str:
    """A section's text in the header."""
    return re.search(rf"\n// {section}:.*?(?=\n// \w+:|\n}}  // namespace rocm_fp8)", HEADER.read_text(), re.S)[0]


def read(section: str, arch: int) -> Costs:
    text = text_of(section)
    fields = {name: float(value) for name, value in re.findall(r"\.(\w+) = ([\d.e-]+),", text)}
    cycles = re.findall(r"BlockCycles (\w+)\{\{([\d.]+), ([\d.]+)\}\};", text)
    return fields | {name: float(both[arch]) for name, *both in cycles}


def write(section: str, arch: int, costs: Costs, words: str) -> None:
    text = text_of(section)
    new = re.sub(r"// .*?(?=\n(?:namespace|constexpr))", f"// {section}: {words}", text, count=1, flags=re.S)
    for name, value in costs.items():
        number = f"{value:.4g}"
        new = re.sub(rf"\.{name} = [\d.e-]+,", f".{name} = {number},", new)
        both = [number if place == arch else rf"\g<{place + 1}>" for place in range(len(ARCHS))]
        new = re.sub(rf" {name}\{{\{{([\d.]+), ([\d.]+)\}}\}}", f" {name}{{{{{', '.join(both)}}}}}", new)
    HEADER.write_text(HEADER.read_text().replace(text, new))


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


def sizes_of(us: dict[Point, float]) -> dict[tuple, list[Point]]:
    found = collections.defaultdict(list)
    for point in us:
        found[point[:4]].append(point)
    return found


def fit(us: dict[Point, float], arch: int, costs: Costs) -> Costs:
    """Each cost in turn up or down by a step that shrinks where neither is better."""
    best_of = {size: min(map(us.__getitem__, points)) for size, points in sizes_of(us).items()}

    def error(costs: Costs) -> float:
        return sum(best_of[p[:4]] / us[p] * math.log(model(p, arch, costs) / us[p]) ** 2 for p in us)

    costs, best, steps = dict(costs), error(costs), dict.fromkeys(costs, 0.2)
    while max(steps.values()) > 1e-3:
        for name, step in steps.items():
            if step < 1e-3 or not costs[name]:
                steps[name] = 0
                continue
            tries = [costs | {name: costs[name] * factor} for factor in (1 + step, 1 / (1 + step))]
            least = min(tries, key=error)
            better = error(least) < best
            costs, best = (least, error(least)) if better else (costs, best)
            steps[name] *= 1.3 if better else 0.6
    return costs


def described(us: dict[Point, float], arch: int, costs: Costs) -> str:
    squares = sum(math.log(model(p, arch, costs) / us[p]) ** 2 for p in us) / len(us)
    slower = []
    for size, points in sizes_of(us).items():
        pick = min(points, key=lambda p: model(p, arch, costs))
        slower.append(us[pick] / min(map(us.__getitem__, points)))
        if slower[-1] > 1.05:
            print(f"{size}: {pick[4:]}, {100 * slower[-1] - 100:.0f} % slower than the best", file=sys.stderr)
    mean = math.prod(slower) ** (1 / len(slower))
    return (
        f"{len(us)} estimates, {100 * squares**0.5:.1f} % off; picks at {len(slower)} sizes: {100 * mean - 100:.1f} % "
        f"slower than the best in the mean, {100 * max(slower) - 100:.1f} % at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--arch", choices=ARCHS, default=ARCHS[0], help="whose clock, and whose cycles of a block")
    parser.add_argument("--data", type=Path, help="points, a line each (default: in the build folder)")
    parser.add_argument("--size", action="append", default=[], metavar="MxNxK", help="in place of the usual ones")
    parser.add_argument("--points", type=int, help="estimate at most so many new ones")
    parser.add_argument("--write", action="store_true", help="write the header")
    args = parser.parse_args()
    arch, path = ARCHS.index(args.arch), args.data or POINTS / f"{args.arch}.jsonl"
    sizes = [tuple(map(int, each.split("x"))) for each in args.size] or SIZES[args.section]
    points = wanted(args.section, arch, sizes)
    estimate([each for each in points if each not in kept(path)][: args.points], args.arch, path)
    us = {point: us for point, us in kept(path).items() if point in set(points)}
    costs = read(args.section, arch)
    print("today:", described(us, arch, costs))
    costs = fit(us, arch, costs)
    words = described(us, arch, costs)
    print("fitted:", words)
    print(*(f"{name} {value:.4g}" for name, value in costs.items()), sep="\n")
    if args.write:
        command = f"python -m benchmarks tune costs {args.section} --arch {args.arch} --write"
        date = datetime.date.today().isoformat()
        write(args.section, arch, costs, f"`{command}`, {commit()}, {date}:\n// {words}.")
