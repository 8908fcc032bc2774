"""Ranks with a GPU each, in processes: bytes, 100,000 launches, graphs from cold, ranks that end or disagree."""

import pytest
import torch

from tests.processes import run_ranks

WORKER = "tests.gpu.rank_worker"
pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(autouse=True, scope="module")
def built(kernel, backend):
    """The GPUs' build is there: processes load it by themselves."""
    if backend == "cpu":
        pytest.skip("this variant is not the GPU's")


@pytest.fixture(params=sorted({2, min(torch.cuda.device_count(), 8)} - {0, 1}), ids=lambda n: f"{n}-gpus")
def ranks(request) -> int:
    return request.param


@pytest.mark.parametrize("case", ("sums", "gemms", "many", "other_call", "lives"))
def test_ranks(case, ranks):
    run_ranks(WORKER, case, ranks)


def test_a_rank_that_ends_is_named(ranks):
    run_ranks(WORKER, "death", ranks, quiet=1)  # the last rank ends before its last word
