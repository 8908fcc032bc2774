#!/usr/bin/env python3
"""int8_gemm on an MI300X by the simulator's clock, beside AITER's published times and Composable Kernel.

    python -m benchmarks.int8_gemm_rocm [--only MxNxK ...] [--config SHAPE,PARTS] [--parts] [--arch gfx950]
    python -m benchmarks.int8_gemm_rocm --smoothquant [--ck PATH] [--only MxNxK ...] [--config SHAPE,PARTS]

The first is W8A8 beside AITER's times (int8, an MI300X). The second is linear_abde_i8 at OPT's sizes beside CK's
batched GEMM: with the tile of AMD's article on SmoothQuant, and with the fastest of all tiles tried. CK's instances
are compiled and run where its folder is given (simulator/calibration/record.py says which); their recordings are kept
in build/calibration. Estimates rank; they are no measurement (simulator/README.md). With split-K the last workgroup of
a tile adds the parts, which is estimated as for block_scaled_gemm.
"""

import argparse
import math
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.block_scaled_rocm import ARCHS, CHIPLETS, with_adding
from benchmarks.harness.ck_smoothquant import ARTICLE, INSTANCES
from benchmarks.harness.gpu_cases import GEMM_VARIABLE, variable
from benchmarks.simulate import Device, empty
from scripts.host_configs import configs
from simulator import Checks, cost, recording
from simulator.calibration import record, store
from simulator.calibration.build import build
from simulator.profile import Profile

# M, N, K -> microseconds; None: nothing is published.
PUBLISHED = {(16384, 1536, 5120): 211.7, (1024, 5120, 1280): 18.3, (16, 5120, 5120): None, (1, 5120, 5120): None}
# Of OPT 1.3B, 6.7B and 13B: attention's projections, fc1, fc2.
OPT = tuple(
    (m, n * hidden, k * hidden)
    for m in (32, 512, 2048)
    for hidden in (2048, 4096, 5120)
    for n, k in ((1, 1), (4, 1), (1, 4))
)


