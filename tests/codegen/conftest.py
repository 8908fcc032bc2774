"""What the tests of machine code share."""

import pytest

from scripts import machine_code


@pytest.fixture(scope="session")
def rocm_kernels(rocm_library) -> dict[str, dict[str, machine_code.Kernel]]:
    """The ROCm variant's kernels, by architecture and name: disassembled once."""
    return machine_code.all_kernels(rocm_library)


def pytest_collection_modifyitems(config, items) -> None:
    """One of CUDA's three chips: a build from nothing takes minutes a chip."""
    if config.getoption("--drawn-chips"):
        for item in items:
            if item.path.name == "test_cuda_machine_code.py":
                item.add_marker(pytest.mark.drawn(3, of="kernels"))
