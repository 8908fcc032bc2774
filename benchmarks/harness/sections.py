"""The sections of docs/performance.md that benchmarks write: benchmarks/performance.py.

A section stands between two lines, `<!-- begin: NAME -->` and `<!-- end: NAME -->`. All else in the file is written by
hand and stays as it is.
"""

import argparse
import contextlib
import importlib.util
import io
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from benchmarks.harness import bars
from benchmarks.harness.commands import command
from benchmarks.harness.table import Table

PERFORMANCE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
# Of each benchmark, where --section names no other.
SECTIONS = {
    "cpu_ratios": "cpu-ratios",
    "cuda": "cuda-operators",
    "gpu_all_reduce": "cuda-all-reduce",
    "gpu_decode": "cuda-decode-step",
    "gpu_gemms": "cuda-gemms",
    "gpu_mla": "cuda-mla",
    "gpu_model_layers": "cuda-model-layers",
    "gpu_moe": "cuda-moe",
    "gpu_layer": "cuda-decoder-layer",
    "gpu_scales": "cuda-scales",
    "moe_rocm": "rocm-moe",
    "published_mi300x": "rocm-published",
    "rocm": "rocm-operators",
    "vllm_latency": "vllm-latency",
}


class SectionError(Exception):
    """One line that says which section could not be replaced, and why."""


def replaced(text: str, name: str, body: str) -> str:
    """`text` with `body` between the markers of section `name`. SectionError unless there is one such section."""
    begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->\n"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SectionError(f"section {name}: needs one line {begin.strip()} and one line {end.strip()}")
    before, rest = text.split(begin)
    if end not in rest:
        raise SectionError(f"section {name}: ends before it begins")
    if not body.strip() or "<!-- begin:" in body or "<!-- end:" in body:
        raise SectionError(f"section {name}: nothing to write, or markers within it")
    old, after = rest.split(end)
    if "<!-- begin:" in old or "<!-- end:" in old:
        raise SectionError(f"section {name}: holds another section's marker")
    return f"{before}{begin}\n{body.strip()}\n\n{end}{after}"


def section(text: str, name: str) -> str:
    """What stands between the markers of section `name`. SectionError unless there is one such section."""
    replaced(text, name, "?")
    return text.split(f"<!-- begin: {name} -->\n")[1].split(f"<!-- end: {name} -->\n")[0]


def write(path: Path, name: str, body: str) -> None:
    """Replaces the section in the file, at once or not at all."""
    text = replaced(path.read_text(encoding="utf-8"), name, body)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


class _Tee(io.TextIOBase):
    def __init__(self, *streams: TextIO):
        self.streams = streams

    def write(self, text: str) -> int:
        for stream in self.streams:
            stream.write(text)
        return len(text)

    def flush(self) -> None:
        for stream in self.streams:
            stream.flush()


def picture(path: str) -> Path:
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("needs matplotlib: pip install matplotlib")
    return Path(path)


def add_options(parser: argparse.ArgumentParser) -> None:
    """--write, --section and --plot, for `recorded`."""
    parser.add_argument("--plot", type=picture, metavar="FILE", help="a PNG of the tables' times; needs matplotlib")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put what is printed into a section of FILE")
    parser.add_argument("--section", help="which one (default: this benchmark's)")


@contextlib.contextmanager
def recorded(benchmark: str, args: argparse.Namespace) -> Iterator[None]:
    """What is printed meanwhile becomes, below the command, the section that --write and --section name.

    Nothing is written where the block raises. Of its tables' times --plot makes a picture. `benchmark`: its module's
    name.
    """
    Table.printed.clear()
    line = shlex.join([*command(benchmark), *sys.argv[1:]])
    if args.write is None:
        yield
    else:
        with _section(benchmark, args, line):
            yield
    if args.plot:
        bars.draw([panel for table in Table.printed for panel in table.panels()], line, args.plot)


@contextlib.contextmanager
def _section(benchmark: str, args: argparse.Namespace, line: str) -> Iterator[None]:
    name = args.section or SECTIONS.get(benchmark)
    if name is None:
        raise SectionError(f"{benchmark} has no section of its own: --section names one")
    replaced(args.write.read_text(encoding="utf-8"), name, "?")  # fails before the measurement, not after it
    printed = io.StringIO()
    with contextlib.redirect_stdout(_Tee(sys.stdout, printed)):
        yield
    write(args.write, name, f"`{line}`\n\n{printed.getvalue()}")
