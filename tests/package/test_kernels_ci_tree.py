"""The tests in the tree that a Nix build tests: build.toml's sources, torch-ext/ and tests/*.py, no configuration."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.settings import ROOT

REPO_ID = "rocm-fp8-kernels/rocm-fp8-kernels"


@pytest.fixture(scope="module")
def nix_tree(tmp_path_factory) -> Path:
    """What nix-builder/lib/source-set.nix of huggingface/kernels takes."""
    table = tomllib.loads((ROOT / "build.toml").read_text())
    listed = {name for section in (table["torch"], *table["kernel"].values()) for name in section["src"]}
    python = {path.relative_to(ROOT) for folder in ("torch-ext", "tests") for path in (ROOT / folder).rglob("*.py")}
    tree = tmp_path_factory.mktemp("nix") / "source"
    for name in ["build.toml", *listed, *python]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    return tree


def ci_test(tree: Path) -> subprocess.CompletedProcess:
    """As mkCiTests of nix-builder/lib/build.nix runs it; an unknown mark is an error."""
    command = [sys.executable, "-m", "pytest", str(tree / "tests"), "-m", "kernels_ci", "-p", "no:cacheprovider"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = kept | {"LOCAL_KERNELS": f"{REPO_ID}={ROOT}", "HF_HUB_OFFLINE": "1"}
    command += ["-W", "error::pytest.PytestUnknownMarkWarning", "-v"]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=900)


def test_it_runs_the_marked_tests_alone_and_they_pass(kernel, nix_tree):
    run = ci_test(nix_tree)
    assert run.returncode == 0, run.stdout + run.stderr
    files = {line.split("::")[0] for line in run.stdout.splitlines() if "::" in line}
    assert {Path(name).name for name in files} == {"test_kernels_ci.py"}
