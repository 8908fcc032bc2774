"""The samples that stand for full products: every two values of two axes meet, and the seed repeats them."""

import itertools

import pytest

from problems.pairwise import pairwise
from tests.settings import SEED

AXES = {
    "two": [range(3), range(4)],
    "a longest one": [range(20), range(3), range(2), range(2)],
    "alike": [range(4)] * 5,
    "a single value": [range(3), range(1), range(5)],
    "many": [range(13), range(7), range(15), range(2), range(3), range(5), range(5), range(7), range(2), range(2)],
}


@pytest.mark.parametrize("name", AXES)
def test_every_pair_is_met(name):
    axes = AXES[name]
    cases = pairwise(*axes, seed=SEED)
    for i, j in itertools.combinations(range(len(axes)), 2):
        assert {(case[i], case[j]) for case in cases} == set(itertools.product(axes[i], axes[j]))
    first, second = sorted(map(len, axes))[-2:]
    assert first * second <= len(cases) <= 2 * first * second


def test_a_seed_repeats_its_sample():
    axes = AXES["many"]
    assert pairwise(*axes, seed=SEED) == pairwise(*axes, seed=SEED) != pairwise(*axes, seed=SEED + 1)
