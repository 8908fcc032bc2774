"""Fixtures: the built kernel, the device that it serves, and random numbers that a seed reproduces."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
from helpers import FP8

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SEED_VARIABLE = "ROCM_FP8_TEST_SEED"
# In the environment, so that worker and child processes draw the same numbers.
SEED = int(os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**31))))


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--simulate",
        choices=["gfx942", "gfx950"],
        help="run the operator tests on the ROCm variant, its kernels in the simulator, on that chip",
    )
    parser.addoption(
        "--backend",
        choices=["cpu", "cuda", "rocm"],
        help="run the tests that load the package, and no others, on this variant (default: all tests, on the variant"
        " of the GPU that torch sees, else the CPU's)",
    )
    parser.addoption("--slow", action="store_true", help="also the tests that take minutes")


def pytest_configure(config) -> None:
    config.addinivalue_line("markers", "slow: takes a minute or more; runs with --slow")
    # What a shell starts in the background ignores SIGINT, and so would the programs that the tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items) -> None:
    if config.getoption("--backend"):
        others = [item for item in items if "kernel" not in item.fixturenames]
        items[:] = [item for item in items if "kernel" in item.fixturenames]
        config.hook.pytest_deselected(items=others)
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="takes a minute or more; --slow runs it"))


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


@pytest.fixture(scope="session")
def kernel(request):
    """The package as a user gets it: through kernels.get_kernel, from this repository's build/. Or the simulated one."""
    if arch := request.config.getoption("--simulate"):
        with request.getfixturevalue("simulated_rocm").on(arch, seed=SEED) as module:
            yield module
        return
    from scripts.load import default_backend, load_kernel

    backend = request.config.getoption("--backend") or default_backend()
    try:
        loaded = load_kernel(backend)
    except (FileNotFoundError, ImportError, ValueError) as error:
        why = str(error).split("\n")[0]
        pytest.fail(f"no build to test ({why}) run: python scripts/build.py --backend {backend}", pytrace=False)
    yield loaded


@pytest.fixture(scope="session")
def variant(kernel) -> Path:
    """The folder that the kernel was loaded from."""
    return Path(kernel.__file__).parent


@pytest.fixture(scope="session")
def backend(variant) -> str:
    """ "cpu", "rocm" or "cuda"."""
    return json.loads((variant / "metadata.json").read_text())["backend"]["type"]


@pytest.fixture(scope="session")
def device(request, backend) -> torch.device:
    simulated = request.config.getoption("--simulate")
    return torch.device("cpu" if backend == "cpu" or simulated else "cuda")


@pytest.fixture(scope="session")
def formats(kernel, device, backend) -> tuple[torch.dtype, ...]:
    """The FP8 formats that skinny_gemm multiplies: a GPU's own, a CPU's both. Whatever only writes FP8 writes both."""
    return FP8 if backend == "cpu" else (kernel.fp8_dtype(device),)


ROCM_HEADERS = ROOT / "build" / ".rocm" / "usr" / "include"
needs_rocm_toolchain = pytest.mark.skipif(
    not (ROCM_HEADERS / "hip" / "hip_version.h").is_file() or not shutil.which("clang++-22"),
    reason="python scripts/rocm_toolchain.py has not been run (.ci/run does)",
)
CUDA_TOOLKIT = ROOT / "build" / ".cuda" / "nvidia" / "cu13"
needs_cuda_toolchain = pytest.mark.skipif(
    not CUDA_TOOLKIT.is_dir(), reason="python scripts/cuda_toolchain.py has not been run (.ci/run does)"
)


@pytest.fixture(scope="session")
def rocm_variant() -> Path:
    """This repository's ROCm variant, cross-built (or found up to date). For tests marked needs_rocm_toolchain."""
    command = [sys.executable, str(ROOT / "scripts" / "build.py"), "--backend", "rocm"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return Path(run.stdout.strip())


@pytest.fixture(scope="session")
def rocm_library(rocm_variant) -> Path:
    (library,) = rocm_variant.glob("*.so")
    return library


@pytest.fixture(scope="session")
def simulated_rocm(rocm_variant):
    from simulated_rocm import SimulatedRocm

    return SimulatedRocm(rocm_variant, ROCM_HEADERS)
