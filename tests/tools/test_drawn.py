"""What a run takes of tests with many cases: one of each part of neighbours, each of them with some seed."""

import itertools

import pytest

from tests import settings
from tests.drawn import drawn

pytest_plugins = "pytester"

SUITE = """
import pytest

@pytest.fixture(scope="module", params=range(6))
def engine(request):
    return request.param

@pytest.mark.drawn(2, of="engine")
@pytest.mark.parametrize("use", "ab")
def test_engine(engine, use): pass

@pytest.mark.drawn(4)
@pytest.mark.parametrize("chip", range(2))
@pytest.mark.parametrize("form", range(5))
def test_form(form, chip): pass

@pytest.mark.drawn(4)
def test_without_cases(): pass

@pytest.mark.drawn(2)
@pytest.mark.parametrize("size", [1, 2, *(pytest.param(size, marks=pytest.mark.slow) for size in (3, 4))])
def test_some_are_slow(size): pass
"""


@pytest.mark.parametrize("units, count", [(1, 4), (4, 4), (5, 4), (10, 4), (31, 2), (7, 1)])
def test_one_of_each_part(units, count):
    met = set()
    for seed in range(200):
        taken = sorted(drawn(range(units), count, str(seed)))
        assert len(taken) == -(-units // count)
        # Neighbours in the sample are of neighbouring parts.
        assert all(b - a < 2 * count for a, b in itertools.pairwise(taken))
        met.update(taken)
    assert met == set(range(units))
    assert drawn(range(units), count, "1") == drawn(range(units), count, "1")


def test_the_turns_take_all():
    """Of pairs two turns do, and a unit that is alone is taken in each."""
    for seed in map(str, range(20)):
        first, second = (drawn(range(13), 2, seed, turn) for turn in range(2))
        assert first | second == set(range(13)) and len(first & second) == 1


def test_a_run_takes_some_and_full_takes_all(pytester, monkeypatch):
    """By this repository's own hook."""
    pytester.makepyfile(test_suite=SUITE)
    pytester.makeconftest((settings.ROOT / "conftest.py").read_text())
    pytester.makefile(".toml", pytest='[pytest]\nmarkers = ["drawn", "full", "slow"]\n')

    def taken(seed: int, *options: str) -> dict[str, list[str]]:
        monkeypatch.setattr(settings, "SEED", seed)
        run = pytester.runpytest_inprocess("--collect-only", "-q", *options)
        assert run.ret == 0, run.stdout.str()
        found: dict[str, list[str]] = {}
        for line in run.outlines:
            if "::" in line:
                name, _, case = line.partition("::")[2].rstrip("]").partition("[")
                found.setdefault(name, []).append(case)
        return found

    one, other, full = taken(1), taken(2), taken(1, "--full")
    assert {name: len(cases) for name, cases in full.items()} == {
        **{"test_engine": 12, "test_form": 10},
        **{"test_without_cases": 1, "test_some_are_slow": 4},
    }
    for each in (one, other):
        assert all(set(cases) <= set(full[name]) for name, cases in each.items())
        # Three engines with both of their tests; one of four neighbours; cases that an option asks for besides.
        engines = [case.partition("-")[0] for case in each["test_engine"]]
        assert len(engines) == 6 and sorted(set(engines)) == sorted(engines[::2])
        assert len(each["test_form"]) == 3 and each["test_without_cases"] == [""]
        assert len({case for case in each["test_some_are_slow"]} & {"1", "2"}) == 1
        assert {"3", "4"} <= set(each["test_some_are_slow"])
    assert one != other and one == taken(1)
