"""Snektron's FP8 GEMM of the AMD developer challenge: its author's times of many tile configurations on an MI300X.

results.txt has, of 18 shapes, what a pair of events around one launch said, in the second call with the shape. "mma" is
the GEMM alone. Where A and B were transposed before it, "transpose a, b" is that kernel, whose launch the events saw
too: of one shape it took from 6 to 24 us, so it is no pair here. 288 configurations were timed twice:
half of the pairs differ by less than 1 %, a few by 6 to 16 %, one is threefold.

results.txt is older than solution.hip: it does not print stream-K, and its best configurations are not those that
solution.hip picks. That the kernels are the same cannot be shown. What is left of the older main loops in comments
scales after each step of k; solution.hip scales after 128 of k. Both are one loop where the tile's k is 128, so only
such tiles are taken. Tiles of 256 rows or columns give wrong results (their author leaves them out too).
"""

import functools
import re
from collections import defaultdict
from dataclasses import dataclass

from benchmarks.calibration.pairs import Checkouts, Library, Pair

DATE = "2025-06-04"  # of the only commit
LINE = re.compile(
    r"^mma: \((\d+) (\d+) (\d+)\) \((\d+) (\d+) (\d+)\) \((\d+) (\d+) (\d+)\) (\d) (\d) (\d+): [\d.]+ ms ([\d.]+) us",
    re.M,
)
SHAPES = ((1024, 1536, 7168), (1024, 576, 7168), (1024, 4096, 512), (1024, 4608, 7168), (6144, 3072, 1536))
WORST = 3  # times the best of a shape


@dataclass(frozen=True)
class Config:
    tile: tuple[int, int, int]
    mfma: tuple[int, int, int]
    pipeline: int  # steps of k that loads are ahead
    fused: int  # transposes on the way to LDS; otherwise a kernel before does
    threads: int


LARGE = (32, 32, 16)
CONFIGS = (
    Config((64, 64, 128), LARGE, 1, 0, 256),
    Config((64, 128, 128), LARGE, 0, 0, 256),
    Config((64, 128, 128), LARGE, 1, 0, 256),
    Config((128, 128, 128), LARGE, 0, 0, 512),
    Config((128, 128, 128), LARGE, 1, 0, 512),
    Config((128, 128, 128), LARGE, 0, 1, 256),
    Config((64, 64, 128), LARGE, 2, 1, 256),
)
# The peer's file ends with a choice by shape and a Python binding, which this takes the place of.
CUT = re.compile(r"^void run\($", re.M)
BINDING = "#include <pybind11/pybind11.h>\n"
WRAPPER = """
// Pointers: a[k, m], b[k, n], scales of a[k / 128, m], of b[k / 128, n / 128 rounded up], c[m, n]. Sizes: m, n, k.
extern "C" int run(void* const* pointers, const int* sizes) {{
    run_kernel<{threads}, cube{{{tile}}}, cube{{{mfma}}}, {pipeline}, {fused}, false>(
        static_cast<const fp8*>(pointers[0]), static_cast<const fp8*>(pointers[1]),
        static_cast<const fp32*>(pointers[2]), static_cast<const fp32*>(pointers[3]), static_cast<bf16*>(pointers[4]),
        sizes[0], sizes[1], sizes[2], false);
    return 0;
}}
"""


def source(config: Config, checkouts: Checkouts) -> str:
    kernels = checkouts.text("snektron", "solution.hip").replace(
        BINDING, "#include <array>\n#include <cassert>\n#include <tuple>\n"
    )
    (end,) = CUT.finditer(kernels)
    return kernels[: end.start()] + WRAPPER.format(
        threads=config.threads, tile=", ".join(map(str, config.tile)), mfma=", ".join(map(str, config.mfma)),
        pipeline=config.pipeline, fused=("false", "true")[config.fused],
    )  # fmt: skip


def times(checkouts: Checkouts) -> dict[tuple[int, int, int], dict[Config, list[float]]]:
    found = defaultdict(lambda: defaultdict(list))
    for line in LINE.finditer(checkouts.text("snektron", "results.txt")):
        m, n, k, *rest = map(int, line.groups()[:-1])
        found[m, n, k][Config(tuple(rest[:3]), tuple(rest[3:6]), *rest[6:])].append(float(line[13]))
    return found


def library(config: Config) -> Library:
    tile = "x".join(map(str, config.tile))
    return Library(
        name=f"snektron_{tile}_{config.mfma[0]}_depth{config.pipeline}_fused{config.fused}_{config.threads}",
        source=functools.partial(source, config),
    )


def pairs(checkouts: Checkouts) -> list[Pair]:
    found, measured = [], times(checkouts)
    for shape in SHAPES:
        m, n, k = shape
        best = min(min(each) for each in measured[shape].values())
        for config in CONFIGS:
            microseconds = min(measured[shape][config])
            if microseconds > WORST * best:
                continue
            made = library(config)
            groups, columns = k // 128, -(-n // 128)
            # A workgroup reads the scales of 128 rows, also where its tile has 64: up to 64 past the end.
            scales = 4 * (groups * m + 64), 4 * groups * columns
            found.append(
                Pair(
                    source="Snektron, AMD challenge",
                    kind="GEMM, FP8 block-scaled",
                    name=f"{made.name} {m}x{n}x{k}",
                    microseconds=microseconds,
                    date=DATE,
                    library=made,
                    buffers=(m * k, n * k, *scales, 2 * m * n),
                    sizes=shape,
                    group=f"Snektron {m}x{n}x{k}",
                )
            )
    return found
