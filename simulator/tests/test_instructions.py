"""Modifiers of vector instructions: the pseudocode on what they choose of the sources; and the division sequence."""

import re

import numpy as np
import pytest

from simulator import UnsupportedError
from simulator.tests.harness import ARCHS, LANES, SEED, Snippets, needs_clang, pair_patterns, patterns
from simulator.tests.pseudocode import Value, assert_same, execute, kind_of

pytestmark = needs_clang

SIGN, HALF_SIGN = 1 << 31, 1 << 15


def swapped(a: int) -> int:
    return a >> 16 | (a & 0xFFFF) << 16


def low(a: int) -> int:
    return a & 0xFFFFFFFF


def twice(a: int) -> int:
    """One word as both of a pair."""
    return low(a) * (1 << 32 | 1)


def reversed_pair(a: int) -> int:
    return a >> 32 | low(a) << 32


def sign_extended_byte(a: int) -> int:
    return (a & 0xFF ^ 0x80) - 0x80 & 0xFFFFFFFF


def clamped(bits: int) -> int:
    """To 0 and 1; NaN gives 0 (DX10_CLAMP)."""
    return 0 if bits >> 31 or bits > 0x7F800000 else min(bits, 0x3F800000)


# instruction, on v10 and v11, v12 and v13, v14 and v15 and s[8:9], to v30 and v31:
# (what the pseudocode gets of these, what becomes of its result and of the old destination)
PLAIN = lambda result, old: result
MODIFIED = {
    "v_mul_f32_e64 v30, -|v10|, v12": (lambda a, b, c, s: (low(a) | SIGN, low(b)), PLAIN),
    "v_fma_f32 v30, v10, -v12, |v14|": (lambda a, b, c, s: (low(a), low(b) ^ SIGN, low(c) & ~SIGN), PLAIN),
    "v_add_f32_e64 v30, v10, v12 clamp": (lambda a, b, c, s: (low(a), low(b)), lambda r, old: clamped(r)),
    "v_mul_f16_e64 v30, -v10, |v12|": (
        lambda a, b, c, s: (low(a) ^ HALF_SIGN, low(b) & ~HALF_SIGN), lambda r, old: r & 0xFFFF,
    ),
    "v_pk_add_f16 v30, v10, v12 op_sel:[1,0] op_sel_hi:[0,1] neg_hi:[0,1]": (
        lambda a, b, c, s: (swapped(low(a)), low(b) ^ SIGN), PLAIN,
    ),
    "v_pk_mul_f16 v30, v10, 2.0": (lambda a, b, c, s: (low(a), 0x4000), PLAIN),
    "v_pk_mul_f16 v30, v10, 2.0 op_sel_hi:[1,0]": (lambda a, b, c, s: (low(a), 0x40004000), PLAIN),
    "v_pk_mul_f16 v30, v10, s8": (lambda a, b, c, s: (low(a), low(s)), PLAIN),
    "v_pack_b32_f16 v30, v10, v12 op_sel:[1,0,0]": (lambda a, b, c, s: (low(a) >> 16, low(b)), PLAIN),
    "v_pk_mul_f32 v[30:31], v[10:11], s[8:9] op_sel:[0,1] op_sel_hi:[1,0]": (
        lambda a, b, c, s: (a, reversed_pair(s)), PLAIN,
    ),
    "v_pk_fma_f32 v[30:31], v[10:11], v[12:13], v[14:15] op_sel_hi:[0,1,1] neg_lo:[0,0,1] neg_hi:[1,0,0]": (
        lambda a, b, c, s: (twice(a) ^ 1 << 63, b, c ^ SIGN), PLAIN,
    ),
    "v_pk_mul_f32 v[30:31], v[10:11], 0.5 op_sel_hi:[1,0]": (lambda a, b, c, s: (a, twice(0x3F000000)), PLAIN),
    "v_pk_add_f32 v[30:31], v[10:11], 0 neg_lo:[1,1] neg_hi:[1,1]": (
        lambda a, b, c, s: (a ^ (SIGN | 1 << 63), SIGN | 1 << 63), PLAIN,
    ),
    "v_and_b32_sdwa v30, v10, v12 dst_sel:DWORD src0_sel:WORD_1 src1_sel:BYTE_2": (
        lambda a, b, c, s: (low(a) >> 16, b >> 16 & 0xFF), PLAIN,
    ),
    "v_add_u32_sdwa v30, sext(v10), v12 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_3 src1_sel:WORD_1": (
        lambda a, b, c, s: (sign_extended_byte(a >> 24), low(b) >> 16),
        lambda r, old: low(old) & ~0xFF00 | (r & 0xFF) << 8,
    ),
    "v_ashrrev_i16_sdwa v30, v10, v12 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:WORD_1": (
        lambda a, b, c, s: (a & 0xFF, low(b) >> 16), lambda r, old: (r & 0xFFFF) << 16,
    ),
    "v_cvt_f32_f16_sdwa v30, v10 dst_sel:DWORD src0_sel:WORD_1": (lambda a, b, c, s: (low(a) >> 16,), PLAIN),
    "v_cvt_f32_f16_e64 v30, |v10|": (lambda a, b, c, s: (a & 0x7FFF,), PLAIN),
    "v_max_i32_sdwa v30, sext(v10), sext(v12) dst_sel:DWORD src0_sel:BYTE_3 src1_sel:BYTE_1": (
        lambda a, b, c, s: (sign_extended_byte(a >> 24), sign_extended_byte(b >> 8)), PLAIN,
    ),
    "v_max_i16_sdwa v30, v10, v12 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:WORD_0": (
        lambda a, b, c, s: (low(a) >> 16, b & 0xFFFF), lambda r, old: low(old) & 0xFFFF | (r & 0xFFFF) << 16,
    ),
    "v_cndmask_b32_e64 v30, -v10, |v12|, s[8:9]": (lambda a, b, c, s: (low(a) ^ SIGN, low(b) & ~SIGN), PLAIN),
    "v_fma_f64 v[30:31], v[10:11], -|v[12:13]|, s[8:9]": (lambda a, b, c, s: (a, b | 1 << 63, s), PLAIN),
    "v_max_f64 v[30:31], -v[10:11], 0.5": (lambda a, b, c, s: (a ^ 1 << 63, 0x3FE << 52), PLAIN),
    "v_fma_mix_f32 v30, -v10, |v12|, -|v14| op_sel:[0,0,1] op_sel_hi:[1,0,1]": (
        lambda a, b, c, s: (low(a) ^ HALF_SIGN, low(b) & ~SIGN, low(c) | SIGN), PLAIN,
    ),
    "v_fma_mix_f32 v30, v10, s8, 1.0": (lambda a, b, c, s: (low(a), low(s), 0x3F800000), PLAIN),
    "v_fma_mixhi_f16 v30, v10, v12, 0 op_sel:[1,0,0] op_sel_hi:[1,1,1]": (
        lambda a, b, c, s: (low(a), low(b), 0), lambda r, old: low(old) & 0xFFFF | r & ~0xFFFF,
    ),
}  # fmt: skip


