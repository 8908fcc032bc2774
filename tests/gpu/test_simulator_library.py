"""The simulator and the shipped ROCm library, unmodified: every kernel in it is understood and free of hazards, and the
simulator knows no more than it must.

What the operators compute is in test_rocm_operators.py.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.binary.code_object import load_all
from simulator.binary.disassembly import disassemble
from simulator.isa import matrix, packed, scalar, vector, vector_tables
from simulator.memory import atomics, lds, transfers, vmem
from simulator.schedule import hazards
from simulator.schedule.program import program, without_collection
from simulator.tests.harness import ARCHS, needs_clang
from tests.settings import ROOT, needs_rocm_toolchain

pytestmark = [needs_clang, needs_rocm_toolchain]
SIMULATOR_TESTS = ROOT / "simulator" / "tests"
MNEMONIC = re.compile(r"\b(?:v|s|ds|global|flat|buffer)_[a-z0-9_]+")


@pytest.mark.parametrize("arch", ARCHS)
@without_collection()
def test_every_kernel_is_understood_and_none_has_a_hazard(rocm_library, arch):
    """The compiler leaves no more than the rules demand: for each it uses, some pair has just enough states.

    In one test, since what takes its time are the instructions, each of which is decoded and forgotten.
    """
    used, wrong, tight = set(), [], set()
    for code in load_all(rocm_library, arch):
        for kernel in code.kernels.values():
            instructions, _ = program(code, kernel)
            used.update(each.mnemonic for each in instructions)
            near = list(hazards.violations(instructions, arch, slack=1))
            wrong += [f"{kernel.name}: {each}" for each in near if each.states < each.hazard.states]
            tight.update(each.hazard.view for each in near)
    assert "s_endpgm" in used and any(name.startswith("v_mfma_") for name in used)
    assert not wrong
    assert {"vector read", "plain read by VALU", "read by VALU", "DPP read", "scalar read by VALU"} <= tight


# What sources compiled in the tests come to, and what a small change of a kernel, or of the compiler, may ask for.
LIKELY = set(
    """
    s_nor_b64 v_mad_i64_i32 v_min3_f32 v_add_lshl_u32 v_xad_u32 s_getpc_b64 buffer_inv v_pk_mov_b32 s_setprio
    v_not_b32 v_bfi_b32 v_max_u32 v_min_i32 v_sub_f32 v_cvt_i32_f32 v_fmaak_f32 v_cvt_f32_fp8 v_add_f16 v_sub_f16
    s_min_i32 s_max_i32 s_max_u32 s_not_b32 s_not_b64 s_abs_i32 s_andn2_b32 s_bfe_i32 s_bfe_i64 s_bcnt1_i32_b32
    s_ff1_i32_b32 s_orn2_b32 s_nor_b32 s_ff1_i32_b64 s_bitcmp0_b32 s_bitcmp0_b64 s_bitcmp1_b32 s_bitcmp1_b64
    s_flbit_i32_b32 s_sext_i32_i8 s_sext_i32_i16 s_pack_ll_b32_b16 s_pack_lh_b32_b16 s_pack_hh_b32_b16 v_mad_i32_i24
    v_cvt_f32_ubyte1 v_cvt_f32_ubyte2 v_cvt_f32_ubyte3
""".split()
)
# What the kernels of simulator/calibration have and the shipped ones do not.
PEERS = set("v_bfrev_b32 v_lshlrev_b16 v_mul_u32_u24 v_mad_u32_u24 v_mul_i32_i24".split())
# What clang makes of other people's kernels for gfx942, seen there. Nothing of this repository compiles to them, so
# they are held to the pseudocode alone.
OTHERS = set(
    """
    v_max_i32 v_min_i16 v_max_i16 v_min_u16 v_max_u16 v_mul_hi_i32 v_add_i32 v_sub_i32 v_swap_b32
    v_fma_mix_f32 v_fma_mixlo_f16 v_fma_mixhi_f16 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32
    v_min_f64 v_max_f64 v_add_f64 v_mul_f64 v_fma_f64 v_fmac_f64
    v_cvt_f64_i32 v_cvt_f64_u32 v_cvt_i32_f64 v_cvt_u32_f64 v_cvt_f64_f32 v_cvt_f32_f64
    global_atomic_add_f32 global_atomic_pk_add_f16 global_atomic_pk_add_bf16
""".split()
)
NEEDED_ELSEWHERE = LIKELY | PEERS | OTHERS
# One form stands for all relations and types.
FAMILIES = ("s_cmp_", "s_cmpk_", "s_bitcmp", "v_cmp_", "v_cmpx_")
# These only ask whether an instruction is right, not whether anything needs it.
OF_INSTRUCTIONS = ("test_pseudocode.py", "test_instructions.py", "test_atomics.py")


def family(name: str) -> str:
    return next((each for each in FAMILIES if name.startswith(each)), name)


def shipped_lines(library: Path, arch: str) -> Iterator[str]:
    for code in load_all(library, arch):
        yield from disassemble(code).values()


def test_no_instruction_is_known_in_vain(rocm_library):
    """Each entry of the tables is used by a shipped kernel or a peer's, by a test that is not about it, or is LIKELY or
    seen in OTHERS' kernels."""
    sources = [each for each in SIMULATOR_TESTS.glob("test_*.py") if each.name not in OF_INSTRUCTIONS]
    sources.append(SIMULATOR_TESTS / "harness.py")
    written = {vector.base_name(name) for path in sources for name in MNEMONIC.findall(path.read_text())}
    lines = {line.split(maxsplit=1)[0] for arch in ARCHS for line in shipped_lines(rocm_library, arch)}
    used = {vector.base_name(name) for name in lines} | written - LIKELY
    matrices = {f"v_{name.replace('fmac_', 'fmac_f32_').replace('mfma_', 'mfma_f32_')}" for name in matrix.SUPPORTED}
    memory = {
        *(f"s_load_{form}" for form in vmem.SCALAR_LOADS), *vmem.CACHE_CONTROL, "s_memrealtime",
        *(f"ds_{name}" for name in lds.ACROSS_LANES), *(f"global_atomic_{name}" for name in atomics.SUMS),
    }  # fmt: skip
    tables = {
        *vector_tables.OPERATIONS, *vector.SPECIAL, *packed.HANDLERS, *scalar.HANDLERS, *memory,
        *(name.replace("f32", "i32") if name.endswith("i8") else name for name in matrices),
    }  # fmt: skip
    families = {family(name) for name in used}
    assert not sorted(name for name in tables if family(name) not in families and name not in NEEDED_ELSEWHERE)
    assert tables >= NEEDED_ELSEWHERE
    for verbs, moves in {
        ("global_load", "flat_load", "buffer_load"): transfers.LOADS,
        ("global_store", "flat_store", "buffer_store"): transfers.STORES,
        ("ds_read", "ds_read2", "ds_read2st64"): transfers.DS_READS,
        ("ds_write", "ds_write2", "ds_write2st64"): transfers.DS_WRITES,
    }.items():
        assert not [form for form in moves if not used & {f"{verb}_{form}" for verb in verbs}], verbs
