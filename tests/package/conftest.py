"""A package of a module's SOURCES, and what its `build` makes of it."""

import subprocess
from pathlib import Path

import pytest

from tests.package.small_package import write_package


@pytest.fixture
def package(request, tmp_path: Path) -> Path:
    return write_package(request.module.SOURCES, tmp_path / "package")


@pytest.fixture(scope="module")
def first_build(request, tmp_path_factory) -> subprocess.CompletedProcess:
    return request.module.build(write_package(request.module.SOURCES, tmp_path_factory.mktemp("built") / "package"))


@pytest.fixture(scope="module")
def library(first_build) -> Path:
    (found,) = Path(first_build.stdout.strip()).glob("*.abi3.so")
    return found
