"""benchmarks/harness/sections.py and performance.py: sections of a file that benchmarks replace."""

import argparse
import io
import re
import sys

import pytest

from benchmarks import performance
from benchmarks.harness import gpu_report, sections
from benchmarks.harness.gpu_environment import Missing
from benchmarks.harness.table import Table

TEXT = """# Title

<!-- begin: a -->
old a
<!-- end: a -->

by hand

<!-- begin: b -->
<!-- end: b -->
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "performance.md"
    file.write_text(TEXT)
    return file


def arguments(**given) -> argparse.Namespace:
    return argparse.Namespace(**(dict.fromkeys(("write", "section", "json", "plot")) | given))


def test_one_section_is_replaced_and_nothing_else():
    once = sections.replaced(TEXT, "b", "| new |\n")
    assert once == TEXT.replace("<!-- begin: b -->\n", "<!-- begin: b -->\n\n| new |\n\n")
    assert sections.replaced(once, "b", "| new |") == once, "writing again changes nothing"
    assert "old a" not in sections.replaced(TEXT, "a", "x") and "by hand" in sections.replaced(TEXT, "a", "x")


@pytest.mark.parametrize(
    "text, body",
    [
        (TEXT.replace("begin: a", "begin: c"), "x"),
        (TEXT.replace("<!-- end: a -->\n", ""), "x"),
        (TEXT + TEXT, "x"),
        ("<!-- end: a -->\n<!-- begin: a -->\n", "x"),
        (TEXT.replace("old a", "<!-- begin: d -->"), "x"),
        (TEXT, " \n"),
        (TEXT, "<!-- end: a -->"),
    ],
    ids=["no begin", "no end", "twice", "wrong order", "another section within", "nothing", "a marker"],
)
def test_what_cannot_be_replaced_is_refused(text, body):
    with pytest.raises(sections.SectionError, match="section a: "):
        sections.replaced(text, "a", body)


def test_the_command(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    assert performance.main(["--section", "a", "--file", str(path)]) == 0
    assert "from a pipe" in path.read_text() and "old a" not in path.read_text()
    before = path.read_text()
    monkeypatch.setattr(sys, "stdin", io.StringIO("x"))
    assert performance.main(["--section", "c", "--file", str(path)]) == 1
    assert "section c" in capsys.readouterr().err and path.read_text() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name], "no left-over"


def test_what_a_benchmark_prints_is_recorded(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cuda.py", "--write", "performance.md"])
    with sections.recorded("cuda", arguments(write=path, section="a")):
        print("| 1 |")
        assert capsys.readouterr().out == "| 1 |\n", "and seen at once"
    assert "\n`python -m benchmarks measure cuda --write performance.md`\n\n| 1 |\n" in path.read_text()


def test_times_are_drawn_and_name_what_was_run(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(sys, "argv", ["cuda.py", "--quick"])
    monkeypatch.setattr(sections.bars, "draw", lambda *given: drawn.append(given))
    with sections.recorded("cuda", arguments(plot=tmp_path / "a.png")):
        table = Table(["rows", "d", "ours", "±", "torch", "ratio"], ["ours", "torch"], "an operator")
        for rows in range(9):
            table.row(str(rows), "64", "1.50", "0.00", "-" if rows else "3.00 (2.00)", "2")
    ((panels, title, _),) = drawn
    assert title == "python -m benchmarks measure cuda --quick" and [len(panel.groups) for panel in panels] == [8, 1]
    first = panels[0]
    assert (first.title, first.across, first.groups[0]) == ("an operator", "rows, d", "0\n64")
    assert [(each.label, each.heights[:2]) for each in first.bars] == [("ours", [1.5, 1.5]), ("torch", [3.0, None])]


def test_without_matplotlib_nothing_is_drawn_and_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sections.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        gpu_report.parser("").parse_args(["--plot", "a.png"])
    assert "--plot: needs matplotlib: pip install matplotlib" in capsys.readouterr().err


def test_nothing_is_recorded_of_a_run_that_fails(path, capsys):
    def missing() -> dict:
        print("half a table")
        raise Missing("no GPU")

    assert gpu_report.figures_of("cuda", missing, arguments(write=path, section="a")) is None
    assert path.read_text() == TEXT and "no GPU" in capsys.readouterr().err


def test_a_benchmark_without_a_section_asks_for_one(path, capsys):
    assert gpu_report.figures_of("tune", dict, arguments(write=path)) is None
    assert capsys.readouterr().err == "tune.py: tune has no section of its own: --section names one\n"


def test_a_section_that_is_not_there_is_noticed_before_the_measurement(path, capsys):
    def measured() -> dict:
        raise AssertionError

    assert gpu_report.figures_of("cuda", measured, arguments(write=path)) is None
    assert "section cuda-operators" in capsys.readouterr().err


def test_without_write_nothing_is_written(path):
    assert gpu_report.figures_of("cuda", lambda: {"a": 1}, arguments()) == {"a": 1}
    assert path.read_text() == TEXT


def test_the_shipped_file_has_every_benchmarks_section():
    text = sections.PERFORMANCE.read_text(encoding="utf-8")
    names = re.findall(r"^<!-- begin: (\S+) -->$", text, re.MULTILINE)
    assert set(sections.SECTIONS.values()) <= set(names)
    for name in names:
        assert "x" in sections.replaced(text, name, "x")
