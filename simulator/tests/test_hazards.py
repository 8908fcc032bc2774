"""Wait states that the hardware does not insert: every rule planted, one state short and just enough."""

import functools
import itertools

import pytest

from simulator import Checks, HazardFault
from simulator.binary.code_object import load, parse
from simulator.schedule import hazards
from simulator.schedule.program import program
from simulator.tests.harness import ARCHS, Snippets, assemble, compile_hip, needs_clang

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
    "result moved": (
        "v_mfma_f32_16x16x32_fp8_fp8 a[20:23], v[10:11], v[12:13], a[20:23]", "v_accvgpr_read_b32 v30, a23", 7, 8,
    ),
    "moved to a matrix operand": ("v_accvgpr_write_b32 a23, v30",
                                  "v_mfma_f32_16x16x32_fp8_fp8 a[20:23], v[10:11], v[12:13], a[20:23]", 2, 2),
    "swapped to matrix": ("v_swap_b32 v30, v10", MFMA, 2, 2),
    "double to DPP": ("v_fma_f64 v[20:21], v[22:23], v[22:23], v[22:23]",
                      "v_mov_b32_dpp v30, v21 row_shr:1 row_mask:0xf bank_mask:0xf", 2, 2),
    "double to double": ("v_cvt_f64_i32 v[20:21], v10", "v_min_f64 v[22:23], v[20:21], v[22:23]", 0, 0),
    "half of a mix": ("v_fma_mixhi_f16 v20, v10, v11, v12 op_sel_hi:[1,1,1]", "v_mov_b32 v21, v20", 0, 0),
    "scalar to an atomic": ("v_readfirstlane_b32 s4, v0", "global_atomic_pk_add_f16 v0, v20, s[4:5]", 5, 5),
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
    "MODE": (*["s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1"] * 2, 2, 2),
    "M0": ("s_mov_b32 m0, s20", "global_load_lds_dword v0, s[4:5]", 1, 1),
}  # fmt: skip

SCALED = "v_mfma_scale_f32_16x16x128_f8f6f4 v[20:23], v[40:43], v[48:51], v[20:23], v8, v9 cbsz:4 blgp:4"

# Of 4, 8 and 16 passes.
OF_GFX950 = {
    "result of 16x16x64 read": (
        "v_mfma_i32_16x16x64_i8 v[20:23], v[10:13], v[14:17], v[20:23]", "v_mov_b32 v30, v23", 8,
    ),
    "result of 16x16x128 read": (
        "v_mfma_f32_16x16x128_f8f6f4 v[20:23], v[40:47], v[48:55], v[20:23]", "v_mov_b32 v30, v23", 12,
    ),
    "result of 16x16x32 read": (
        "v_mfma_f32_16x16x32_bf16 v[20:23], v[10:13], v[14:17], v[20:23]", "v_mov_b32 v30, v23", 8,
    ),
    "result of 32x32x16 read": ("v_mfma_f32_32x32x16_f16 v[0:15], v[40:43], v[44:47], 0", "v_mov_b32 v30, v15", 12),
    "result of 32x32x32 read": ("v_mfma_i32_32x32x32_i8 v[0:15], v[40:43], v[44:47], 0", "v_mov_b32 v30, v15", 12),
    "result of 32x32x64 read": (
        "v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[40:47], v[48:55], 0", "v_mov_b32 v30, v15", 20,
    ),
    "result of scaled FP4 read": (SCALED, "v_mov_b32 v30, v23", 8),
    "result of scaled FP4 and FP8 read": (SCALED.replace("48:51", "48:55")[:-1] + "1", "v_mov_b32 v30, v23", 12),
    "result as a scale": (MFMA, SCALED.replace("20:23", "24:27").replace("v9", "v22"), 8),
    "vector to a scale": ("v_mov_b32 v9, v11", SCALED, 2),
    "a byte of FP4": ("v_cvt_scalef32_pk_fp4_f32 v20, v10, v11, v12 op_sel:[0,0,1,0]", "v_mov_b32 v21, v20", 1),
    "the lowest byte of FP4": ("v_cvt_scalef32_pk_fp4_f32 v20, v10, v11, v12", "v_mov_b32 v21, v20", 0),
    "a half of FP8": ("v_cvt_scalef32_pk_fp8_bf16 v20, v10, v12 op_sel:[0,0,1]", "v_mov_b32 v21, v20", 1),
    "a source of FP4": ("v_cvt_scalef32_pk_bf16_fp4 v20, v10, v12 op_sel:[1,1,0]", "v_mov_b32 v21, v20", 0),
}  # fmt: skip


def rules_of(arch: str) -> dict[str, tuple[str, str, int]]:
    """name: (first, second, wait states)."""
    every = {name: (first, second, states[ARCHS.index(arch)]) for name, (first, second, *states) in RULES.items()}
    return every | OF_GFX950 if arch == "gfx950" else every


