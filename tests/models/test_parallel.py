"""Models that are split over ranks, between processes of the CPU."""

import pytest

from tests.processes import run_ranks
from tests.settings import full


@pytest.fixture(autouse=True, scope="module")
def cpu(kernel, backend):
    """The CPU's build is there: processes load it by themselves."""
    if backend != "cpu":
        pytest.skip("the CPU's processes")


WORKER = "tests.models.parallel_worker"


@pytest.mark.parametrize("ranks", (2, 4))
def test_shares_compute_what_the_whole_does(ranks):
    run_ranks(WORKER, "split", ranks)


@pytest.mark.parametrize("ranks", (2, 4))
def test_shares_of_mixtures_compute_what_the_whole_does(ranks):
    run_ranks(WORKER, "split_experts", ranks)


@pytest.mark.parametrize("ranks", (2, full(4)))
def test_the_byte_level_llama_gives_the_tokens_of_one_rank(ranks):
    run_ranks(WORKER, "decode", ranks)


def test_the_byte_level_deepseek_gives_the_bytes_of_one_rank():
    run_ranks(WORKER, "decode_experts", 2)


def test_what_cannot_be_split():
    run_ranks(WORKER, "refused", 2)
