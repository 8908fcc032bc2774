"""For all tests: the run's seed in the report, random numbers that it reproduces, large and slow tests on request."""

import os
import signal
import zlib

import pytest
import torch

from tests.drawn import split
from tests.settings import SEED, SEED_VARIABLE


def pytest_addoption(parser) -> None:
    parser.addoption("--full", action="store_true", help="also what is large by nature, and all cases of what is drawn")
    parser.addoption("--drawn-chips", action="store_true", help="the CUDA variant for one chip, drawn by the seed")
    parser.addoption(
        "--latest",
        action="store_true",
        help="as make test-latest: models as with --full, one in eight of the operators'",
    )
    parser.addoption("--slow", action="store_true", help="also the tests that take minutes")


def pytest_configure(config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # a core for each worker; tests of threads ask for their number
        torch.set_num_threads(1)
        # Of the programs that tests start, too: threads that wait for one another's turn on a busy core spin.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        # Graphs are compiled in the worker itself, without a pool of processes that each import torch.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # What a shell starts in the background ignores SIGINT, and so would the programs that the tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items) -> None:
    if not config.getoption("--full"):
        # With the newest torch other cases.
        items[:], left = split(items, SEED, turn=int(config.getoption("--latest")))
        config.hook.pytest_deselected(items=left)
    for name, why in (("full", "large by nature"), ("slow", "takes a minute or more")):
        skipped = pytest.mark.skip(reason=f"{why}; --{name} runs it")
        for item in items if not config.getoption(f"--{name}") else ():
            of_models = name == "full" and config.getoption("--latest") and item.path.parent.name == "models"
            if item.get_closest_marker(name) and not of_models:
                item.add_marker(skipped)


def pytest_report_header() -> str:
    return f"seed: {SEED} (repeat with {SEED_VARIABLE}={SEED})"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed:
        report.sections.append(("seed", f"{SEED_VARIABLE}={SEED}"))


@pytest.fixture
def generator(request) -> torch.Generator:
    """Seeded by the run's seed and the test's name: a test draws the same numbers alone as in the whole suite."""
    name = f"{request.module.__name__}::{request.node.name}"
    return torch.Generator().manual_seed(SEED ^ zlib.crc32(name.encode()))
