"""A pair: a kernel that is compiled here, a shape, and the time that its authors measured for both."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MEMORY_SIDE_CACHE = 256 << 20  # bytes


@dataclass(frozen=True)
class Library:
    """One shared object of a peer's kernel. `source` is a file beside this one, or a function that gives the text from
    the checkouts; `flags` are the compiler's beyond the common ones.

    It exports `int run(void* const* pointers, const int* sizes)`: 0, or what the peer refuses.
    """

    name: str
    source: Path | Callable[["Checkouts"], str]
    flags: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()  # directories below a checkout: "ck:usr/include"


@dataclass(frozen=True)
class Checkouts:
    """Where the peers' sources lie: git directories or unpacked packages, by name."""

    paths: dict[str, Path]

    def git(self, name: str, *arguments: str) -> str:
        """What a git command prints in a checkout, or a bare repository."""
        command = ["git", "-C", str(self.paths[name]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def text(self, name: str, path: str, revision: str = "HEAD") -> str:
        """A file of a revision."""
        return self.git(name, "show", f"{revision}:{path}")


@dataclass(frozen=True)
class Pair:
    source: str  # whose time: "AITER, block-scaled FP8"
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
