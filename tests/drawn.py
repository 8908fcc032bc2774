"""Which cases a run takes of tests that have many: one in so many, drawn by the run's seed. --full takes all.

Marked `drawn(count)`, a test's cases are cut, in the order of their parameters, into parts of `count` neighbours or
fewer, and a run takes one of each part. Neighbours differ in the parameters that change fastest: values of the others
are met in each run. Marked `drawn(count, of=NAME)`, values of the parameter NAME are drawn, the same ones for all tests
of a module: where a value stands for what takes long to start.
"""

import itertools
import random
from collections.abc import Hashable, Sequence


def drawn(units: Sequence[Hashable], count: int, seed: str, turn: int = 0) -> set:
    """One of each part; there are as few parts as can be, of nearly equal length. The next `turn` takes the next one of
    each."""
    chance = random.Random(seed)
    parts = -(-len(units) // count)
    ends = [len(units) * part // parts for part in range(parts + 1)]
    return {
        units[begin + (chance.randrange(end - begin) + turn) % (end - begin)] for begin, end in itertools.pairwise(ends)
    }


def split(items: list, seed: int, turn: int) -> tuple[list, list]:
    """Of the tests that pytest has collected (those that a run takes, those that it leaves)."""
    cases: dict[tuple[str, int], dict[Hashable, list]] = {}
    for item in items:
        if (found := _place(item)) is not None:
            of, count, unit = found
            cases.setdefault((of, count), {}).setdefault(unit, []).append(item)
    left = set()
    for (of, count), units in cases.items():
        kept = drawn(list(units), count, f"{seed} {of}", turn)
        left.update(item.nodeid for unit, its_items in units.items() if unit not in kept for item in its_items)
    return [item for item in items if item.nodeid not in left], [item for item in items if item.nodeid in left]


def _place(item) -> tuple[str, int, Hashable] | None:
    """(what the unit is one of, one in how many is taken, the unit); None: the test is not drawn."""
    mark = item.get_closest_marker("drawn")
    if mark is None or not hasattr(item, "callspec"):
        return None
    if any(item.get_closest_marker(name) for name in ("full", "slow")):
        return None  # it has an option of its own, and would take another case's place where that is not given
    (count,), name = mark.args, mark.kwargs.get("of")
    if name is None:
        return item.nodeid.partition("[")[0], count, item.nodeid
    if name not in item.callspec.indices:
        return None
    return item.nodeid.partition("::")[0], count, item.callspec.indices[name]
