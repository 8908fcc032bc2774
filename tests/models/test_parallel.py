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


# Of parallel_worker.py. A process takes several: it imports transformers once.
SHARES = "split,split_experts,split_mx"


@pytest.mark.parametrize(
    "ranks, cases", [(2, f"{SHARES},decode,decode_experts,refused"), (4, SHARES), full(4, "decode")]
)
def test_models_split_over_ranks(ranks, cases):
    run_ranks(WORKER, cases, ranks)
