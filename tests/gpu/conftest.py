"""The host's functions and argument layouts of the GPU sources, compiled once a session; the chips of the simulator."""

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS
from scripts.host_configs import Configs, configs
from tests.gpu.host_arguments import Arguments


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
