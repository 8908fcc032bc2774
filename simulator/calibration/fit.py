#!/usr/bin/env python3
"""Look for the clock's constants: those of cost.Chip that are not published, or only roughly.

    python -m simulator.calibration.fit ROUNDS [--only CONSTANT ...]

Fits on half of the stored pairs (accuracy.py says which) and prints the constants for simulator/timing/cost.py. One
constant after the other is moved within its range; a move that lowers the loss is kept; steps shrink.
"""

import argparse
import dataclasses
import multiprocessing
import random
import statistics

from simulator.calibration.accuracy import KINDS, counts, fitted, kind, logs, summary, table
from simulator.calibration.sources import SOURCES
from simulator.calibration.store import Measured, load_all
from simulator.timing.cost import MEASURED, Chip

# Constant -> the range that is plausible, around what is published (docs/journal/simulator-clock.md).
RANGES = {
    "launch_profiler": (0.3e-6, 2.5e-6), "launch_graph": (0.3e-6, 2.5e-6), "hbm": (3.2e12, 4.6e12),
    "fabric": (4e12, 14e12), "l2": (8e12, 34e12), "unit_hbm": (16, 64), "unit_l2": (24, 64), "hbm_latency": (600, 1500),
    "fabric_latency": (400, 1000), "l2_latency": (200, 900), "lds_cycle_latency": (0, 25), "issue": (4, 10),
    "barrier": (0, 100), "start": (0, 4000), "matrix_gap": (0, 8), "power": (0, 1.5), "memset": (1e-6, 6e-6),
}  # fmt: skip
# What the MI325X, which has the same dies, may differ in; and what none of the MI300X's pairs has.
MI325X = ("hbm", "power", "launch_profiler", "memset")
EVENTS = {"launch_events": (0.5e-6, 25e-6)}  # which no time that counts has
TOLERATED = 0.22  # of a logarithm: errors beyond it weigh more
WEIGHTS = {"GEMM": 0.6, "rows": 0.25, "ring": 0.15}  # of the kinds that there are


def _errors(work: tuple[list[Measured], Chip]) -> list[float]:
    pairs, chip = work
    return list(logs(pairs, dict.fromkeys(MEASURED, chip)).values())


class Search:
    def __init__(self, pairs: list[Measured], names: tuple[str, ...], pool, jobs: int):
        self.parts, self.names, self.pool = [pairs[i::jobs] for i in range(jobs)], names, pool

    def loss(self, chip: Chip) -> float:
        """The mean of the kinds' means."""
        errors: dict[str, list[float]] = {name: [] for name in KINDS}
        for part, found in zip(self.parts, self.pool.map(_errors, [(part, chip) for part in self.parts])):
            for each, e in zip(part, found, strict=True):
                errors[kind(each)].append(abs(e) + 2 * max(0.0, abs(e) - TOLERATED))
        there = {name: found for name, found in errors.items() if found}
        whole = sum(WEIGHTS[name] for name in there)
        return sum(WEIGHTS[name] * statistics.fmean(found) for name, found in there.items()) / whole

    def run(self, chip: Chip, rounds: int) -> Chip:
        best, step, order = self.loss(chip), 0.125, random.Random(1)
        for _ in range(rounds):
            before = best
            for name in order.sample(self.names, len(self.names)):
                low, high = (RANGES | EVENTS)[name]
                for sign in (1, -1):
                    moved = getattr(chip, name) + sign * step * (high - low)
                    other = dataclasses.replace(chip, **{name: min(high, max(low, moved))})
                    if other != chip and (found := self.loss(other)) < best:
                        best, chip = found, other
                        break
            print(f"loss {best:.4f}, step {step:.3f}", flush=True)
            if before - best < 0.001:
                step /= 2
        return chip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--only", action="append", choices=RANGES, help="move these, and leave the others")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    pairs, chips, moved = load_all(), dict(MEASURED), args.only or list(RANGES)
    with multiprocessing.Pool(args.jobs) as pool:

        def search(chip: Chip, names: tuple[str, ...], timed: str = "") -> Chip:
            half = [each for each in pairs if each.chip == chip.name and fitted(each)]
            half = [each for each in half if (SOURCES[each.source].timing == timed if timed else counts(each))]
            return Search(half, names, pool, args.jobs).run(chip, args.rounds)

        chips["MI300X"] = search(chips["MI300X"], tuple(name for name in moved if name != "memset"))
        same = {name: getattr(chips["MI300X"], name) for name in RANGES if name not in MI325X}
        chips["MI300X"] = search(chips["MI300X"], tuple(EVENTS), "events")
        chips["MI325X"] = search(dataclasses.replace(chips["MI325X"], **same), tuple(set(MI325X) & set(moved)))
        chips["MI325X"] = dataclasses.replace(chips["MI325X"], launch_events=chips["MI300X"].launch_events)
    for chip in chips.values():
        print(chip)
    print(table(summary(pairs, chips)))


if __name__ == "__main__":
    main()
