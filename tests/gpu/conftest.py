"""The host's functions and argument layouts of the GPU sources, compiled once a session."""

import pytest

from scripts.host_configs import Configs, configs
from tests.gpu.host_arguments import Arguments


@pytest.fixture(scope="session")
def library() -> Configs:
    """The launchers' configuration functions."""
    return configs()


@pytest.fixture(scope="session")
def host_arguments(tmp_path_factory) -> Arguments:
    return Arguments(tmp_path_factory.mktemp("arguments"))
