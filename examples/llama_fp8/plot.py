"""The operators beside memory and beside torch, as a picture."""

from pathlib import Path

from benchmarks.harness import bars

from .operator_times import OperatorTime


def draw(times: list[OperatorTime], title: str, path: Path) -> None:
    """A PNG with a row a model: the floors by the times, and how many times faster than torch."""
    panels = []
    for model in dict.fromkeys(t.model for t in times):
        rows = [t for t in times if t.model == model]
        read = [t for t in rows if t.floor is not None]
        shares = bars.Bars("this package", "tab:red", [t.floor / t.kernel for t in read])
        ratios = bars.Bars("this package", "tab:red", [t.torch / t.kernel for t in rows])
        panels += [
            bars.Panel(f"{model}: weights", "share of memory's rate", "", _names(read), [shares], top=1.0),
            bars.Panel("beside torch's bfloat16", "times faster", "", _names(rows), [ratios], line=1.0),
        ]
    bars.draw(panels, title, path)


def _names(times: list[OperatorTime]) -> list[str]:
    short = {"add_rms_norm_fp8": "norm", "swiglu_fp8": "SwiGLU"}
    names = (short.get(t.operator, t.operator.removeprefix("skinny_gemm ")) for t in times)
    return [f"{name}\n{t.shape}".replace("x", "\nx") for name, t in zip(names, times)]
