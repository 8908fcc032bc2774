#!/usr/bin/env python3
"""How far the clock is from measured times, from the stored recordings alone.

    python -m simulator.calibration.accuracy            # the report
    python -m simulator.calibration.accuracy --write    # and the summary that the simulator shows and the tests hold

Half of the pairs, by a hash of their names, were used to fit the clock's constants (fit.py); errors are of the others.
"""

import argparse
import hashlib
import json
import math
import statistics
from collections.abc import Iterable

from simulator.calibration.sources import SOURCES
from simulator.calibration.store import Measured, digest, load_all
from simulator.timing import cost
from simulator.timing.cost import CALIBRATION, MEASURED, Chip, Estimate

KINDS = ("GEMM", "ring", "rows")  # of kernels, as cost.kind_of tells them


def fitted(each: Measured) -> bool:
    return hashlib.sha256(each.name.encode()).digest()[0] % 2 == 0


def counts(each: Measured) -> bool:
    """Whether its time is one to come up to, rather than one to put in order."""
    return SOURCES[each.source].counted


def kind(each: Measured) -> str:
    return cost.kind_of(each.recording)


def estimated(each: Measured, chip: Chip) -> Estimate:
    """As the pair's time was taken, with warm caches where nothing ever left them."""
    return cost.estimate(each.recording, chip, warm=each.warm, timing=SOURCES[each.source].timing)


def seconds(each: Measured, chip: Chip) -> float:
    """With the pair's memsets."""
    return estimated(each, chip).seconds + each.memsets * chip.memset


def logs(pairs: Iterable[Measured], chips: dict[str, Chip] = MEASURED) -> dict[str, float]:
    """Name -> logarithm of estimate over measured time."""
    return {each.name: math.log(seconds(each, chips[each.chip]) / (1e-6 * each.microseconds)) for each in pairs}


def ranks(values: list[float]) -> list[int]:
    order = sorted(range(len(values)), key=values.__getitem__)
    place = [0] * len(values)
    for rank, index in enumerate(order):
        place[index] = rank
    return place


def rank_correlation(pairs: list[Measured], errors: dict[str, float]) -> float | None:
    """Spearman's, of measured times and estimates."""
    if len(pairs) < 3:
        return None
    measured = [each.microseconds for each in pairs]
    return statistics.correlation(
        ranks(measured), ranks([each.microseconds * math.exp(errors[each.name]) for each in pairs])
    )


def choices(pairs: list[Measured], errors: dict[str, float]) -> dict[str, float]:
    """Problem that several kernels were measured for -> the time of the clock's choice over the best."""
    groups: dict[str, list[Measured]] = {}
    for each in pairs:
        groups.setdefault(each.group, []).append(each)
    found = {}
    for name, members in groups.items():
        if name and len(members) > 1:
            chosen = min(members, key=lambda each: each.microseconds * math.exp(errors[each.name]))
            found[name] = chosen.microseconds / min(each.microseconds for each in members)
    return found


def row(pairs: list[Measured], errors: dict[str, float]) -> dict:
    """Of a set of pairs: relative errors of each half, the other half's largest and its ninth decile, ..."""
    halves = {True: [], False: []}
    for each in pairs:
        halves[fitted(each)].append(abs(math.exp(errors[each.name]) - 1))
    other, rank = sorted(halves[False]), rank_correlation(pairs, errors)
    return {
        "pairs": len(pairs),
        "error": round(statistics.fmean(other), 4) if other else None,
        "largest": round(other[-1], 4) if other else None,
        "nine in ten": round(other[math.ceil(0.9 * len(other)) - 1], 4) if other else None,
        "fitted half": round(statistics.fmean(halves[True]), 4) if halves[True] else None,
        "ratio": round(math.exp(statistics.median(errors[each.name] for each in pairs)), 3),
        "rank": None if rank is None else round(rank, 4),
    }


def summary(pairs: list[Measured], chips: dict[str, Chip] = MEASURED) -> dict:
    errors = logs(pairs, chips)
    counted = [each for each in pairs if counts(each)]
    by_source: dict[str, list[Measured]] = {}
    for each in pairs:
        by_source.setdefault(each.source, []).append(each)
    chosen = choices(pairs, errors)
    everything = row(counted, errors) | {"rank": round(rank_correlation(pairs, errors), 4)}
    return {
        "data": digest(),
        "all": everything,
        "kinds": {name: row([each for each in counted if kind(each) == name], errors) for name in KINDS},
        "choice": {"problems": len(chosen), "over the best": round(statistics.fmean(chosen.values()) - 1, 4)},
        "sources": {name: row(members, errors) for name, members in sorted(by_source.items())},
    }


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def table(found: dict) -> str:
    """Of a summary, in markdown."""
    lines = ["| | pairs | error | nine in ten within | largest | fitted half | median ratio | rank correlation |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    kinds = {f"of these, {name}": each for name, each in found["kinds"].items()}
    for name, each in {"all whose times count": found["all"], **kinds, **found["sources"]}.items():
        shown = [percent(each[column]) for column in ("error", "nine in ten", "largest", "fitted half")]
        rank = "" if each["rank"] is None else f"{each['rank']:.3f}"
        lines.append(f"| {name} | {each['pairs']} | {' | '.join(shown)} | {each['ratio']:.2f} | {rank} |")
    choice = found["choice"]
    lines.append(
        f"\nOf {choice['problems']} problems with several measured kernels the clock's choice takes "
        f"{percent(choice['over the best'])} more than the best, on average."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worst", type=int, default=10, help="pairs to list (default: 10)")
    args = parser.parse_args()
    pairs = load_all()
    found = summary(pairs)
    print(table(found))
    errors = logs(pairs)
    for each in sorted(pairs, key=lambda one: -abs(errors[one.name]))[: args.worst]:
        bound = estimated(each, MEASURED[each.chip]).bound
        print(f"{math.exp(errors[each.name]):.2f} of {each.microseconds:.1f} us, bound by {bound}: {each.name}")
    if args.write:
        CALIBRATION.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
