"""Times as a picture: panels of grouped bars."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Bars:
    label: str
    color: str
    heights: list[float | None]  # in each group; None: no bar there


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    groups: list[str]
    bars: list[Bars]


def draw(panels: list[Panel], title: str, path: Path, *, stacked: bool = False) -> None:
    """A PNG, the panels beside one another or stacked; written beside `path`, then renamed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows, columns = (len(panels), 1) if stacked else (1, len(panels))
    size = (14.0, 4.5 * rows) if stacked else (7.0 * columns, 4.5)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    for axis, panel in zip(axes.flat, panels):
        seen = [bars for bars in panel.bars if any(height is not None for height in bars.heights)]
        step = 0.81 / max(len(seen), 1)
        for i, bars in enumerate(seen):
            where = [group + (i - (len(seen) - 1) / 2) * step for group in range(len(panel.groups))]
            shown = [float("nan") if height is None else height for height in bars.heights]
            axis.bar(where, shown, width=0.93 * step, label=bars.label, color=bars.color)
        crowded = sum(map(len, panel.groups)) > 20 * size[0]
        axis.set_xticks(range(len(panel.groups)), panel.groups, fontsize=8, rotation=90 if crowded else 0)
        axis.set_yscale("log")
        axis.set_ylabel(panel.unit)
        axis.set_title(panel.title)
        axis.legend(fontsize=8)
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
