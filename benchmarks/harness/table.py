"""The one format of a table: Markdown, a row as it comes. Of a table of times --plot makes bars (sections.py)."""

from collections.abc import Sequence

from benchmarks.harness import bars

GROUPS = 8  # of bars in one panel


def cell(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def number(text: str | None) -> float | None:
    """Of "1.05 (1.40)" the first; None where nothing was measured."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None


class Table:
    """times: the columns that are drawn. Those before the first of them name a row."""

    printed: list["Table"] = []

    def __init__(self, columns: Sequence[str], times: Sequence[str], title: str = ""):
        self.columns, self.times, self.title, self.rows = [*columns], [*times], title, []
        if title:
            print(f"\n### {title}\n")
        self._line(self.columns)
        print(f"|{' --- |' * len(self.columns)}")
        self.printed.append(self)

    @staticmethod
    def _line(cells: Sequence[str]) -> None:
        print(f"| {' | '.join(cells)} |", flush=True)

    def row(self, *cells: str) -> None:
        self.rows.append(cells)
        self._line(cells)

    def panels(self) -> list[bars.Panel]:
        where = [self.columns.index(name) for name in self.times]
        labels, found = min(where, default=0), []
        for begin in range(0, len(self.rows) if where else 0, GROUPS):
            rows = self.rows[begin : begin + GROUPS]
            drawn = [
                bars.Bars(self.columns[at], f"C{i}", [number(row[at]) for row in rows]) for i, at in enumerate(where)
            ]
            groups = ["\n".join(row[:labels]) for row in rows]
            unit = self.times[0] if len(self.times) == 1 else "time"
            found.append(bars.Panel(self.title, unit, ", ".join(self.columns[:labels]), groups, drawn))
        return found
