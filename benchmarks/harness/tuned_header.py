"""skinny_gemm/hip/tuned.h and the table of skinny_gemm/hip/config.h, read and written; no GPU in here."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scripts.builder import BuildError
from scripts.builder.toolchains import cxx_compiler
from scripts.host_configs import configs

ROOT = Path(__file__).resolve().parents[2]

CONFIG = ROOT / "skinny_gemm" / "hip" / "config.h"
TUNED = ROOT / "skinny_gemm" / "hip" / "tuned.h"
ARCHS = ("gfx942", "gfx950")  # an entry holds the index
ROW_CLASSES = (8, 16, 32)


class HeaderError(Exception):
    """A header is not as it should be, or cannot be checked."""


@dataclass(frozen=True)
class Config:
    """As ROCM_FP8_KERNELS_CONFIG has it behind the operator."""

    form: str
    split: int = 1
    pieces: int = 0  # of the columns, on CUDA; 0: as few as the form has room for

    def __str__(self) -> str:
        split, pieces = f",split={self.split}" * (self.split > 1), f",pieces={self.pieces}" * bool(self.pieces)
        return f"{self.form}{split}{pieces}"

    @classmethod
    def parse(cls, text: str) -> "Config":
        """ValueError where the text is none."""
        form, *fields = text.split(",")
        numbers = {name: int(value) for name, value in (field.split("=") for field in fields)}
        if not form or not numbers.keys() <= {"split", "pieces"}:
            raise ValueError
        return cls(form, **numbers)


@dataclass(frozen=True)
class Entry:
    """A line of kTunedConfigs, and the comment above it: where and when it was measured."""

    arch: int
    rows: int
    n: int
    k: int
    form: str
    splits: int
    measured: str = ""

    @property
    def key(self) -> tuple[int, int, int, int]:
        return self.arch, self.rows, self.n, self.k

    @property
    def config(self) -> Config:
        return Config(self.form, self.splits)


@dataclass(frozen=True)
class StreamTable:
    """kStreamShapes; names and fields are the header's."""

    shapes: list[dict[str, int]]

    def takes(self, k: int) -> bool:
        """Whether a stream is considered at all for this k, and with it the tuned entries."""
        return k % 16 == 0

    def allowed(self, rows: int, n: int, k: int) -> list[Config]:
        """All of a class of rows, by the rules of pick_config on either chip."""
        return [
            Config(shape["name"], parts)
            for place, shape in enumerate(self.shapes)
            for parts in range(1, 1 + max(configs().gemm_most_parts(0, arch, place, rows, n, k) for arch in (0, 1)))
        ]


def _between(text: str, begin: str, what: str) -> tuple[int, int]:
    """Where a braced body lies, without its braces."""
    start = text.find(begin)
    end = text.find("\n}", start)
    if start < 0 or end < 0:
        raise HeaderError(f"{what}: holds no {begin!r}")
    return start + len(begin), end


def stream_table() -> StreamTable:
    """Of skinny_gemm/hip/config.h."""
    return StreamTable(configs().tables["skinny"])


TABLE = 'kTunedConfigs[] = {\n    {-1, 0, 0, 0, "", 0},'


def parse_entries(text: str) -> list[Entry]:
    """From the text of skinny_gemm/hip/tuned.h, the first entry, which matches nothing, left out."""
    begin, end = _between(text, TABLE, TUNED.name)
    entries, comment = [], ""
    names = [shape["name"] for shape in stream_table().shapes]
    for line in filter(None, map(str.strip, text[begin:end].splitlines())):
        entry = re.fullmatch(r'\{(\d+), (\d+), (\d+), (\d+), "(\w+)", (\d+)\},', line)
        if entry:
            *key, name, splits = entry.groups()
            if name not in names:
                raise HeaderError(f"{TUNED.name}: no form is called {name}")
            entries.append(Entry(*map(int, key), name, int(splits), comment))
        elif line.startswith("// "):
            comment = line.removeprefix("// ")
        else:
            raise HeaderError(f"{TUNED.name}: neither an entry nor a comment: {line}")
    return entries


def render(text: str, entries: Iterable[Entry]) -> str:
    """The text with these entries in place of its own, sorted, those measured together under one comment; first what
    has none, as nothing ends a comment's reach but the next."""
    begin, end = _between(text, TABLE, TUNED.name)
    lines: list[str] = []
    comment = ""
    for entry in sorted(entries, key=lambda e: (e.measured, e.key)):
        if entry.measured != comment:
            comment = entry.measured
            lines.append(f"// {comment}")
        lines.append(f'{{{", ".join(map(str, entry.key))}, "{entry.form}", {entry.splits}}},')
    return text[:begin] + "".join(f"\n    {line}" for line in lines) + text[end:]


def merged(old: Iterable[Entry], new: Iterable[Entry]) -> list[Entry]:
    """The new entries, and the old ones of other sizes, classes of rows and architectures."""
    return list(({e.key: e for e in old} | {e.key: e for e in new}).values())


PROGRAM = """\
#include "config.h"
#include <cstdio>
int main() {{
    constexpr long long sizes[][4] = {{{sizes}}};
    using namespace rocm_fp8::skinny_gemm::hip;
    for (const auto& s : sizes) {{
        const auto c = pick_config(s[1], s[2], s[3], int(s[0]));
        std::printf("%s %d\\n", c.shape < 0 ? "fallback" : kStreamShapes[c.shape].name.text, c.parts);
    }}
}}
"""


def picks(tuned: str, sizes: list[tuple[int, int, int, int]]) -> list[Config]:
    """What pick_config answers with this text as its tuned header, for each (arch, rows, n, k): the
    C++ itself is asked. HeaderError in the compiler's words where it does not compile."""
    try:
        compiler = cxx_compiler()
    except BuildError as error:
        raise HeaderError(str(error)) from None
    with tempfile.TemporaryDirectory() as folder_name:
        # As in the repository, for the header's own includes.
        folder = Path(folder_name) / CONFIG.parent.relative_to(ROOT)
        folder.mkdir(parents=True)
        (Path(folder_name) / "common").symlink_to(ROOT / "common")
        (folder / CONFIG.name).write_text(CONFIG.read_text())
        (folder / TUNED.name).write_text(tuned)
        listed = ", ".join(f"{{{', '.join(map(str, size))}}}" for size in sizes)
        (folder / "picks.cpp").write_text(PROGRAM.format(sizes=listed))
        command = [compiler, "-std=c++20", "picks.cpp", "-o", "picks"]
        compiled = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if compiled.returncode != 0:
            raise HeaderError(f"{TUNED.name} does not compile:\n{compiled.stderr}")
        output = subprocess.run([folder / "picks"], capture_output=True, text=True, check=True).stdout
    return [Config(form, int(splits)) for form, splits in map(str.split, output.splitlines())]


def write(path: Path, text: str) -> None:
    """The file appears whole or keeps its old text, and only with entries that pick_config then answers with."""
    entries = parse_entries(text)
    for entry, picked in zip(entries, picks(text, [e.key for e in entries]) if entries else [], strict=True):
        if picked != entry.config:
            raise HeaderError(f"{path.name}: pick_config answers {picked} for {entry}")
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    os.replace(partial, path)