SELECTIONS = {"OPSEL": "op_sel", "OPSEL_HI": "op_sel_hi"}


def listed(text: str, name: str) -> int:
    """A modifier's list of bits as a number, 0 without it."""
    found = re.search(rf"\b{name}:\[([01,]+)\]", text)
    return int(found[1].replace(",", "")[::-1], 2) if found else 0


def mnemonic_of(text: str) -> str:
    return text.split()[0].removesuffix("_e64").removesuffix("_sdwa")


@pytest.mark.parametrize("arch", ARCHS)
def test_modifiers(arch):
    snippets = Snippets(
        {f"modified{i}": f"v_mov_b32 v30, v20\n v_mov_b32 v31, v21\n {text}" for i, text in enumerate(MODIFIED)}, arch
    )
    rng = np.random.default_rng(SEED)
    for number, (text, (chosen, finish)) in enumerate(MODIFIED.items()):
        name = mnemonic_of(text)
        kind = kind_of(name, 0)
        words = [half for _ in range(3) for half in pair_patterns(kind, rng)] + [patterns("int", rng) for _ in range(6)]
        scalars = [int(half[0]) for half in pair_patterns(kind, rng)]
        result = snippets.run(f"modified{number}", words, scalars)
        width = 64 if "v[30:31]" in text else 32
        pair = lambda at, lane: int(words[at][lane]) | int(words[at + 1][lane]) << 32
        scalar = scalars[0] | scalars[1] << 32
        for lane in range(LANES):
            sources = chosen(*(pair(at, lane) for at in (0, 2, 4)), scalar)
            names = {f"S{i}": Value("b", width, bits) for i, bits in enumerate(sources)}
            names |= {"VCC": Value("u", 64, scalar), "laneId": Value("u", 32, lane), "D0": Value("b", width, 0)}
            names |= {key: Value("b", 4, listed(text, name)) for key, name in SELECTIONS.items()}
            value = execute(name, names)["D0"]
            expected = Value(
                "b", width, finish(value.bits, pair(10, lane)), value.vague if finish is PLAIN else frozenset()
            )
            got = int(result[0][lane]) | (int(result[1][lane]) << 32 if width == 64 else 0)
            if finish is not PLAIN and value.vague and "clamp" not in text:
                continue  # which NaN is not said, nor which half of one
            assert_same(got, expected, f"{text}, lane {lane}")


