"""The communicator of vLLM's tensor-parallel group: its life, and what workers do without one, or without the other."""

import pytest

from tests.processes import run_ranks

from .settings import two_devices

pytestmark = two_devices

WORKER = "integrations.vllm.tests.communicator_worker"


@pytest.mark.parametrize(("case", "quiet"), [("lives", 0), ("refused", 0), ("death", 1)])
def test_two_workers(case, quiet):
    run_ranks(WORKER, case, 2, quiet=quiet)
