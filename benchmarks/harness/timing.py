"""Timing on a shared CPU: several functions in turn in one process, medians, rotated buffers.

Absolute times on such a machine say little; ratios of medians taken in turn do.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import torch

# Buffers of one function together are larger than this, so that none is served from a cache.
ROTATED_BYTES = 256 << 20


def rotated(names: list[str], round_: int) -> list[str]:
    """The order of a round: over the rounds no case always follows the same other one."""
    start = round_ % len(names)
    return names[start:] + names[:start]


def samples_in_turn(
    cases: dict[str, Callable[[int], object]], rounds: int = 15, warm_up: int = 2
) -> dict[str, list[float]]:
    """Seconds of each case, round by round. A case is called with a running number, by which it picks its buffers."""
    names = list(cases)
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(warm_up + rounds):
        for name in rotated(names, round_):
            begin = time.perf_counter()
            cases[name](round_)
            elapsed = time.perf_counter() - begin
            if round_ >= warm_up:
                times[name].append(elapsed)
    return times


def floor(moved: int, measured: Iterable[tuple[int, Sequence[float]]], known_rate: float = 0.0) -> float:
    """What `moved` bytes take at the highest rate that is known of this memory, in the unit of the samples.

    `measured`: of each case its bytes and its times, round by round. In each round the rate is the highest that any
    case reached in it, or `known_rate` where that is higher; the floor is the median over the rounds. So no case can
    beat its own floor, and a memory that is slower for a minute is compared with itself.
    """
    rounds = zip(*([each / time for time in times] for each, times in measured), strict=True)
    return statistics.median(moved / max(known_rate, *rates) for rates in rounds)


def copies(bytes_each: int, together: int | None = None) -> int:
    """How many rotated copies of a buffer to make; `together` is what they come to at least."""
    return max(2, -(-(together or ROTATED_BYTES) // bytes_each))


def ceiling_cases(
    generator: torch.Generator, device: str = "cpu"
) -> tuple[dict[str, Callable[[int], object]], dict[str, int]]:
    """Memory's own rates, to be measured in turn with the operators: name -> function, name -> bytes moved."""
    source = torch.randn(ROTATED_BYTES // 4, generator=generator, device=device)
    target = torch.empty_like(source)
    return (
        {"read": lambda i: source.sum(), "copy": lambda i: target.copy_(source)},
        {"read": source.nbytes, "copy": 2 * source.nbytes},
    )