def parts_of_a_tile(m: int, n: int, shape: int, parts: int):
    """grid -> the workgroups that begin with the parts of one tile (int8_gemm.hip, unit_at)."""
    tile = configs().tables["int8_tiles"][shape]
    tiles = -(-m // tile["rows"]) * -(-n // tile["columns"])
    per_chiplet = -(-tiles * parts // CHIPLETS)

    def sample(grid) -> list[int]:
        if parts == 1:
            return [0]
        of_parts = (divmod(part * tiles + tiles // 2, per_chiplet) for part in range(parts))
        found = {place * CHIPLETS + chiplet for chiplet, place in of_parts}
        return sorted(group for group in found if group < math.prod(grid)) or [0]

    return sample


def w8a8(kernel, m: int, n: int, k: int) -> Callable[[], None]:
    """Scales of rows and columns, a bias, a result in bfloat16."""
    a, b, out = empty((m, k), torch.int8), empty((n, k), torch.int8), empty((m, n), torch.bfloat16)
    scales = empty((m, 1), torch.float32), empty((1, n), torch.float32)
    return lambda: kernel.int8_gemm(a, b, *scales, empty((n,), torch.bfloat16), out=out)


def smoothquant(kernel, m: int, n: int, k: int) -> Callable[[], None]:
    a, b, out = empty((m, k), torch.int8), empty((n, k), torch.int8), empty((m, n), torch.int8)
    return lambda: kernel.linear_abde_i8(a, b, empty((n,), torch.int8), 0.01, 0.5, out=out)


def ours(
    device: Device, call: Callable, m: int, n: int, k: int, config: str | None, arch: str = ARCHS[0]
) -> cost.Estimate:
    chosen = (
        tuple(map(int, config.split(","))) if config else configs().int8_config(1, m, n, k, ARCHS.index(arch), False)
    )
    profile, runtime = Profile(), device.rocm.runtime
    checks = Checks(uninitialised_lds=False, races=False, hazards=False, coherence=False)
    with (
        device.rocm.on(arch, sample=parts_of_a_tile(m, n, *chosen), profile=profile, checks=checks) as kernel,
        variable(GEMM_VARIABLE, config),
    ):
        call(kernel, m, n, k)()
    return with_adding(recording.record(runtime.launches[-1][4], profile, runtime.beginnings), profile, chosen[1])


def ck_estimates(ck: Path | None) -> dict[str, float]:
    """Name of an instance and a shape -> seconds. The article's tile reads M copies of D, the others one row."""
    path = record.OBJECTS / "ck_smoothquant.npz"
    kept = {each.name: each for each in store.load(path)} if path.is_file() else {}
    if ck:
        pairs = [each.pair(*shape, broadcast=each != ARTICLE) for each in INSTANCES for shape in OPT]
        libraries = {each.library.name: each.library for each in pairs if each.name not in kept}
        built = {name: build(library, ck.resolve(), record.OBJECTS) for name, library in libraries.items()}
        work = [(each, built[each.library.name]) for each in pairs if each.name not in kept]
        # As record.py does: what launches registered is not all given back.
        with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=20) as pool:
            for each in pool.map(record.one, work, chunksize=1):
                if isinstance(each, str):
                    print(f"left out: {each}")
                else:
                    kept[each.name] = each
        store.save(path, list(kept.values()))
    return {name: cost.estimate(each.recording, timing="profiler").seconds for name, each in kept.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="MxNxK")
    parser.add_argument("--config", metavar="SHAPE,PARTS")
    parser.add_argument("--arch", choices=ARCHS, default=ARCHS[0], help="other kernels are those of an MI300X")
    parser.add_argument("--parts", action="store_true", help="print what the estimate is made of")
    parser.add_argument("--smoothquant", action="store_true", help="linear_abde_i8 at OPT's sizes beside CK")
    parser.add_argument("--ck", type=Path, metavar="PATH")
    args = parser.parse_args()
    peers = ck_estimates(args.ck) if args.smoothquant and args.arch == ARCHS[0] else {}
    device = Device()
    others = "CK, the article's tile, us | the fastest CK, us | which |" if args.smoothquant else "AITER, us |"
    print(f"| M x N x K | shape, parts | ours, us | bound | {others}")
    print("|---" * (4 + others.count("|")) + "|")
    ratios: dict[str, list[float]] = {}
    for shape in [tuple(map(int, each.split("x"))) for each in args.only] or (OPT if args.smoothquant else PUBLISHED):
        result = ours(device, smoothquant if args.smoothquant else w8a8, *shape, args.config, args.arch)
        config = args.config or ",".join(map(str, configs().int8_config(1, *shape, ARCHS.index(args.arch), False)))
        name, us = "x".join(map(str, shape)), 1e6 * result.seconds
        line = f"| {name} | {config} | {us:.1f} | {result.bound} |"
        if args.smoothquant:
            found = {key.split(":")[0]: 1e6 * value for key, value in peers.items() if key.endswith(f" {name}")}
            article = found.get(f"{ARTICLE.name}, D copied", math.nan)
            best = min(found, key=found.get, default="none")
            fastest = found.get(best, math.nan)
            ratios.setdefault("the article's tile", []).append(article / us)
            ratios.setdefault("the fastest", []).append(fastest / us)
            line += f" {article:.1f} | {fastest:.1f} | {best} |"
        else:
            published = PUBLISHED.get(shape) if args.arch == ARCHS[0] else None
            line += f" {published or 'none'} |"
        print(line, flush=True)
        if args.parts:
            print(cost.describe(result))
    for peer, of in ratios.items():
        mean = math.prod(of) ** (1 / len(of))
        print(f"times as fast as {peer}: geometric mean of {len(of)} {mean:.2f}, least {min(of):.2f}")


if __name__ == "__main__":
    main()
