"""All-pairs samples: a few cases in the place of a full product, in which any two values of two axes still meet."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

SAMPLE = 0  # the seed of what stands for a full product: the same cases in every run, whose inputs differ


def pairwise(*axes: Sequence[Any], seed: int) -> list[tuple]:
    """Tuples with one value of each axis, such that every pair of values of two axes is in one of them.

    Greedy: a case begins with a pair that no case has yet; each further axis gets the value that adds most new pairs,
    one of the best by `seed`. About as many cases as the two longest axes have pairs.
    """
    drawn = random.Random(seed)
    missing = {
        ((i, a), (j, b))
        for (i, one), (j, other) in itertools.combinations(enumerate(axes), 2)
        for a, b in itertools.product(range(len(one)), range(len(other)))
    }

    def pair(i: int, a: int, j: int, b: int) -> tuple:
        return ((i, a), (j, b)) if i < j else ((j, b), (i, a))

    waiting = sorted(missing)
    drawn.shuffle(waiting)
    cases = []
    for first in waiting:
        if first not in missing:
            continue
        case = dict(first)
        for i in drawn.sample([i for i in range(len(axes)) if i not in case], len(axes) - 2):
            gains = [sum(pair(i, a, j, b) in missing for j, b in case.items()) for a in range(len(axes[i]))]
            case[i] = drawn.choice([a for a, gain in enumerate(gains) if gain == max(gains)])
        missing -= {pair(i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(axes)), 2)}
        cases.append(tuple(axis[case[i]] for i, axis in enumerate(axes)))
    return cases


def by_form(cases: list[tuple], values: int = 2) -> list[tuple]:
    """In the order of their first values, which name a form: names of cases begin with it."""
    return sorted(cases, key=lambda case: case[:values])
