#!/usr/bin/env python3
"""int8_gemm on an MI300X by the simulator's clock, beside AITER's published times (int8, an MI300X).

    python -m benchmarks.int8_gemm_rocm [--only MxNxK ...] [--config SHAPE,PARTS] [--parts]

Estimates rank; they are no measurement (simulator/README.md). With split-K the last workgroup of a tile adds the parts,
which is estimated as for block_scaled_gemm.
"""

import argparse
import math

import torch

from benchmarks.block_scaled_rocm import CHIPLETS, with_adding
from benchmarks.gpu_cases import GEMM_VARIABLE, variable
from benchmarks.simulate import Device, empty
from scripts.host_configs import configs
from simulator import Checks, cost, recording
from simulator.profile import Profile

ARCH = "gfx942"
# M, N, K -> microseconds; None: nothing is published.
PUBLISHED = {(16384, 1536, 5120): 211.7, (1024, 5120, 1280): 18.3, (16, 5120, 5120): None, (1, 5120, 5120): None}


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


def ours(device: Device, m: int, n: int, k: int, config: str | None) -> cost.Estimate:
    """Scales of rows and columns, a bias, a result in bfloat16."""
    a, b, out = empty((m, k), torch.int8), empty((n, k), torch.int8), empty((m, n), torch.bfloat16)
    scales = empty((m, 1), torch.float32), empty((1, n), torch.float32)
    chosen = configs().int8_config(1, m, n, k, 0, False) if config is None else tuple(map(int, config.split(",")))
    profile, runtime = Profile(), device.rocm.runtime
    checks = Checks(uninitialised_lds=False, races=False, hazards=False, coherence=False)
    with (
        device.rocm.on(ARCH, sample=parts_of_a_tile(m, n, *chosen), profile=profile, checks=checks) as kernel,
        variable(GEMM_VARIABLE, config),
    ):
        kernel.int8_gemm(a, b, *scales, empty((n,), torch.bfloat16), out=out)
    return with_adding(recording.record(runtime.launches[-1][4], profile, runtime.beginnings), profile, chosen[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="MxNxK")
    parser.add_argument("--config", metavar="SHAPE,PARTS")
    parser.add_argument("--parts", action="store_true", help="print what the estimate is made of")
    args = parser.parse_args()
    device = Device()
    print("| M x N x K | shape, parts | ours, us | bound | AITER, us |\n|---|---|---|---|---|")
    for shape in [tuple(map(int, each.split("x"))) for each in args.only] or PUBLISHED:
        result = ours(device, *shape, args.config)
        config = args.config or ",".join(map(str, configs().int8_config(1, *shape, 0, False)))
        peer = PUBLISHED.get(shape)
        name = "x".join(map(str, shape))
        print(f"| {name} | {config} | {1e6 * result.seconds:.1f} | {result.bound} | {peer or 'none'} |", flush=True)
        if args.parts:
            print(cost.describe(result))


if __name__ == "__main__":
    main()
