"""Fixtures: the built package, the device that it serves, the ROCm variant in the simulator."""

import json
import os
from pathlib import Path

import pytest
import torch

from tests.builds import built
from tests.forked import start
from tests.settings import ROCM_HEADERS, ROOT, SEED

# A Nix build tests a tree of build.toml's sources, torch-ext/ and tests/*.py: there test_kernels_ci.py alone can run.
if not (ROOT / "scripts").is_dir():
    collect_ignore = [folder.name for folder in Path(__file__).parent.iterdir() if folder.is_dir()]


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


def pytest_configure(config) -> None:
    # Kernels of several ranks on one GPU wait for each other: none may be loaded meanwhile, as that waits for them.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    # As pytest.toml has it, which a Nix build's tree lacks.
    config.addinivalue_line("markers", "kernels_ci: what kernel-builder runs of a finished build; under a minute")


def pytest_collection_modifyitems(config, items) -> None:
    for item in items:
        if ROOT / "tests" / "models" in item.path.parents:
            item.add_marker(pytest.mark.covering)
    if config.getoption("--backend"):
        others = [item for item in items if "kernel" not in item.fixturenames]
        items[:] = [item for item in items if "kernel" in item.fixturenames]
        config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session")
def kernel(request):
    """The package as a user gets it: through kernels.get_kernel, from this repository's build/. Or the simulated
    one."""
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
    """The FP8 formats that the GEMMs multiply: a GPU's own, a CPU's both. Whatever only writes FP8 writes both."""
    both = torch.float8_e4m3fn, torch.float8_e4m3fnuz
    return both if backend == "cpu" else (kernel.fp8_dtype(device),)


@pytest.fixture(scope="session")
def rocm_variant() -> Path:
    """This repository's ROCm variant, cross-built (or found up to date). For tests marked needs_rocm_toolchain."""
    return built("rocm")


@pytest.fixture(scope="session")
def rocm_library(rocm_variant) -> Path:
    (library,) = rocm_variant.glob("*.so")
    return library


@pytest.fixture(scope="session")
def simulated_rocm(rocm_variant):
    from benchmarks.harness.simulated_rocm import SimulatedRocm

    return SimulatedRocm.shared(rocm_variant, ROCM_HEADERS)


@pytest.fixture(scope="session")
def forked():
    """run(program, *arguments, **environment) -> what the program printed, in a process of its own, offline. It must
    end with 0; a negative exit code is a signal."""

    def run(program: str, *arguments: str, **environment: str) -> str:
        kept = {name: value for name, value in os.environ.items() if name != "ROCM_FP8_KERNELS_CPU"}
        done = start(program, kept | {"HF_HUB_OFFLINE": "1"} | environment, arguments=arguments).wait(600)
        assert done.returncode == 0, f"{environment}: exit {done.returncode}\n{done.err[-2000:]}"
        return done.out

    return run


@pytest.fixture
def fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def environment(kernel, monkeypatch):
    """environment(name, value) sets a variable of the package (None: removes it) and has it read again."""

    def change(name: str, value: str | None) -> None:
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
        kernel.reread_environment()

    yield change
    monkeypatch.undo()
    kernel.reread_environment()
