"""The shipped ROCm library, unmodified: every kernel in it is understood, and the simulator knows no more than it has to.

What its operators compute is in test_rocm_operators.py.
"""

import re
from pathlib import Path

import pytest
from conftest import needs_rocm_toolchain
from simulator import matrix, packed, scalar_tables, transfers, vector, vector_tables
from simulator.code_object import load_all
from simulator.program import program
from simulator_harness import ARCHS, needs_clang

pytestmark = [needs_clang, needs_rocm_toolchain]
HERE = Path(__file__).parent
MNEMONIC = re.compile(r"\b(?:v|s|ds|global|flat|buffer)_[a-z0-9_]+")


@pytest.fixture(scope="module")
def shipped(rocm_library) -> dict[str, set[str]]:
    """The mnemonics of every kernel, by architecture."""
    found = {}
    for arch in ARCHS:
        kernels = [(code, kernel) for code in load_all(rocm_library, arch) for kernel in code.kernels.values()]
        assert kernels
        found[arch] = {ins.mnemonic for each in kernels for ins in program(*each)[0]}
    return found


@pytest.mark.parametrize("arch", ARCHS)
def test_every_kernel_is_understood(shipped, arch):
    assert "s_endpgm" in shipped[arch] and "v_mfma_f32_16x16x32_fp8_fp8" in shipped[arch]


def test_no_instruction_is_known_in_vain(shipped):
    """Each entry of the tables is used by a shipped kernel or written in a test."""
    sources = [*HERE.glob("test_simulator_*.py"), HERE / "simulator_cases.py", HERE / "simulator_harness.py"]
    used = set().union(*shipped.values(), *(MNEMONIC.findall(path.read_text()) for path in sources))
    used = {vector.base_name(name) for name in used}
    tables = {
        *vector_tables.OPERATIONS, *vector.SPECIAL, *vector.CARRY, *packed.PACKED, *vector_tables.ONLY_GFX950,
        *scalar_tables.BRANCHES, *(f"v_{name.replace('mfma_', 'mfma_f32_').replace('smfmac_', 'smfmac_f32_')}"
        for name in matrix.SUPPORTED if not name.endswith("i8")),
    }  # fmt: skip
    assert not sorted(name for name in tables if name not in used)
    for verbs, moves in {
        ("global_load", "flat_load", "buffer_load"): transfers.LOADS,
        ("global_store", "flat_store", "buffer_store"): transfers.STORES,
        ("ds_read", "ds_read2", "ds_read2st64"): transfers.DS_READS,
        ("ds_write", "ds_write2", "ds_write2st64"): transfers.DS_WRITES,
    }.items():
        assert not [form for form in moves if not used & {f"{verb}_{form}" for verb in verbs}], verbs
