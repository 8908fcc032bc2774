"""Communicators between processes of the CPU: their memory, their lives, and ranks that end or disagree."""

import os
import socket

import pytest

from tests.forked import start
from tests.settings import SEED


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def run(case: str, ranks: int) -> None:
    """Each rank's process has done its part; the errors of all are shown."""
    program = "from tests.operators.communicator_worker import main\nmain()"
    environment = {name: value for name, value in os.environ.items() if name != "ROCM_FP8_KERNELS_CPU"}
    port = free_port()
    running = [
        start(program, environment, arguments=(case, str(r), str(ranks), str(port), str(SEED))) for r in range(ranks)
    ]
    done = [each.wait(240) for each in running]
    failed = [
        f"rank {rank}: {each.returncode}\n{each.err[-1500:]}" for rank, each in enumerate(done) if each.returncode
    ]
    assert not failed, "\n".join(failed)
    quiet = 1 if case == "death" else 0  # the last rank has ended before
    assert sum(f"{case}: done" in each.out for each in done) == ranks - quiet


@pytest.fixture(autouse=True, scope="module")
def cpu(kernel, backend):
    """The CPU's build is there: processes load it by themselves."""
    if backend != "cpu":
        pytest.skip("the CPU's processes; a GPU's ranks: test_all_reduce.py")


@pytest.mark.parametrize("ranks", (2, 4, 8))
def test_every_collective(ranks):
    run("sums", ranks)


@pytest.mark.parametrize("ranks", (2, 3))
def test_a_rank_that_ends_is_named(ranks):
    run("death", ranks)


def test_ranks_that_disagree():
    run("disagreement", 3)


def test_nothing_is_left_behind():
    run("leaves_nothing", 2)
