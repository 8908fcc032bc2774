"""For all tests: the run's seed in the report, random numbers that it reproduces, which tests a run takes."""

import os
import signal
import zlib
from pathlib import Path

import pytest
import torch

from tests.selection import green, leaves, split
from tests.settings import SEED, SEED_VARIABLE

UNCHANGED = pytest.StashKey[list[str]]()


def pytest_addoption(parser) -> None:
    parser.addoption("--full", action="store_true", help="all tests and cases, also what takes minutes or much memory")


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


def unchanged(config) -> list[str]:
    """The groups of tests that the run leaves: asked for once, in the process that starts the workers."""
    if UNCHANGED not in config.stash:
        told = getattr(config, "workerinput", {}).get("unchanged")
        config.stash[UNCHANGED] = told if told is not None else [] if config.getoption("--full") else green()
    return config.stash[UNCHANGED]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    node.workerinput["unchanged"] = unchanged(node.config)


def pytest_ignore_collect(collection_path: Path, config) -> bool | None:
    return (collection_path.suffix == ".py" and leaves(collection_path, unchanged(config), config.args)) or None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items) -> None:
    if not config.getoption("--full"):
        items[:], left = split(items)
        config.hook.pytest_deselected(items=left)


def pytest_report_header(config) -> list[str]:
    lines = [f"seed: {SEED} (repeat with {SEED_VARIABLE}={SEED})"]
    if unchanged(config):
        lines.append(f"left, since nothing that they depend on has changed: {', '.join(unchanged(config))}")
    return lines


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
