"""What the operators' tests share."""

import pytest
import torch

from tests.problems.inputs import FP8, short


def pytest_collection_modifyitems(items) -> None:
    for item in items:  # graphs take seconds to compile
        if item.path.parent.name == "operators" and "compile" in item.path.name:
            item.add_marker(pytest.mark.covering)


@pytest.fixture(params=FP8, ids=short)
def format(request, formats) -> torch.dtype:
    """Of a GEMM's operands: each that the device multiplies."""
    if request.param not in formats:
        pytest.skip("not this GPU's format: test_a_format_that_the_device_does_not_multiply has it")
    return request.param
