"""The times of the operators as a picture."""

import os
from pathlib import Path

from .operator_times import OperatorTime


def draw(times: list[OperatorTime], title: str, path: Path) -> None:
    """A PNG with one panel a model; written beside `path`, then renamed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(t.model for t in times))
    figure, panels = pyplot.subplots(1, len(models), figsize=(7 * len(models), 4.5), squeeze=False)
    for panel, model in zip(panels[0], models):
        rows = [t for t in times if t.model == model]
        for offset, (label, color, value) in enumerate(
            (
                ("torch, bfloat16", "tab:gray", lambda t: t.torch),
                ("this package, FP8", "tab:red", lambda t: t.kernel),
                ("memory floor", "black", lambda t: t.floor),
            )
        ):
            where = [i + (offset - 1) * 0.27 for i in range(len(rows))]
            panel.bar(where, [value(t) * 1e6 for t in rows], width=0.25, label=label, color=color)
        panel.set_xticks(
            range(len(rows)), [f"{t.operator}\n{t.shape}".replace("skinny_gemm ", "") for t in rows], fontsize=8
        )
        panel.set_yscale("log")
        panel.set_ylabel("microseconds, one row")
        panel.set_title(model)
        panel.legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        figure.savefig(partial, format="png", dpi=130)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
        pyplot.close(figure)
