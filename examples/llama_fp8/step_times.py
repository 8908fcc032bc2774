"""Where the time of a decoding step goes on a CPU, operator by operator, as torch's profiler sees it."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness import bars

_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "_scaled_mm", "mkldnn_linear")
_ATTENTION = ("scaled_dot_product", "_flash_attention", "softmax")
_SHOWN = 6
STEPS = 20  # that are measured, after one that is not


@dataclass(frozen=True)
class Share:
    operator: str
    calls: float  # a step
    microseconds: float  # a step, without what the operator calls


def _label(name: str, namespace: str) -> str:
    of, _, operator = name.rpartition("::")
    if of == namespace:
        return operator
    if operator in _PRODUCTS:
        return "torch: products"
    if any(part in operator for part in _ATTENTION):
        return "torch: attention"
    return "torch: all else"


def measure(step: Callable[[], object], namespace: str) -> list[Share]:
    """Shares of one step, the largest first. namespace: of this package's operators."""
    step()
    with _silent(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(STEPS):
            step()
    found: dict[str, tuple[int, float]] = {}
    for event in profile.key_averages():
        label = _label(event.key, namespace)
        calls, time = found.get(label, (0, 0.0))
        found[label] = calls + event.count, time + event.self_cpu_time_total
    shares = [Share(label, calls / STEPS, time / STEPS) for label, (calls, time) in found.items()]
    return sorted(shares, key=lambda share: -share.microseconds)


@contextlib.contextmanager
def _silent():
    """The profiler's library writes to the process's stderr that it sees no GPU."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def table(steps: dict[str, list[Share]]) -> str:
    """steps: model -> its shares."""
    lines = []
    for model, shares in steps.items():
        total = sum(share.microseconds for share in shares)
        lines += [f"{model:<28}{'calls':>8}{'us':>10}{'share':>9}"]
        lines += [
            f"  {share.operator:<26}{share.calls:>8.0f}{share.microseconds:>10.0f}{share.microseconds / total:>9.1%}"
            for share in shares
        ]
        lines += [f"  {'all':<34}{total:>10.0f}"]
    return "\n".join(lines)


def draw(steps: dict[str, list[Share]], title: str, path: Path) -> None:
    """A PNG with a row a model: microseconds of the largest shares."""
    panels = []
    for model, shares in steps.items():
        shown = shares[:_SHOWN]
        names = [share.operator.replace("torch: ", "torch:\n").replace("_", "\n") for share in shown]
        heights = [share.microseconds for share in shown]
        panels.append(bars.Panel(model, "us of a step", "", names, [bars.Bars("a step", "tab:red", heights)]))
    bars.draw(panels, title, path)