# instruction: bits, signed, what is not yet cut off at the ends of that type
SATURATING = {
    "v_add_u32_e64": (32, False, lambda a, b: a + b), "v_sub_u32_e64": (32, False, lambda a, b: a - b),
    "v_subrev_u32_e64": (32, False, lambda a, b: b - a), "v_add_i32": (32, True, lambda a, b: a + b),
    "v_sub_i32": (32, True, lambda a, b: a - b), "v_add_u16_e64": (16, False, lambda a, b: a + b),
    "v_sub_u16_e64": (16, False, lambda a, b: a - b),
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
def test_sums_of_integers_stop_at_the_ends_of_their_type(arch):
    snippets = Snippets({name: f"{name} v30, v10, v11 clamp" for name in SATURATING}, arch)
    rng = np.random.default_rng(SEED)
    for name, (bits, signed, compute) in SATURATING.items():
        words = [patterns("int", rng) for _ in range(2)]
        result = snippets.run(name, words)[0]
        mask, sign = (1 << bits) - 1, signed << bits - 1
        least, most = (-sign, sign - 1) if signed else (0, mask)
        stopped = 0
        for lane in range(LANES):
            a, b = (((int(each[lane]) & mask) ^ sign) - sign for each in words)
            exact = compute(a, b)
            stopped += not least <= exact <= most
            assert int(result[lane]) == min(max(exact, least), most) & mask, f"{name} of {a} and {b}"
        assert 0 < stopped < LANES


@pytest.mark.parametrize("arch", ARCHS)
def test_what_has_no_meaning_for_clamp_is_refused(arch):
    sdwa = "v_add_u32_sdwa v30, v10, v12 clamp dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD"
    snippets = Snippets({"part": sdwa, "constant": "v_fma_mix_f32 v30, v10, 1.0, v12 op_sel_hi:[0,1,0]"}, arch)
    for name in ("part", "constant"):
        with pytest.raises(UnsupportedError):
            snippets.run(name)


@pytest.mark.parametrize("arch", ARCHS)
def test_accumulation_registers_hold_what_is_moved_to_them(arch):
    body = "s_mov_b64 exec, s[8:9]\n v_accvgpr_write_b32 a1, v10\n v_accvgpr_mov_b32 a2, a1\n"
    body += "v_accvgpr_write_b32 a1, 7\n v_accvgpr_read_b32 v30, a2\n v_accvgpr_read_b32 v31, a1\n"
    words = np.random.default_rng(SEED).integers(0, 1 << 32, LANES, np.uint32)
    result = Snippets({"moved": body}, arch).run("moved", [words], [0xFFFFFFFF, 0x0000FFFF])
    assert (result[0][:48] == words[:48]).all() and (result[1][:48] == 7).all()
    assert (result[:2, 48:] == 0x5A5A5A5A).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_division_sequence_gives_the_rounded_quotient(arch):
    """What clang makes of x / y: v_div_scale, v_rcp, v_fma, v_div_fmas and v_div_fixup together."""
    body = """
      v_div_scale_f32 v20, s[20:21], v11, v11, v10
      v_div_scale_f32 v21, vcc, v10, v11, v10
      v_rcp_f32 v22, v20
      v_fma_f32 v23, -v20, v22, 1.0
      v_fma_f32 v22, v23, v22, v22
      v_mul_f32 v23, v21, v22
      v_fma_f32 v24, -v20, v23, v21
      v_fma_f32 v23, v24, v22, v23
      v_fma_f32 v20, -v20, v23, v21
      v_div_fmas_f32 v20, v20, v22, v23
      v_div_fixup_f32 v30, v20, v11, v10"""
    snippets = Snippets({"divide": body}, arch)
    rng = np.random.default_rng(SEED)
    for _ in range(20):
        inputs = [patterns("f32", rng), patterns("f32", rng)]
        result = snippets.run("divide", inputs)[0]
        with np.errstate(all="ignore"):
            expected = inputs[0].view(np.float32) / inputs[1].view(np.float32)
        nan = np.isnan(expected)
        assert np.isnan(result.view(np.float32)[nan]).all()
        assert (result[~nan] == expected.view(np.uint32)[~nan]).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_rounding_to_even(arch):
    """v_rndne_f32: ties to even, signs of zero kept, nothing just below a half rounded up."""
    below = float(np.nextafter(np.float32(0.5), np.float32(0)))
    values = {0.5: 0.0, 1.5: 2.0, 2.5: 2.0, -0.5: -0.0, -2.5: -2.0, below: 0.0, -below: -0.0, 8388607.5: 8388608.0}
    values |= {0.25: 0.0, -3.75: -4.0, np.inf: np.inf, -np.inf: -np.inf, 3e38: 3e38, -0.0: -0.0}
    snippets = Snippets({"round": "v_rndne_f32 v30, v10"}, arch)
    for value, wanted in values.items():
        words = np.array([value], np.float32).view(np.uint32)
        assert snippets.run("round", words[:, None])[0, 0] == np.array([wanted], np.float32).view(np.uint32)[0], value


# (low, high) of v_cvt_pk_fp8_f32: the two bytes by the formats' definitions, and with MODE.FP16_OVFL, which makes the
# largest number (240 is 0x7f on gfx942, 448 is 0x7e on gfx950) of all that lies beyond, infinities too.
BEYOND = {
    "gfx942": [
        (1e9, -1e9, 0x8080, 0xFF7F), (np.inf, -np.inf, 0x8080, 0xFF7F), (250.0, -1.0, 0xC080, 0xC07F),
        (np.nan, 240.0, 0x7F80, 0x7F80),
    ],
    "gfx950": [
        (1e9, -1e9, 0xFF7F, 0xFE7E), (np.inf, -np.inf, 0xFF7F, 0xFE7E), (465.0, -1.0, 0xB87F, 0xB87E),
        (np.nan, 448.0, 0x7E7F, 0x7E7F),
    ],
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
def test_fp8_beyond_its_range(arch):
    convert = "v_cvt_pk_fp8_f32 {}, v10, v11\n"
    text = convert.format("v30") + "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n" + convert.format("v31")
    text += "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 0\n" + convert.format("v32")
    snippets = Snippets({"beyond": text}, arch)
    for low_source, high_source, plain, limited in BEYOND[arch]:
        words = np.array([low_source, high_source], np.float32).view(np.uint32)
        result = snippets.run("beyond", words[:, None])[:3, 0] & 0xFFFF
        assert [hex(int(each)) for each in result] == [hex(plain), hex(limited), hex(plain)], (low_source, high_source)
