"""What the operators' tests share."""

import pytest
import torch

from problems.inputs import FP8, short
from problems.registry.entry import Draw


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


@pytest.fixture(scope="module")
def alone(kernel, device):
    """A communicator of one rank, without torch.distributed."""
    if device.type == "cpu" and kernel.ops.device.backend() != "cpu":
        pytest.skip("the simulator's devices: tests/gpu/test_rocm_all_reduce.py")
    with kernel.comm.Communicator(max_bytes=1 << 16) as communicator:
        yield communicator


@pytest.fixture
def on(request, kernel, device, generator):
    """on(operator, sizes) -> what draws calls of an operator of the registry."""

    def draw(operator, **sizes) -> Draw:
        communicator = request.getfixturevalue("alone") if operator.between_ranks else None
        return Draw(kernel, device, generator, communicator, **sizes)

    return draw
