"""Wait states that the hardware does not insert: every rule planted, one state short and just enough."""

import pytest
from conftest import needs_rocm_toolchain
from simulator import Checks, HazardFault, hazards
from simulator.code_object import load_all, parse
from simulator.program import program
from simulator_harness import ARCHS, Snippets, assemble, needs_clang

pytestmark = needs_clang

MFMA = "v_mfma_f32_16x16x32_fp8_fp8 v[20:23], v[10:11], v[12:13], v[20:23]"
LARGE = "v_mfma_f32_32x32x16_fp8_fp8 v[0:15], v[40:41], v[42:43], v[0:15]"
SMFMAC = "v_smfmac_f32_16x16x64_fp8_fp8 v[20:23], v[10:11], v[12:15], v16"

# name: (first, second, wait states on gfx942, on gfx950)
RULES = {
    "result read": (MFMA, "v_mov_b32 v30, v23", 7, 8),
    "result of 8 passes read": (LARGE, "v_mov_b32 v30, v15", 11, 12),
    "result of smfmac read": (SMFMAC, "v_mov_b32 v30, v23", 7, 8),
    "result stored": (MFMA, "global_store_dword v0, v20, s[6:7]", 7, 8),
    "result written to LDS": (MFMA, "ds_write_b32 v0, v20", 7, 8),
    "result overwritten": (MFMA, "v_mov_b32 v21, 0", 7, 8),
    "result overwritten by a load": (MFMA, "global_load_dword v22, v0, s[4:5]", 7, 8),
    "result multiplied": (MFMA, "v_mfma_f32_16x16x32_fp8_fp8 v[24:27], v[20:21], v[12:13], v[24:27]", 7, 8),
    "result as an index": (MFMA, "v_smfmac_f32_16x16x64_fp8_fp8 v[24:27], v[10:11], v[12:15], v20", 7, 8),
    "result accumulated": (MFMA, MFMA, 0, 0),
    "result accumulated sparsely": (SMFMAC, SMFMAC, 0, 0),
    "result overlapped": (MFMA, "v_mfma_f32_16x16x32_fp8_fp8 v[24:27], v[10:11], v[12:13], v[22:25]", 5, 6),
    "accumulator overwritten": (
        "v_mfma_f32_16x16x32_fp8_fp8 v[24:27], v[10:11], v[12:13], v[20:23]", "v_mov_b32 v20, 0", 3, 3,
    ),
    "vector to matrix": ("v_mov_b32 v10, v11", MFMA, 2, 2),
    "vector to accumulator": ("v_mov_b32 v22, v11", MFMA, 2, 2),
    "EXEC to matrix": ("v_cmpx_eq_u32 v0, v0", MFMA, 4, 4),
    "vector to DPP": ("v_mov_b32 v20, v11", "v_mov_b32_dpp v30, v20 row_shr:1 row_mask:0xf bank_mask:0xf", 2, 2),
    "EXEC to DPP": ("v_cmpx_eq_u32 v0, v0", "v_mov_b32_dpp v30, v20 row_shr:1 row_mask:0xf bank_mask:0xf", 5, 5),
    "EXEC to a lane access": ("v_cmpx_eq_u32 v0, v0", "v_readfirstlane_b32 s20, v0", 4, 4),
    "vector to a lane access": ("v_mov_b32 v20, v11", "v_readlane_b32 s20, v20, 3", 1, 1),
    "lane number": ("v_readfirstlane_b32 s20, v0", "v_readlane_b32 s21, v20, s20", 4, 4),
    "lane number to write": ("v_readfirstlane_b32 s20, v0", "v_writelane_b32 v20, 3, s20", 4, 4),
    "scalar to VALU": ("v_readfirstlane_b32 s20, v0", "v_mov_b32 v20, s20", 2, 2),
    "VCC to VALU": ("v_cmp_eq_u32 vcc, v0, v1", "v_cndmask_b32 v20, v0, v1, vcc", 2, 2),
    "scalar to VMEM": ("v_readfirstlane_b32 s4, v0", "global_load_dword v20, v0, s[4:5]", 5, 5),
    "VCC to v_div_fmas": ("v_div_scale_f32 v20, vcc, v0, v1, v0", "v_div_fmas_f32 v21, v22, v23, v24", 4, 4),
    "transcendental": ("v_exp_f32 v20, v10", "v_mov_b32 v21, v20", 1, 1),
    "transcendental to transcendental": ("v_exp_f32 v20, v10", "v_rcp_f32 v21, v20", 0, 0),
    "high half": ("v_cvt_pk_fp8_f32 v20, v10, v11 op_sel:[0,0,1]", "v_mov_b32 v21, v20", 1, 1),
    "low half": ("v_cvt_pk_fp8_f32 v20, v10, v11", "v_mov_b32 v21, v20", 0, 0),
    "part by SDWA": ("v_mov_b32_sdwa v20, v10 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD",
                     "v_mov_b32 v21, v20", 1, 1),
    "data of a wide store": ("global_store_dwordx4 v0, v[20:23], s[6:7]", "v_mov_b32 v23, 0", 2, 2),
    "data of a narrow store": ("global_store_dwordx2 v0, v[20:21], s[6:7]", "v_mov_b32 v21, 0", 0, 0),
    "M0": ("s_mov_b32 m0, s20", "global_load_lds_dword v0, s[4:5]", 1, 1),
}  # fmt: skip


def found(body: str, arch: str) -> list[hazards.Violation]:
    code = parse(assemble({"planted": body}, arch, 256, raw=True))
    instructions, _ = program(code, code.kernels["planted"])
    return list(hazards.violations(instructions, arch))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("arch", ARCHS)
def test_rule(arch, name):
    first, second, *states = RULES[name]
    needed = states[ARCHS.index(arch)]
    assert not found("\n".join([first, *([f"s_nop {needed - 1}"] if needed else []), second]), arch)
    if not needed:
        return
    # s_nop N counts N + 1, other instructions one each.
    short = f"s_nop {needed - 2}" if needed > 1 else ""
    (one,) = found(f"{first}\n{short}\n{second}", arch)
    assert (one.states, one.hazard.states) == (needed - 1, needed)
    (one,) = found("\n".join([first, *["s_mov_b32 s90, 0"] * (needed - 1), second]), arch)
    assert one.states == needed - 1


@pytest.mark.parametrize("arch", ARCHS)
def test_the_fault_names_both(arch):
    body = "v_exp_f32 v20, v10\n v_mov_b32 v30, v20"
    with pytest.raises(HazardFault) as caught:
        Snippets({"planted": body}, arch, checks=Checks()).run("planted")
    text = str(caught.value)
    assert "`v_mov_b32_e32 v30, v20`" in text and "`v_exp_f32_e32 v20, v10`" in text and "kernel planted" in text
    assert "0 wait states after" in text and "1 are needed" in text
    Snippets({"planted": body}, arch, checks=Checks(hazards=False)).run("planted")


@pytest.mark.parametrize("arch", ARCHS)
def test_over_branches(arch):
    """The first instruction at the end of a loop, the second at its start and behind it; the branch is one state."""
    body = """
    loop:
      v_mov_b32 v30, s20
      v_mov_b32 v31, 0
      v_readfirstlane_b32 s20, v0
      {between}
      s_cbranch_scc1 loop
      {behind}
      v_mov_b32 v32, s20"""
    back, behind = found(body.format(between="", behind=""), arch)
    assert {back.second.text.line, behind.second.text.line} == {"v_mov_b32_e32 v30, s20", "v_mov_b32_e32 v32, s20"}
    assert back.states == behind.states == 1
    (back,) = found(body.format(between="", behind="s_nop 0"), arch)
    assert back.second.text.line == "v_mov_b32_e32 v30, s20"
    assert not found(body.format(between="s_nop 0", behind=""), arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_second_writer_takes_over(arch):
    """v_mov waits for v_exp itself; the reader has to wait for v_mov alone."""
    body = "v_cmp_eq_u32 vcc, v0, v1\n s_nop 0\n v_cmp_eq_u32 vcc, v0, v2\n s_nop {}\n v_cndmask_b32 v20, v0, v1, vcc"
    assert not found(body.format(1), arch)
    assert len(found(body.format(0), arch)) == 1


@needs_rocm_toolchain
@pytest.mark.parametrize("arch", ARCHS)
def test_the_shipped_kernels_have_none(arch, rocm_library):
    for code in load_all(rocm_library, arch):
        for kernel in code.kernels.values():
            instructions, _ = program(code, kernel)
            assert not [str(each) for each in hazards.violations(instructions, arch)], kernel.name


@needs_rocm_toolchain
@pytest.mark.parametrize("arch", ARCHS)
def test_the_shipped_kernels_come_close(arch, rocm_library):
    """The compiler leaves no more than the rules demand: for each it uses, some pair has just enough states."""
    tight = set()
    for code in load_all(rocm_library, arch):
        for kernel in code.kernels.values():
            instructions, _ = program(code, kernel)
            tight |= {each.hazard.view for each in hazards.violations(instructions, arch, slack=1)}
    assert {"vector read", "plain read by VALU", "read by VALU", "DPP read", "scalar read by VALU"} <= tight
