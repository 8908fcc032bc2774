"""What the rooms of the simulator may know of each other, and that nothing here needs the rest of the repository."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1]
# Room -> the rooms that it may import from. Modules beside the rooms are named as they are.
ARROWS = {
    "faults": "",
    "native": "faults",
    "binary": "faults",
    "isa": "faults binary",
    "memory": "faults isa",
    "counting": "isa memory",
    "schedule": "faults binary isa memory counting",
    "timing": "native counting",
    "simulator": "faults binary memory counting schedule",
    "devices": "faults memory counting schedule simulator",
    "__init__": "faults memory counting schedule simulator",
    "host": "faults native binary memory counting schedule simulator devices",
    "calibration": "__init__ counting timing host",
}
# Beside Python's own modules and the simulator.
NEEDED = ("numpy.",)
NEEDED_BY_TESTS = ("numpy.", "pytest.", "torch.", "tinygrad.runtime.autogen.amd.", "problems.fp8_by_definition.")
TESTS = sorted((FOLDER / "tests").rglob("*.py"))
MODULES = sorted(path for path in FOLDER.rglob("*.py") if "tests" not in path.relative_to(FOLDER).parts)


def imported(path: Path) -> Iterator[str]:
    """Modules, with their whole names; of `from package import name` the package and the name."""
    package = path.relative_to(FOLDER.parent).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            of = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*of, *filter(None, [node.module])])
            yield from (f"{base}.{each.name}" for each in node.names)


def room_of(name: str) -> str:
    """Of a module's name in the simulator, with what is imported from it."""
    first = name.split(".")[1]
    return first if first in ARROWS else "__init__"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_arrows_point_one_way(path):
    room = room_of(f"simulator.{path.relative_to(FOLDER).parts[0].removesuffix('.py')}")
    known = {room_of(each) for each in imported(path) if each.startswith("simulator.")} - {room}
    assert known <= set(ARROWS[room].split())


def test_no_arrow_leads_back():
    """The table itself: each room knows only rooms that stand before it, but for the package's own names."""
    before: set[str] = set()
    for room, known in ARROWS.items():
        assert set(known.split()) <= before, room
        before.add(room)


@pytest.mark.parametrize(("paths", "needed"), [(MODULES, NEEDED), (TESTS, NEEDED_BY_TESTS)], ids=["modules", "tests"])
def test_nothing_else_is_needed(paths, needed):
    found = {each for path in paths for each in imported(path) if each.split(".")[0] not in sys.stdlib_module_names}
    assert not sorted(each for each in found if not f"{each}.".startswith(("simulator.", *needed)))
