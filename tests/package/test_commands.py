"""python -m benchmarks: it reaches every module that has a main, and the documents' commands exist."""

import re
import subprocess
import sys

import pytest

from benchmarks import __main__ as entry
from benchmarks.harness.commands import GROUPS, command
from tests.settings import ROOT

MODULES = [module for of in GROUPS.values() for module in of.values()]
FOLDERS = ("benchmarks", "common", "docs", "examples", "integrations", "scripts", "simulator", "tests")
# Behind it a module, or two words.
WRITTEN = re.compile(r"-m benchmarks\b(\.[\w.]+)?(?: ([\w-]+))?(?: ([\w-]+))?")


def documents():
    files = [*ROOT.glob("*.*"), ROOT / "Makefile", *(path for name in FOLDERS for path in (ROOT / name).rglob("*.*"))]
    own = [path for path in files if not {"journal", "__pycache__"} & {*path.parts}]
    return [path for path in own if path.suffix in (".md", ".py", ".h", ".toml", "") and path.is_file()]


def test_every_module_with_a_main_is_reached_once():
    with_main = [path.stem for path in (ROOT / "benchmarks").glob("*.py") if "\ndef main(" in path.read_text()]
    assert sorted([*MODULES, "__main__"]) == sorted(with_main)


def test_documented_commands_exist():
    found = {(path.name, *match.groups()) for path in documents() for match in WRITTEN.finditer(path.read_text())}
    reached = set()
    for name, module, group, own in found:
        if module or not group or group == "GROUP":
            assert module in (None, ".harness.vllm_engine"), f"{name}: -m benchmarks{module}"
            continue
        assert own in GROUPS.get(group, ()), f"{name}: -m benchmarks {group} {own}"
        reached.add(GROUPS[group][own])
    assert reached == set(MODULES), "each command is shown somewhere"


@pytest.fixture
def called(monkeypatch, capsys):
    def call(words: str) -> tuple[int | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["__main__.py", *words.split()])
        try:
            code = entry.main()
        except SystemExit as error:
            code = error.code
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("words", ["", "--help", "tune", "tune -h"])
def test_the_list(called, words):
    code, out, err = called(words)
    lines = out.splitlines()[2:]
    listed = [" ".join(line.split()[:2]) for line in lines]
    wanted = [" ".join(command(module)[3:]) for module in (GROUPS["tune"].values() if words[:1] == "t" else MODULES)]
    assert (code, err, listed) == (0, "", wanted)
    assert all(line.endswith(".") for line in lines), "whole sentences"


@pytest.mark.parametrize("words", ["nothing", "tune nothing", "cuda", "--help x"])
def test_what_there_is_not(called, words):
    code, out, err = called(words)
    assert (code, out) == (2, "") and err.startswith("usage: python -m benchmarks GROUP NAME")


@pytest.mark.parametrize("module", MODULES)
def test_each_has_help(called, module):
    words = " ".join(command(module)[3:])
    code, out, err = called(f"{words} --help")
    assert (code, err) == (0, "") and out.startswith(f"usage: python -m benchmarks {words} [-h]")
    prints = " Table(" in (ROOT / "benchmarks" / f"{module}.py").read_text()
    assert not prints or "--plot" in out, "a table of times is drawn"


def test_a_module_by_itself_is_refused():
    run = subprocess.run([sys.executable, "-m", "benchmarks." + "cuda"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1 and "run it by its name" in run.stderr
