"""Configurations of one GEMM in turn: each is verified and timed alone, then those near the fastest in turn."""

import itertools
import math
from collections.abc import Callable, Iterable

from benchmarks.harness import gpu_timing
from benchmarks.harness.forms import FAR, UNFIT, Config
from benchmarks.harness.gpu_cases import forced
from benchmarks.harness.gpu_report import note
from benchmarks.harness.gpu_timing import Effort, Times, record

Choice = Config | None  # None: what the operator picks by itself
ALONE, LAUNCHES = Effort(warm_up=16, iterations=1, samples=2), 16  # of a configuration's first timing
LONG_US = 40  # of a launch: a graph of LAUNCHES shows nothing of the gap behind it
HOPELESS, HOPELESS_US = 4, 100  # times the fastest's time: a single launch says enough


def tried(
    what: str,
    choices: Callable[[dict], Iterable[Choice]],
    microseconds: Callable[[Choice, float], float],
    refuses: bool,
) -> tuple[dict[Choice, float], bool]:
    """Microseconds by choice, in the order of `choices`, which sees what is there already; whether none went wrong.

    `microseconds` gets the fastest's so far. What is wrong or fails is named on stderr and left out. refuses: it is no
    fault that the operator takes a configuration for these arguments not at all.
    """
    us: dict[Choice, float] = {}
    all_right = True
    for choice in choices(us):
        if choice in us:
            continue
        try:
            us[choice] = microseconds(choice, min(us.values(), default=math.inf))
        except Exception as error:
            if refuses and UNFIT in str(error):
                continue
            reason = (str(error).strip() or "without a word").splitlines()[0]
            note(f"left out: {what}, {choice or 'own choice'}: {type(error).__name__}: {reason}")
            all_right = False
    return us, all_right


def sweep(
    operator: str, case, choices: Callable[[dict], Iterable[Config]], effort: Effort
) -> tuple[dict[Choice, float], dict[Choice, Times], bool]:
    """On a GPU: microseconds of all, the own choice first; times of it and of those near the fastest, in turn; whether
    all were right."""

    def alone(choice: Choice, fastest: float) -> float:
        with forced(operator, choice):
            case.verify_ours(str(choice or "own choice"))
            us = min(gpu_timing.once(case.ours, i % case.count) for i in (1, 2))  # one may meet a hiccup
            if us > max(HOPELESS_US, HOPELESS * fastest):
                return us
            return gpu_timing.measure({"alone": record(case.ours, case.count, LAUNCHES)}, ALONE)["alone"].median_us

    us, all_right = tried(
        case.name, lambda us: itertools.chain([None], choices(us)), alone, refuses=operator != "skinny_gemm"
    )
    recorded = {}
    for choice in us:
        if not choice or us[choice] <= FAR * min(us.values()):
            with forced(operator, choice):
                recorded[choice] = record(case.ours, case.count, LAUNCHES if us[choice] > LONG_US else None)
    times = gpu_timing.measure(recorded, effort) if recorded else {}
    return us | {choice: one.median_us for choice, one in times.items()}, times, all_right
