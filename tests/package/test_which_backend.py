"""Which variant of the package is loaded, and which tests run on it."""

import os

import pytest
import torch

from scripts import load
from tests.forked import start

PYTEST = """
import sys, pytest
options = ["-q", "--assert=plain", "-p", "no:cacheprovider", "--backend", "cpu"]
raise SystemExit(pytest.main([*options, *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    "gpu, hip, wanted", [(False, None, "cpu"), (False, "7.2", "cpu"), (True, None, "cuda"), (True, "7.2", "rocm")]
)
def test_the_gpus_where_there_is_one(monkeypatch, gpu, hip, wanted):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr("kernels.get_kernel", lambda *args, backend, **kwargs: asked.append(backend))
    monkeypatch.setenv("LOCAL_KERNELS", "")
    for backend in (None, "cpu"):
        load.load_kernel(backend)
    assert load.default_backend() == wanted and asked == [wanted, "cpu"]


def test_a_backend_asked_for_runs_what_loads_the_package_alone():
    """Of two files: one that loads the package and one that does not."""
    files = ["tests/operators/test_swiglu.py", "tests/package/test_build.py"]
    run = start(PYTEST, {**os.environ}, arguments=["--collect-only", *files]).wait()
    assert run.returncode == 0, run.out
    assert {line.split("::")[0] for line in run.out.splitlines() if "::" in line} == {files[0]}


def test_a_backend_that_is_not_built_is_named(tmp_path):
    arguments = ["tests/operators/test_swiglu.py", "-k", "test_gates_at_the_edge"]
    run = start(PYTEST, os.environ | {"LOCAL_KERNELS": f"{load.REPO_ID}={tmp_path}"}, arguments=arguments).wait()
    assert run.returncode == 1
    assert "no build to test" in run.out and "scripts/build.py --backend cpu" in run.out
