"""A package of one small kernel, for the tests of scripts/build.py."""

import os
import subprocess
import sys
from pathlib import Path

from tests.settings import ROOT

BUILD = ROOT / "scripts" / "build.py"
EMPTY_MODULE = {"torch-ext/one_kernel/__init__.py": '"""Nothing."""\n'}


def build_toml(backend: str, section: str) -> str:
    """`section`: what [kernel.twice] has beside its backend."""
    return f"""\
[general]
name = "one-kernel"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["{backend}"]

[general.hub]
repo-id = "somebody/one-kernel"

[torch]
src = ["torch-ext/binding.cpp"]

[torch.stable-abi]
{backend} = "2.11"

[kernel.twice]
backend = "{backend}"
depends = ["torch"]
{section}"""


def write_package(sources: dict[str, str], folder: Path) -> Path:
    for name, text in (sources | EMPTY_MODULE).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def build_package(
    package: Path, backend: str, without: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess:
    """`without`: the variable that names an installed toolchain; the fetched one is to be used."""
    kept = {name: value for name, value in os.environ.items() if name != without}
    # Nothing above the temporary folder is taken for the package's repository.
    environment = kept | {"GIT_CEILING_DIRECTORIES": str(package.parent)} | environment
    command = [sys.executable, str(BUILD), "--backend", backend, "--source", str(package), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
