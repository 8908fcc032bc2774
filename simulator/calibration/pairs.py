"""A pair: a kernel that is compiled here, a shape, and the time that was measured for both."""

import csv
from dataclasses import dataclass
from pathlib import Path

MEMORY_SIDE_CACHE = 256 << 20  # bytes


def rows(table: Path) -> list[dict[str, str]]:
    """Of a CSV file whose first line names the columns."""
    with table.open() as lines:
        return list(csv.DictReader(lines))


@dataclass(frozen=True)
class Library:
    """One shared object of a peer's kernel. `source` is a file beside this one; `flags` are the compiler's beyond the
    common ones.

    It exports `int run(void* const* pointers, const int* sizes)`: 0, or what the peer refuses.
    """

    name: str
    source: Path
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    source: str  # whose time: of sources.SOURCES
    kind: str  # of kernel: "GEMM, FP8 block-scaled"
    name: str  # of the instance and the shape, unique
    microseconds: float  # as published
    date: str  # of the publication
    library: Library
    buffers: tuple[int, ...]  # bytes behind each pointer
    sizes: tuple[int, ...]  # run's second argument
    launch: int = -1  # which launch of the call was timed
    group: str = ""  # pairs of one problem, of which the fastest was looked for
    memsets: int = 0  # that the time contains besides
    warm: bool = False  # the inputs of all repetitions fit in the memory-side cache
