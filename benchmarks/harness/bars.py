"""Figures as a picture: panels of grouped bars on linear axes that begin at 0."""

import os
from dataclasses import dataclass
from pathlib import Path

COLORS = ("tab:red", "indianred", "lightcoral", "pink", "mistyrose")  # of the series
# At 100 dots an inch a README's width; drawn finer, for screens that have them. Few colours make a small file.
WIDTH, ROW_HEIGHT, DPI, COLOURS = 8.0, 2.25, 150, 32


@dataclass(frozen=True)
class Bars:
    label: str
    color: str
    heights: list[float | None]  # in each group; None: no bar there
    marks: list[float | None] | None = None  # of what each bar is to be compared with: a short line


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str  # of the heights
    across: str  # what the groups are
    groups: list[str]
    bars: list[Bars]
    top: float | None = None  # of the axis; None: as high as the bars
    line: float | None = None  # a dashed line across, where equal is
    marks: str = "marks"  # what they are, for the legend


@dataclass(frozen=True)
class Point:
    """Ours at one size: a bar. None where the tables do not have it."""

    ratio: float | None
    share: float | None

    @property
    def others_share(self) -> float | None:
        return self.share / self.ratio if self.share is not None and self.ratio else None


@dataclass(frozen=True)
class Family:
    """Two panels: bars of each series, in groups of sizes."""

    name: str
    across: str
    groups: list[str]
    series: dict[str, list[Point]]
    others: list[str]
    rate: float  # of the memory, TB/s

    def times(self) -> Panel:
        drawn = self._bars(lambda point: point.ratio)
        across = f"{self.across}; beside {' and '.join(self.others)}"
        return Panel(self.name, "times as fast", across, *drawn, line=1)

    def shares(self) -> Panel:
        drawn = self._bars(lambda point: point.share, marked=True)
        return Panel(self.name, f"share of {self.rate} TB/s", self.across, *drawn, top=1.2, marks="best other")

    def _bars(self, height, *, marked: bool = False) -> tuple[list[str], list[Bars]]:
        return self.groups, [
            Bars(
                name,
                COLORS[i % len(COLORS)],
                [height(point) for point in points],
                [point.others_share for point in points] if marked and self.others else None,
            )
            for i, (name, points) in enumerate(self.series.items())
        ]


def _fill(axis, panel: Panel) -> None:
    seen = [bars for bars in panel.bars if any(height is not None for height in bars.heights)]
    step = 0.84 / max(len(seen), 2)
    for i, bars in enumerate(seen):
        where = [group + (i - (len(seen) - 1) / 2) * step for group in range(len(panel.groups))]
        axis.bar(where, _drawn(bars.heights), width=0.9 * step, label=bars.label, color=bars.color, zorder=2)
        if bars.marks:
            label = panel.marks if bars is seen[-1] else None
            ends = [x - 0.45 * step for x in where], [x + 0.45 * step for x in where]
            axis.hlines(_drawn(bars.marks), *ends, label=label, color="black", linewidth=1.6, zorder=3)
    if panel.line is not None:
        axis.axhline(panel.line, color="black", linewidth=0.8, linestyle="--", zorder=3)
    size = 5.5 if len(panel.groups) > 6 else 7.5  # of the groups' names, so that they do not overlap
    axis.set_xticks(range(len(panel.groups)), panel.groups, fontsize=size)
    # Room for the legend.
    axis.set_ylim(0, panel.top or 1.3 * max([panel.line or 0.0, *_heights(panel)], default=1.0))
    axis.set_ylabel(panel.unit)
    axis.set_xlabel(panel.across)
    axis.set_title(panel.title, fontsize=8.5, fontweight="bold")
    axis.grid(axis="y", color="0.88", zorder=0)
    axis.spines[["top", "right"]].set_visible(False)
    if len(seen) > 1 or any(bars.marks for bars in seen):
        axis.legend(fontsize=6.5, ncols=5, frameon=False, loc="upper center", columnspacing=1, handlelength=1.2)


def _drawn(heights: list[float | None]) -> list[float]:
    return [float("nan") if height is None else height for height in heights]


def _heights(panel: Panel) -> list[float]:
    return [height for bars in panel.bars for height in bars.heights if height is not None]


def draw(panels: list[Panel], title: str, path: Path, row_height: float = ROW_HEIGHT) -> None:
    """A PNG, two panels beside one another; written beside `path`, then renamed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    rows = -(-len(panels) // 2)
    with pyplot.rc_context({"font.size": 7.5, "axes.labelsize": 7.5}):
        figure, axes = pyplot.subplots(rows, 2, figsize=(WIDTH, row_height * rows + 0.3), squeeze=False)
        for axis in axes.flat[len(panels) :]:
            axis.remove()
        for axis, panel in zip(axes.flat, panels):
            _fill(axis, panel)
        figure.suptitle(title, fontsize=8)
        figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        figure.savefig(partial, format="png", dpi=DPI)
        with Image.open(partial) as picture:
            few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(partial, format="png", optimize=True)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
        pyplot.close(figure)
