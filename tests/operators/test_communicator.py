"""Communicators between processes of the CPU: their memory, their lives, and ranks that end or disagree."""

import pytest

from tests.processes import run_ranks

WORKER = "tests.operators.communicator_worker"


@pytest.fixture(autouse=True, scope="module")
def cpu(kernel, backend):
    """The CPU's build is there: processes load it by themselves."""
    if backend != "cpu":
        pytest.skip("the CPU's processes; a GPU's ranks: test_all_reduce.py")


@pytest.mark.parametrize("ranks", (2, 4, 8))
def test_every_collective(ranks):
    run_ranks(WORKER, "sums", ranks)


@pytest.mark.parametrize("ranks", (2, 3))
def test_a_rank_that_ends_is_named(ranks):
    run_ranks(WORKER, "death", ranks, quiet=1)  # the last rank ends before its last word


def test_what_its_copies_do():
    run_ranks(WORKER, "lives", 2)


def test_ranks_that_disagree():
    run_ranks(WORKER, "disagreement", 3)


def test_nothing_is_left_behind():
    run_ranks(WORKER, "leaves_nothing", 2)
