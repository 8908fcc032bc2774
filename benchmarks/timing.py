"""Timing on a shared CPU: several functions in turn in one process, medians, rotated buffers.

Absolute times on such a machine say little; ratios of medians taken in turn do.
"""

import statistics
import time
from collections.abc import Callable

import torch

# Buffers of one function together are larger than this, so that none is served from a cache.
ROTATED_BYTES = 256 << 20


def rotated(names: list[str], round_: int) -> list[str]:
    """The order of a round: over the rounds no case always follows the same other one."""
    start = round_ % len(names)
    return names[start:] + names[:start]


def in_turn(
    cases: dict[str, Callable[[int], object]],
    rounds: int = 15,
    warm_up: int = 2,
    synchronize: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Median seconds of each case. A case is called with a running number, by which it picks its buffers.

    `synchronize` waits for a GPU; such times hold the launch's latency, which gpu_timing.py's do not.
    """
    names = list(cases)
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(warm_up + rounds):
        for name in rotated(names, round_):
            begin = time.perf_counter()
            cases[name](round_)
            if synchronize:
                synchronize()
            elapsed = time.perf_counter() - begin
            if round_ >= warm_up:
                times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


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
