"""The host's functions and argument layouts of the GPU sources, compiled once a session."""

import pytest

from tests.gpu.host_arguments import Arguments
from tests.gpu.host_configs import Configs


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Configs:
    """The launchers' configuration functions."""
    return Configs.compiled(tmp_path_factory.mktemp("configs"))


@pytest.fixture(scope="session")
def host_arguments(tmp_path_factory) -> Arguments:
    return Arguments(tmp_path_factory.mktemp("arguments"))
