"""What the operators' tests share."""

import re

import pytest
import torch

from tests.problems.inputs import FP8, short

# What another torch can break: graphs and their fakes, gradients, the conversion of arguments.
OF_TORCH = re.compile(r"test_\w*(compile|autograd|bad_input|calls)")


def pytest_collection_modifyitems(config, items) -> None:
    """Graphs take seconds to compile: half of them are. With another torch the kernels are the same: one case in eight
    of what they compute."""
    for item in items:
        if item.path.parent.name == "operators":
            if "compile" in item.path.name:
                item.add_marker(pytest.mark.drawn(2))
            elif config.getoption("--latest") and not OF_TORCH.match(item.path.name):
                item.add_marker(pytest.mark.drawn(8))


@pytest.fixture(params=FP8, ids=short)
def format(request, formats) -> torch.dtype:
    """Of a GEMM's operands: each that the device multiplies."""
    if request.param not in formats:
        pytest.skip("not this GPU's format: test_a_format_that_the_device_does_not_multiply has it")
    return request.param
