"""The times of the operators as a picture."""

from pathlib import Path

from benchmarks import bars

from .operator_times import OperatorTime


def draw(times: list[OperatorTime], title: str, path: Path) -> None:
    """A PNG with one panel a model."""
    panels = []
    for model in dict.fromkeys(t.model for t in times):
        rows = [t for t in times if t.model == model]
        groups = [f"{t.operator}\n{t.shape}".replace("skinny_gemm ", "") for t in rows]
        series = [
            bars.Bars("torch, bfloat16", "tab:gray", [t.torch * 1e6 for t in rows]),
            bars.Bars("this package, FP8", "tab:red", [t.kernel * 1e6 for t in rows]),
            bars.Bars("memory floor", "black", [t.floor * 1e6 for t in rows]),
        ]
        panels.append(bars.Panel(model, "microseconds, one row", groups, series))
    bars.draw(panels, title, path)
