"""What the tests of machine code share."""

import pytest

from scripts import machine_code


@pytest.fixture(scope="session")
def rocm_kernels(rocm_library) -> dict[str, dict[str, machine_code.Kernel]]:
    """The ROCm variant's kernels, by architecture and name: disassembled once."""
    return machine_code.all_kernels(rocm_library)
