"""A record of the operators that a model calls. And the device that the tests of the benchmarks drive, for the demo's
times of operators."""

import sys

import pytest
import torch

from problems.operators import functions
from tests.tools.fake_gpu import gpu


@pytest.fixture
def calls(kernel, monkeypatch) -> list[str]:
    """Names of the package's operators, in the order of their calls."""
    operators, linear = (sys.modules[f"{kernel.__name__}.ops{part}"] for part in ("", ".linear"))
    names = []

    def counted(name: str):
        original = getattr(operators, name)

        def call(*args, **kwargs):
            names.append(name)
            return original(*args, **kwargs)

        return call

    for name in functions(kernel):
        monkeypatch.setattr(operators, name, counted(name))
        if hasattr(linear, name):
            monkeypatch.setattr(linear, name, getattr(operators, name))
    return names


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield
