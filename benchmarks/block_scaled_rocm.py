#!/usr/bin/env python3
"""block_scaled_gemm on an MI300X beside AITER's choice of Composable Kernel, both by the simulator's clock.

    python -m benchmarks.block_scaled_rocm [--ck] [--only MxNxK ...] [--config S,P]
    python -m benchmarks.block_scaled_rocm --arch gfx950     # on an MI350X, alone

The shapes are those of the AMD FP8 GEMM challenge. Of CK it takes the instances that AITER's tables for an MI300X name
for a shape, or for the nearest M, and of these the one that the clock finds fastest. With --ck, those without a
recording are run from the libraries of `python -m simulator.calibration.record` (build/calibration; with --library,
another folder). Recordings are kept beside them. Estimates rank; they are no measurement (simulator/README.md).
"""

import argparse
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.harness.gpu_cases import GEMM_VARIABLE, variable
from benchmarks.harness.simulated_rocm import FORMATS
from benchmarks.simulate import Device, empty
from scripts.host_configs import configs
from simulator import Checks, cost, recording
from simulator.calibration import ck_block_scaled, record, store
from simulator.profile import Profile
from simulator.timeline import pack

ARCHS, CHIPLETS = ("gfx942", "gfx950"), 8
COLUMNS_AND_K = (
    *((1536, 7168), (3072, 1536), (576, 7168), (7168, 256), (7168, 2048), (4608, 7168), (7168, 2304)),
    *((512, 7168), (4096, 512)),
)
SHAPES = tuple((m, n, k) for m in (1024, 6144) for n, k in COLUMNS_AND_K)