def nops(states: int) -> list[str]:
    """s_nop N counts N + 1, at most 16."""
    return [*["s_nop 15"] * (states // 16), *[f"s_nop {states % 16 - 1}"] * (states % 16 > 0)]


def violations_of(code, name: str) -> list[hazards.Violation]:
    instructions, _ = program(code, code.kernels[name])
    return list(hazards.violations(instructions, code.arch))


def found(body: str, arch: str) -> list[hazards.Violation]:
    return violations_of(parse(assemble({"planted": body}, arch, 256, raw=True)), "planted")


@functools.cache
def planted(arch: str):
    """A code object with each rule's pair: with enough wait states, with one too few in one s_nop, and in others."""
    bodies = {}
    for number, (first, second, needed) in enumerate(rules_of(arch).values()):
        between = {
            "enough": nops(needed),
            "short": nops(needed - 1) if needed > 1 else [],
            "others": ["s_mov_b32 s90, 0"] * (needed - 1),
        }
        bodies |= {f"{what}{number}": "\n".join([first, *lines, second]) for what, lines in between.items()}
    return parse(assemble(bodies, arch, 256, raw=True))


@pytest.mark.parametrize("arch, name", [(arch, name) for arch in ARCHS for name in rules_of(arch)])
def test_rule(arch, name):
    rules = rules_of(arch)
    number, needed = list(rules).index(name), rules[name][2]
    assert not violations_of(planted(arch), f"enough{number}")
    for what in ("short", "others") if needed else ():
        (one,) = violations_of(planted(arch), f"{what}{number}")
        assert (one.states, one.hazard.states) == (needed - 1, needed)


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


# What the shipped kernels have no use for: a result that is multiplied again, and one overlapped by another.
SOURCE = r"""
#include <hip/hip_runtime.h>
typedef float Four __attribute__((ext_vector_type(4)));
typedef float Sixteen __attribute__((ext_vector_type(16)));

extern "C" __global__ void small(const long* a, Four* out) {
    const int i = threadIdx.x;
    const long x = a[i], y = a[i + 64];
    Four d = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(x, y, Four{}, 0, 0, 0);
    out[i] = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(__builtin_bit_cast(long, d.xy), y, Four{}, 0, 0, 0);
}
extern "C" __global__ void large(const long* a, Sixteen* out) {
    const int i = threadIdx.x;
    const long x = a[i], y = a[i + 64];
    Sixteen d = __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(x, y, Sixteen{}, 0, 0, 0);
    out[i] = __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(__builtin_bit_cast(long, d.lo.lo.lo), y, d, 0, 0, 0);
}
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_the_compiler_leaves_as_many_between_matrix_instructions(arch, tmp_path):
    """Of both sizes on both chips: no fewer than the rules demand, and no more."""
    code = load(compile_hip(SOURCE, tmp_path), arch)
    for name, passes in (("small", 4), ("large", 8)):
        instructions, _ = program(code, code.kernels[name])
        assert not [str(each) for each in hazards.violations(instructions, arch)]
        tight = {(each.hazard.view, each.hazard.states) for each in hazards.violations(instructions, arch, slack=1)}
        needed = passes + (4 if arch == "gfx950" else 3)
        assert {("A or B", needed), ("vector read", needed)} <= tight


# Of A's and B's type: twice as many passes where either has 8 bits.
SCALED_SOURCE = r"""
#include <hip/hip_runtime.h>
typedef int Words __attribute__((ext_vector_type(8)));
typedef float Four __attribute__((ext_vector_type(4)));
typedef float Sixteen __attribute__((ext_vector_type(16)));
#ifdef __gfx950__
#define MULTIPLY(SHAPE, ...) __builtin_amdgcn_mfma_scale_f32_##SHAPE##_f8f6f4(__VA_ARGS__)
#else
#define MULTIPLY(SHAPE, X, Y, C, ...) C
#endif
#define KERNEL(SHAPE, SUMS, A, B)                                                                               \
    extern "C" __global__ void k##SHAPE##_##A##B(const Words* x, const Words* y, const int* s, SUMS* c) {       \
        const int i = threadIdx.x;                                                                              \
        c[i] = MULTIPLY(SHAPE, x[i], y[i], c[i], A, B, 0, s[i], 0, s[i + 64]);                                  \
    }
#define TYPES(SHAPE, SUMS, A) \
    KERNEL(SHAPE, SUMS, A, 0) KERNEL(SHAPE, SUMS, A, 1) KERNEL(SHAPE, SUMS, A, 2) KERNEL(SHAPE, SUMS, A, 3) \
    KERNEL(SHAPE, SUMS, A, 4)
#define ALL(SHAPE, SUMS) \
    TYPES(SHAPE, SUMS, 0) TYPES(SHAPE, SUMS, 1) TYPES(SHAPE, SUMS, 2) TYPES(SHAPE, SUMS, 3) TYPES(SHAPE, SUMS, 4)
ALL(16x16x128, Four)
ALL(32x32x64, Sixteen)
"""


def test_the_compiler_leaves_as_many_behind_each_pair_of_types(tmp_path):
    code = load(compile_hip(SCALED_SOURCE, tmp_path), "gfx950")
    for shape, passes in (("16x16x128", 4), ("32x32x64", 8)):
        for a, b in itertools.product(range(5), repeat=2):
            instructions, _ = program(code, code.kernels[f"k{shape}_{a}{b}"])
            assert not [str(each) for each in hazards.violations(instructions, "gfx950")]
            tight = {(each.hazard.view, each.hazard.states) for each in hazards.violations(instructions, "gfx950", 1)}
            assert ("vector read", passes * (2 if min(a, b) < 2 else 1) + 4) in tight, (shape, a, b)
