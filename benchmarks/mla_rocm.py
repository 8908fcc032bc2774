"""MLA decode on an MI300X by the simulator's clock, beside the floors of its bytes and operations.

    python -m benchmarks simulate mla                                     the cases that bounds are set for, and others
    python -m benchmarks simulate mla --only h16 --config r16,split=4     another form, another number of splits
    python -m benchmarks simulate mla --challenge         our kernels of a step of examples/mla_challenge.py

Floors: the cache's bytes at 4.2 TB/s, and 2176 operations a row and token at 708 TFLOP/s. Estimates rank; they are no
measurement (simulator/README.md).
"""

import argparse
import math
from dataclasses import dataclass

import torch

from benchmarks.harness import sections
from benchmarks.harness.clock import Clock, parser
from benchmarks.harness.forms import Config
from benchmarks.harness.gpu_cases import forced
from benchmarks.harness.simulated_rocm import FORMATS, empty
from benchmarks.harness.table import Table
from simulator.timing import cost

BYTES_PER_US, OPERATIONS_PER_US = 4.2e6, 708e6
WIDTH, LATENT, MIXED, PAGE = 576, 512, 656, 64
BYTES = {"wide": 2 * WIDTH, "fp8": WIDTH, "mixed": MIXED}
CHALLENGE, MOST = ((128, 4096), (128, 6144)), 8192  # sequences and their tokens before the step; places of a sequence


@dataclass(frozen=True)
class Case:
    heads: int
    batch: int
    tokens: int
    format: str = "wide"
    queries: int = 1

    @property
    def name(self) -> str:
        speculative = f" s{self.queries}" if self.queries > 1 else ""
        return f"{self.format} h{self.heads}{speculative} b{self.batch} n{self.tokens}"

    @property
    def floors(self) -> tuple[float, float]:
        tokens = self.batch * self.tokens
        operations = 2 * (WIDTH + LATENT) * tokens * self.heads * self.queries
        return tokens * BYTES[self.format] / BYTES_PER_US, operations / OPERATIONS_PER_US


CASES = (
    Case(16, 128, 4096),
    Case(128, 128, 4096),
    Case(16, 1, 32768),
    Case(32, 128, 4096),
    Case(64, 128, 4096),
    Case(128, 1, 32768),
    Case(16, 1, 4096),
    Case(128, 16, 8192, "wide", 2),
    *(Case(heads, 128, 4096, kind) for kind in ("fp8", "mixed") for heads in (16, 128)),
)


def times(clock: Clock, call, sequences: int = 0) -> list[cost.Estimate]:
    """Of each launch that `call(kernel)` makes. sequences: whose places the workgroups share evenly; then eight are
    looked at, at eight parts of a sequence."""

    def sample(grid: tuple) -> list[int]:
        count = math.prod(grid)
        if sequences and count >= 8 * sequences:
            each = count // sequences
            return [each * (sequences * i // 8) + each * (2 * i + 1) // 16 for i in range(8)]
        return sorted({0, count // 2})

    return [cost.estimate(each, timing="graph") for each in clock.recordings(call, sample)]


def run(clock: Clock, case: Case, config: Config | None) -> list[cost.Estimate]:
    dtypes = {"wide": torch.bfloat16, "fp8": FORMATS[clock.arch], "mixed": torch.uint8}
    pages = case.batch * case.tokens // PAGE
    cache = empty((pages, PAGE, MIXED if case.format == "mixed" else WIDTH), dtypes[case.format])
    table = empty((case.batch, pages // case.batch), torch.int32)
    table.copy_(torch.randperm(pages).view(table.shape))
    lengths = empty((case.batch,), torch.int32).fill_(case.tokens)
    q = empty((case.batch, case.queries, case.heads, WIDTH), torch.bfloat16)
    out = empty((*q.shape[:3], LATENT), torch.bfloat16)
    scale = {"cache_scale": torch.ones(1)} if case.format == "fp8" else {}
    with forced("mla_decode", config):
        return times(
            clock, lambda kernel: kernel.mla_decode(q, cache, lengths, 192**-0.5, block_table=table, out=out, **scale)
        )


def challenge(clock: Clock, batch: int, tokens: int) -> dict[str, float]:
    """Microseconds of mla_append, of all tokens, of their rotated numbers alone, and of the new ones, and of
    mla_decode, its merge included."""
    # Of the cache that is handed in, apart: the simulator keeps rows that do not touch one by one.
    latent, rope = (empty((batch * MOST, width), torch.bfloat16) for width in (LATENT, WIDTH - LATENT))
    rotated = empty((batch, MOST, WIDTH), torch.bfloat16)
    lengths = empty((batch,), torch.int32).fill_(tokens + 1)
    places = torch.arange(batch * MOST).view(batch, MOST)
    slots = empty((batch * MOST,), torch.int64)
    slots.view(batch, MOST).copy_(torch.where(torch.arange(MOST) <= tokens, places, -1))
    cos, sin = (empty((MOST, WIDTH - LATENT), torch.bfloat16) for _ in range(2))
    q, out = (empty((batch, 1, 128, width), torch.bfloat16) for width in (WIDTH, LATENT))
    new = empty((batch,), torch.int64)
    new.copy_(places[:, tokens])

    def append(of: torch.Tensor | None, count: int, at: torch.Tensor):
        turned = dict(cos=cos[:count], sin=sin[:count])
        return lambda kernel: kernel.mla_append(of, rope[:count], rotated, at, **turned)

    calls = {
        "mla_append, all tokens": times(clock, append(latent, batch * MOST, slots), batch),
        "mla_append, rotated numbers": times(clock, append(None, batch * MOST, slots), batch),
        "mla_append, new tokens": times(clock, append(latent[:batch], batch, new)),
        "mla_decode": times(clock, lambda kernel: kernel.mla_decode(q, rotated, lengths, 192**-0.5, out=out)),
    }
    return {name: sum(1e6 * each.seconds for each in found) for name, found in calls.items()}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", metavar="TEXT", help="cases whose name holds it")
    options.add_argument("--describe", action="store_true", help="the parts of each launch's time")
    options.add_argument("--challenge", action="store_true", help="a step of examples/mla_challenge.py")
    args = options.parse_args()
    with sections.recorded("mla_rocm", args):
        (of_challenge if args.challenge else of_cases)(Clock(args.arch), args)


def of_challenge(clock: Clock, args: argparse.Namespace) -> None:
    table = None
    for batch, tokens in CHALLENGE:
        us = challenge(clock, batch, tokens)
        kept = us["mla_append, new tokens"] + us["mla_decode"]
        rotating = us["mla_append, rotated numbers"] + kept
        timed = [*(f"{name}, us" for name in us), "sum, anew", "sum, kept"]
        table = table or Table(["batch", "tokens", *timed], timed)
        table.row(str(batch), str(tokens), *(f"{v:.1f}" for v in (*us.values(), rotating, kept)))


def of_cases(clock: Clock, args: argparse.Namespace) -> None:
    timed = ["us", "merge, us", "bytes, us"]
    table = Table(["case", *timed, "ratio", "TFLOP/s", "bound"], timed)
    for case in CASES:
        if args.only and args.only not in case.name:
            continue
        found = run(clock, case, args.config)
        parts = [1e6 * each.seconds for each in found]
        floor, operations = case.floors
        rate = operations * OPERATIONS_PER_US / sum(parts) / 1e6
        cells = [sum(parts), sum(parts[1:]), floor, sum(parts) / floor, rate]
        table.row(case.name, *(f"{v:.2f}" for v in cells), found[0].bound)
        if args.describe:
            print(*map(cost.describe, found), sep="\n\n")
