"""The host's functions and argument layouts of the GPU sources, compiled once a session; the chips of the simulator.

Simulated cases are minutes of arithmetic: without --full a run takes those that have every value of every parameter.
"""

import contextlib

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS
from problems.ranks import Ranks
from scripts.host_configs import Configs, configs
from tests.gpu.host_arguments import Arguments
from tests.settings import SEED, needs_rocm_toolchain


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if item.path.parent.name != "gpu":
            continue
        if {"simulated_rocm", "kernels"} & set(item.fixturenames):
            item.add_marker(pytest.mark.covering)
        if "rocm_variant" in item.fixturenames:
            item.add_marker(needs_rocm_toolchain)


@pytest.fixture(scope="session")
def library() -> Configs:
    """The launchers' configuration functions."""
    return configs()


@pytest.fixture(scope="session")
def host_arguments(tmp_path_factory) -> Arguments:
    return Arguments(tmp_path_factory.mktemp("arguments"))


@pytest.fixture(scope="session")
def kernels(rocm_library):
    """The shipped ROCm library's, each to be launched by itself."""
    from tests.gpu.simulated_kernels import Kernels

    return Kernels(rocm_library)


@pytest.fixture
def launched(simulated_rocm):
    """What the operators launch in the simulator from here on."""
    from tests.gpu.simulated_kernels import LaunchLog

    log = LaunchLog(simulated_rocm.runtime)
    log.names()
    return log


@pytest.fixture(params=FORMATS)
def arch(request) -> str:
    return request.param


@pytest.fixture
def fp8(arch) -> torch.dtype:
    """The chip's own format."""
    return FORMATS[arch]


@pytest.fixture
def ranks(simulated_rocm, arch):
    """with ranks(count, ...) as together: at its end nothing of what was sent may be left."""
    from tests.gpu.simulated_ranks import OnDevices

    @contextlib.contextmanager
    def make(count: int, seed=SEED, **options):
        with simulated_rocm.devices(arch, count, seed=seed) as devices:
            together = OnDevices(devices, count, **options)
            yield together
            if not any(int(one._report[0]) for one in together.all):
                together.assert_clean()

    return make


@pytest.fixture
def together(kernel, device, request, environment):
    if device.type != "cuda":
        pytest.skip("this variant is not the GPU's")
    environment("ROCM_FP8_KERNELS_PDL", "0")
    made = Ranks(kernel, device, request.param, timeout=20.0, max_bytes=1 << 18)
    yield made
    if not any(int(one._report[0]) for one in made.all):
        made.assert_clean()