def parts_of_a_tile(m: int, n: int, k: int, shape: int, parts: int):
    """grid -> the workgroups that begin with the parts of one tile (block_scaled_gemm.hip, unit_at; stream.hip)."""
    tables = configs().tables
    tile = (tables["tiles"] + tables["streams"] + tables["direct"])[shape]
    tiles = -(-m // tile["rows"]) * -(-n // tile["columns"])
    per_chiplet = -(-tiles * parts // CHIPLETS)

    def sample(grid) -> list[int]:
        found = set()
        for part in range(parts):
            if len(tables["tiles"]) <= shape < len(tables["tiles"]) + len(tables["streams"]):
                found.add(tiles // 2 * parts + part)
                continue
            chiplet, place = divmod(part * tiles + tiles // 2, per_chiplet)
            found.add(place * CHIPLETS + chiplet)
        return sorted(group for group in found if group < math.prod(grid)) or [0]

    return sample


def ours(device: Device, m: int, n: int, k: int, config: str | None, arch: str = ARCHS[0]) -> cost.Estimate:
    """With split-K a workgroup of each tile adds the parts. All workgroups share the bandwidth before, and these alone
    in the meantime: what its course takes longer is played with their number."""
    chosen = tuple(map(int, config.split(","))) if config else configs().block_scaled_config(m, n, k, ARCHS.index(arch))
    a, b, out = empty((m, k), FORMATS[arch]), empty((n, k), FORMATS[arch]), empty((m, n), torch.bfloat16)
    blocks = -(-k // 128)
    scales = empty((m, blocks), torch.float32), empty((-(-n // 128), blocks), torch.float32)
    profile, runtime = Profile(), device.rocm.runtime
    checks = Checks(uninitialised_lds=False, races=False, hazards=False, coherence=False)
    options = {"sample": parts_of_a_tile(m, n, k, *chosen), "profile": profile, "checks": checks}
    with device.rocm.on(arch, **options) as kernel, variable(GEMM_VARIABLE, config):
        kernel.block_scaled_gemm(a, b, *scales, out=out)
    return with_adding(recording.record(runtime.launches[-1][4], profile, runtime.beginnings), profile, chosen[1])


def with_adding(whole: recording.Recording, profile: Profile, parts: int) -> cost.Estimate:
    """Of a recording of all parts of a tile: the one with the longest course adds them."""
    groups = sorted(profile.courses.values(), key=lambda each: sum(len(course.steps) for course in each))
    plain = replace(whole, courses=pack(groups[:1]))
    result = cost.estimate(plain, timing="profiler")  # as AITER's times are taken
    if parts == 1:
        return result
    few = replace(plain, grid=max(1, whole.busy // parts), idle=0)
    moved = cost.traffic(whole, result.chip, warm=False)
    alone, adding = (
        cost.play_unit(each, result.chip, moved)[1] for each in (few, replace(few, courses=pack(groups[-1:])))
    )
    return replace(result, seconds=result.seconds + (adding - alone) / result.chip.clock)


def ck_pairs() -> dict[tuple[int, int, int], list]:
    """Shape -> the pairs of AITER's tables for an MI300X with the nearest M."""
    found = {}
    rows = [row for row in ck_block_scaled.rows() if row["chip"] == "MI300X"]
    for m, n, k in SHAPES:
        mine = [row for row in rows if (int(row["n"]), int(row["k"])) == (n, k) and int(row["m"]) >= 1024]
        for date in {row["date"] for row in mine}:
            table = [row for row in mine if row["date"] == date]
            nearest = min((abs(int(row["m"]) - m), -int(row["m"])) for row in table)
            for row in table:
                if (abs(int(row["m"]) - m), -int(row["m"])) == nearest:
                    pair = ck_block_scaled.pair(row | {"m": str(m)})
                    if pair and pair.name not in {each.name for each in found.get((m, n, k), ())}:
                        found.setdefault((m, n, k), []).append(pair)
    return found


def ck_recordings(path: Path, libraries: Path, missing: bool) -> dict[tuple[int, int, int], list]:
    """Of stored recordings; `missing`: those that lack one are run."""
    kept = {each.name: each for each in store.load(path)} if path.is_file() else {}
    for pair in itertools.chain.from_iterable(ck_pairs().values()) if missing else ():
        if pair.name not in kept:
            print(f"running {pair.name}", flush=True)
            kept[pair.name] = record.run(pair, libraries / f"{pair.library.name}.so")
            store.save(path, list(kept.values()))
    found: dict[tuple[int, int, int], list] = {}
    for name, each in kept.items():
        found.setdefault(tuple(map(int, re.search(r"(\d+)x(\d+)x(\d+)", name).groups())), []).append(each)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ck", action="store_true", help="run CK's instances that have no recording yet")
    parser.add_argument("--library", type=Path, default=record.OBJECTS, help="folder of CK's compiled instances")
    parser.add_argument("--only", action="append", default=[], metavar="MxNxK")
    parser.add_argument("--config", metavar="SHAPE,PARTS")
    parser.add_argument("--arch", choices=ARCHS, default=ARCHS[0], help="other kernels are those of an MI300X")
    parser.add_argument("--parts", action="store_true", help="print what the estimate is made of")
    args = parser.parse_args()
    device = Device()
    peers = ck_recordings(record.OBJECTS / "ck_challenge.npz", args.library, args.ck) if args.arch == ARCHS[0] else {}
    shapes = [tuple(map(int, each.split("x"))) for each in args.only] or SHAPES
    ratios = []
    print(
        "| M x N x K | shape, parts | ours, us | bound | CK, us | instance | CK / ours |\n|---|---|---|---|---|---|---|"
    )
    for shape in shapes:
        result = ours(device, *shape, args.config, args.arch)
        peer = min(
            ((cost.estimate(each.recording, timing="profiler"), each.name) for each in peers.get(shape, ())),
            key=lambda each: each[0].seconds,
            default=None,
        )
        us = 1e6 * result.seconds
        config = args.config or ",".join(map(str, configs().block_scaled_config(*shape, ARCHS.index(args.arch))))
        line = f"| {'x'.join(map(str, shape))} | {config} | {us:.1f} | {result.bound} |"
        if peer:
            ratios.append(peer[0].seconds / result.seconds)
            instance = re.search(r"instance (\d+)", peer[1])[1]
            line += f" {1e6 * peer[0].seconds:.1f} | {instance} | {ratios[-1]:.2f} |"
        print(line, flush=True)
        if args.parts:
            print(cost.describe(result))
    if ratios:
        print(f"geometric mean of {len(ratios)}: {math.prod(ratios) ** (1 / len(ratios)):.3f}; least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
