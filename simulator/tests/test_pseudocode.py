"""Every scalar, vector and packed instruction of the simulator against AMD's own pseudocode, executed, to the bit.

Matrix instructions are in test_matrix.py, memory in test_memory.py.
"""

import functools
import math
import re
import zlib

import numpy as np
import pytest
import torch

from problems.fp8_by_definition import decode_table, encode_one
from simulator.isa import packed, scalar, scalar_tables, vector, vector_tables
from simulator.tests.harness import ARCHS, LANES, SEED, Snippets, needs_clang, pair_patterns, patterns
from simulator.tests.pseudocode import Value, assert_same, decode, execute, kind_of, of, pseudocode

pytestmark = needs_clang

# What has no pseudocode to execute, or none that can be held to the bit, and what tests it instead.
ELSEWHERE = {
    **dict.fromkeys(
        ["v_div_scale_f32", "v_div_fmas_f32", "v_div_fixup_f32"],
        "the pseudocode scales back by 2**32 what it scaled by 2**64, and has names for what it does not say: "
        "test_instructions.py has the quotient that they give together",
    ),
    **dict.fromkeys(
        ["v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"],
        "the manual has no text of them: test_instructions.py",
    ),
    "v_rndne_f32": "the pseudocode adds 0.5 in float32, which rounds up what is just below a half",
    **dict.fromkeys(
        ["s_barrier", "s_sleep", "s_endpgm", "s_setreg_imm32_b32", "s_getpc_b64", "s_nop", "s_setprio"],
        "of the wave's course, not of its registers: test_memory.py, test_faults.py",
    ),
}
# Within 1 ulp, denormals counting as 0, says the manual; the pseudocode names the function alone.
APPROXIMATE = {f"v_{name}_f32" for name in ("exp", "log", "rcp", "rcp_iflag", "rsq", "sqrt")}
COMPARES = [
    name
    for kind in ("f64", "f32", "f16", "u32", "i32", "u64", "i64")
    for relation in vector_tables.RELATIONS
    if pseudocode(name := f"v_cmp_{relation}_{kind}") and name not in ("v_cmp_class_f16", "v_cmp_class_f64")
]
VECTOR = {*vector_tables.OPERATIONS, *vector.SPECIAL, *COMPARES, "v_cmpx_lt_f32", "v_cmpx_ne_u32"}
PACKED = {*packed.HANDLERS}
MIXED = {name for name in PACKED if name.startswith("v_fma_mix")}
SCALAR = {*scalar.HANDLERS} - {*scalar_tables.BRANCHES}
LITERAL = 0x40490FDB
TABLE_OF_BITS = 0x6C  # v_bitop3's
MIXES = ((0, 0), (0, 7), (7, 7), (5, 3))  # op_sel and op_sel_hi of v_fma_mix
IMMEDIATES = (0x7, 0x7FFF, 0x8001, 0xFFF0)  # of SOPK
SHOW = "\n v_mov_b32 v32, vcc_lo\n v_mov_b32 v33, vcc_hi"


@functools.cache
def widths(name: str) -> tuple[list[int], int]:
    """(registers of each source, of the destination), as the pseudocode has them."""
    text = pseudocode(name)
    if name == "v_pk_mov_b32":  # it computes its slices
        return [2, 2], 2

    def registers(operand: str, found: str) -> int:
        bits = [int(each) for each in re.findall(rf"\b{operand}\.[a-z]+(\d+)", found)]
        bits += [int(each) + 1 for each in re.findall(rf"\b{operand}(?:\.\w+)?\[(\d+) :", found)]
        return 2 if max(bits, default=32) > 32 else 1

    count = 1 + max(int(each) for each in re.findall(r"\bS(\d)\b", text))
    # What a destination is read as does not count: S_BCNT1_I32_B64 compares D0.u64 with 0.
    written = "\n".join(re.findall(r"(\bD0\S*(?: : \d+\])?(?:\.\w+)?\}?) (?:\}|\+?=(?!=))", text.replace(" }", "}")))
    return [registers(f"S{i}", text) for i in range(count)], registers("D0", written.replace("}", " "))


def register(prefix: str, first: int, count: int) -> str:
    return f"{prefix}{first}" if count == 1 else f"{prefix}[{first}:{first + 1}]"


def selected(bits: int) -> str:
    return str([bits >> i & 1 for i in range(3)]).replace(" ", "")


def kinds_of(name: str, variant: int) -> list[str]:
    """Which patterns to try as each source."""
    if name in MIXED:
        return ["f16" if MIXES[variant][1] >> i & 1 else "f32" for i in range(3)]
    return [kind_of(name, i) for i in range(len(widths(name)[0]))]


# --- Vector instructions: sources in v10, v12, v14, the old destination in v20, VCC in s[8:9], EXEC in s[10:11] ---


def vector_text(name: str, half: int = 0) -> str:
    counts, destination = widths(name)
    sources = [register("v", 10 + 2 * i, count) for i, count in enumerate(counts)]
    target = register("v", 30, destination)
    if name.startswith("v_cmp"):
        target = "vcc"
    elif "_co_" in name or name.startswith(("v_mad_u64", "v_mad_i64")):
        target += ", vcc"
    if name.startswith(("v_addc", "v_subb", "v_cndmask")):
        sources.append("vcc")
    if name == "v_fmamk_f32":
        sources.insert(1, hex(LITERAL))
    if name == "v_fmaak_f32":
        sources.append(hex(LITERAL))
    more = {
        **dict.fromkeys(["v_bitop3_b16", "v_bitop3_b32"], f"bitop3:{TABLE_OF_BITS:#x}"),
        "v_pk_mov_b32": f"op_sel:[{half},{1 - half}]",
        "v_cvt_pk_fp8_f32": f"op_sel:[0,0,{half}]",
        **dict.fromkeys(MIXED, f"op_sel:{selected(MIXES[half][0])} op_sel_hi:{selected(MIXES[half][1])}"),
    }.get(name, "")  # fmt: skip
    if name == "v_cvt_f32_fp8":
        name, more = "v_cvt_f32_fp8_sdwa", f"src0_sel:BYTE_{half}"
    if name == "v_cvt_pk_f32_fp8":
        name, more = "v_cvt_pk_f32_fp8_sdwa", f"src0_sel:WORD_{half}"
    return (
        "v_mov_b32 v30, v20\n v_mov_b32 v31, v21\n s_mov_b64 vcc, s[8:9]\n s_mov_b64 exec, s[10:11]\n"
        f"{name} {target}, {', '.join(sources)} {more}\n s_mov_b64 s[20:21], exec\n s_mov_b64 exec, -1{SHOW}\n"
        "v_mov_b32 v34, s20\n v_mov_b32 v35, s21\n v_mov_b32 v36, v10"
    )


def vector_cases(arch: str) -> dict[str, tuple[str, int]]:
    """(mnemonic, variant) by the snippet's name."""
    lane_accesses = {"v_readlane_b32", "v_writelane_b32", "v_readfirstlane_b32"}
    names = {name for name in VECTOR | PACKED if name not in ELSEWHERE and name not in lane_accesses}
    names -= vector_tables.ONLY_GFX950 if arch == "gfx942" else set()
    variants = {"v_cvt_f32_fp8": 4, **dict.fromkeys(MIXED, len(MIXES))}
    variants |= dict.fromkeys(["v_cvt_pk_f32_fp8", "v_cvt_pk_fp8_f32", "v_pk_mov_b32"], 2)
    return {f"{name}_{i}": (name, i) for name in sorted(names) for i in range(variants.get(name, 1))}


def fp8_functions(arch: str) -> dict:
    """What the pseudocode only names, from the formats' definitions."""
    dtype = torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn
    table = decode_table(dtype)
    largest, nan = max(v for v in table if not math.isnan(v)), 0x80 if arch == "gfx942" else 0x7F
    # Half a step (16 of the largest numbers' 32, 8 of 16) above the largest number; the tie goes to an even code.
    edge = 464.0 if arch == "gfx950" else 248.0

    def to_fp8(value: Value) -> Value:
        number, sign = value.number, value.bits >> 31 << 7
        over = math.isnan(number) or abs(number) > edge or (abs(number) == edge and arch == "gfx942")
        code = nan if over else encode_one(min(abs(number), largest), dtype)
        return Value("b", 8, code if arch == "gfx942" and code in (0, nan) else code | sign)

    def to_f32(code: Value) -> Value:
        bits = np.float32(table[code.bits]).view(np.uint32)
        nan_at = frozenset({(0, 32)}) if math.isnan(table[code.bits]) else frozenset()
        return Value("f", 32, int(bits), nan_at)

    return {"f32_to_fp8": to_fp8, "fp8_to_f32": to_f32}


def lane_names(arch: str, name: str, variant: int, lane: int, words, vcc: int) -> dict:
    """What the pseudocode of one lane may name."""
    counts, destination = widths(name)
    pair = [int(words[i][lane]) | int(words[i + 1][lane]) << 32 for i in range(0, 12, 2)]
    sources = {f"S{i}": Value("b", 32 * count, pair[i]) for i, count in enumerate(counts)}
    old = pair[5] & (1 << 32 * destination) - 1
    # v_pk_mov's low half comes from source 0, its high one from source 1.
    chosen = {"v_pk_mov_b32": variant | (1 - variant) << 1, "v_cvt_pk_fp8_f32": variant << 3}.get(name, 0)
    mix = MIXES[variant] if name in MIXED else (chosen, 0)
    registers = [[None] for _ in range(LANES)]
    registers[lane][0] = Value("b", 32, old)
    return {
        **sources, **fp8_functions(arch), "D0": Value("b", 32 * destination, old), "D1": Value("b", 1, 0),
        "VCC": Value("u", 64, vcc), "EXEC": Value("u", 64, 0), "laneId": Value("u", 32, lane),
        "SIMM32": Value("b", 32, LITERAL),
        "OPSEL": Value("b", 4, mix[0]), "OPSEL_HI": Value("b", 4, mix[1]), "VGPR": registers, "VDST": Value("u", 32, 0),
        "OMOD": Value("b", 2, TABLE_OF_BITS >> 6), "ABS": Value("b", 3, TABLE_OF_BITS >> 3),
        "NEG": Value("b", 3, TABLE_OF_BITS),
        "SDWA_SRC0_SEL": Value("b", 3, variant), **{f"BYTE{i}": Value("b", 3, i) for i in range(4)},
        "WORD1": Value("b", 2, 1),
    }  # fmt: skip


def flushed(bits: int) -> int:
    return bits & 0x80000000 if not bits & 0x7F800000 else bits


def ordered(bits: int) -> int:
    """Neighbouring floats as neighbouring integers."""
    return -(bits & 0x7FFFFFFF) if bits >> 31 else bits


def assert_within_an_ulp(got: int, expected: Value, what: str) -> None:
    if expected.vague:
        return assert_same(got, expected, what)
    wanted = expected.bits
    near = abs(ordered(got) - ordered(wanted)) <= 1 or abs(ordered(got) - ordered(flushed(wanted))) <= 1
    assert near, f"{what}: {got:#x}, not {wanted:#x}"


def seeded(name: str) -> np.random.Generator:
    return np.random.default_rng(SEED ^ zlib.crc32(name.encode()))


@functools.cache
def vector_snippets(arch: str) -> Snippets:
    return Snippets({key: vector_text(*case) for key, case in vector_cases(arch).items()}, arch)


@pytest.mark.parametrize("arch, key", [(arch, key) for arch in ARCHS for key in vector_cases(arch)])
def test_a_vector_instruction(arch, key):
    name, variant = vector_cases(arch)[key]
    rng = seeded(key)
    kinds = kinds_of(name, variant)
    random, special = random_words(kinds, rng), special_words(kinds, rng)
    if "class" in name:  # all classes but one: of the NaNs' two, of the numbers' eight
        lanes = np.arange(LANES, dtype=np.uint32)
        left_out = np.where(np.isnan(special[0].view(np.float32)), lanes // 8 % 2, lanes // 8 + 2)
        special[2] = np.uint32(0x3FF) ^ np.uint32(1) << left_out.astype(np.uint32)
    check_vector(arch, key, random, int(rng.integers(0, 1 << 63)), rng)
    check_vector(arch, key, special, (1 << 64) - 1, rng)


def random_words(kinds: list[str], rng: np.random.Generator) -> list[np.ndarray]:
    """What v10 to v21 hold: two registers a source, and the old destination at the end."""
    kinds = kinds + kinds[:1] * (6 - len(kinds))
    words = [half for kind in kinds for half in pair_patterns(kind, rng)]
    # Comparisons want equal sources too.
    if kinds[0] == kinds[1]:
        words[2][::3], words[3][::2] = words[0][::3], words[1][::2]
    return words


# Zeros, signalling and quiet NaN, infinities, the least denormal, one; of halves one in each half.
SPECIAL = {
    "f32": [0x00000000, 0x80000000, 0x7F800001, 0x7FC00001, 0x7F800000, 0xFF800000, 0x00000001, 0x3F800000],
    "f16": [0x80000000, 0x00008000, 0x7C017E01, 0x7E017C00, 0x7C00FC00, 0xFC000001, 0x00013C00, 0x3C007C01],
    "f64": [0, 1 << 63, 0x7FF << 52 | 1, 0x7FF8 << 48 | 1, 0x7FF << 52, 0xFFF << 52, 1, 0x3FF << 52],
    "int": [0, 1, 5, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
}


def special_words(kinds: list[str], rng: np.random.Generator) -> list[np.ndarray]:
    """Every special value of the first source with every one of the second, and all of the third."""
    words, lanes = random_words(kinds, rng), np.arange(LANES)
    for i, (kind, index) in enumerate(zip(kinds, (lanes % 8, lanes // 8, (lanes + lanes // 8) % 8))):
        values = np.array(SPECIAL[kind], np.uint64)[index]
        words[2 * i] = values.astype(np.uint32)
        words[2 * i + 1] = (values >> np.uint64(32)).astype(np.uint32) if kind == "f64" else words[2 * i]
    return words


def check_vector(arch: str, key: str, words: list[np.ndarray], active: int, rng: np.random.Generator) -> None:
    snippets, (name, variant) = vector_snippets(arch), vector_cases(arch)[key]
    vcc = int(rng.integers(0, 1 << 63))
    scalars = [vcc & 0xFFFFFFFF, vcc >> 32, active & 0xFFFFFFFF, active >> 32]
    result = snippets.run(key, words, scalars)
    writes_lanes = name.startswith("v_cmp")
    text = pseudocode(name)
    writes_vcc = "VCC.u64[laneId] =" in text or re.search(r"\bD1\b", text) or writes_lanes
    masks = {"VCC": 0 if writes_vcc else vcc}
    for lane in range(LANES):
        if not active >> lane & 1:
            assert result[0][lane] == words[10][lane] and result[1][lane] == words[11][lane], "an inactive lane"
            continue
        names = lane_names(arch, name, variant, lane, words, vcc)
        if name in APPROXIMATE:
            names["S0"] = Value("f", 32, flushed(names["S0"].bits))
        if writes_lanes:
            names["D0"] = Value("u", 64, 0)
        after = execute(name, names)
        what = f"{key}, lane {lane}, of {[hex(int(each[lane])) for each in words[:6]]}"
        if writes_lanes:
            masks["VCC"] |= after["D0"].bits
            continue
        if name.startswith(("v_mad_u64", "v_mad_i64")):
            masks["VCC"] |= after["D1"].bits << lane
        elif masks["VCC"] != vcc:
            masks["VCC"] |= after["VCC"].bits & 1 << lane
        source = after["S0"].part(0, 32).bits  # v_swap changes it
        assert name in APPROXIMATE or int(result[6][lane]) == source, f"{what}: the source"
        expected = after["VGPR"][lane][0] if "VGPR" in pseudocode(name) else after["D0"]
        got = int(result[0][lane]) | (int(result[1][lane]) << 32 if widths(name)[1] == 2 else 0)
        if re.search(r"\bD0\.[bfui]16 =", pseudocode(name)):
            # The pseudocode says nothing of the other half; GFX9 clears it (LLVM: zeroesHigh16BitsOfDest).
            # Of v_bitop3_b16 LLVM says nothing: that it is cleared too is assumed.
            expected = expected.part(0, 16)
        (assert_within_an_ulp if name in APPROXIMATE else assert_same)(got, expected, what)
    assert int(result[2][0]) | int(result[3][0]) << 32 == masks["VCC"], f"{key}: VCC"
    exec_after = masks["VCC"] if name.startswith("v_cmpx") else active
    assert int(result[4][0]) | int(result[5][0]) << 32 == exec_after, f"{key}: EXEC"


LANE_ACCESSES = {
    "v_readlane_b32": "v_readlane_b32 s20, v10, s12\n s_mov_b64 exec, -1\n v_mov_b32 v30, s20",
    "v_readfirstlane_b32": "v_readfirstlane_b32 s20, v10\n s_mov_b64 exec, -1\n v_mov_b32 v30, s20",
    "v_writelane_b32": "v_mov_b32 v30, v14\n s_mov_b32 m0, s12\n v_writelane_b32 v30, s13, m0",
    "ds_bpermute_b32": "v_mov_b32 v30, v14\n ds_bpermute_b32 v30, v10, v11 offset:8\n s_waitcnt lgkmcnt(0)",
}


@pytest.mark.parametrize("arch", ARCHS)
def test_accesses_to_other_lanes(arch):
    snippets = Snippets({name: f"s_mov_b64 exec, s[10:11]\n {text}" for name, text in LANE_ACCESSES.items()}, arch)
    rng = seeded("lanes")
    for name in LANE_ACCESSES:
        for active in (int(rng.integers(1, 1 << 63)), 1 << 40, 0):
            words = [patterns("int", rng) for _ in range(6)]
            if name == "v_writelane_b32":
                active = (1 << 64) - 1  # so that v30 begins as v14 in every lane
            lane, value = int(rng.integers(1 << 32)), int(rng.integers(1 << 32))
            result = snippets.run(name, words, [0, 0, active & 0xFFFFFFFF, active >> 32, lane, value])[0]
            registers = [[Value("b", 32, int(words[i][at])) for i in (0, 1, 4)] for at in range(LANES)]
            index = {"ADDR": 0, "SRC0": 0, "DATA0": 1, "VDST": 2}
            after = execute(name, {
                "VGPR": registers, **{key: Value("u", 32, at) for key, at in index.items()},
                "OFFSET": Value("u", 16, 8), "EXEC": Value("u", 64, active), "S1": Value("b", 32, lane),
                "S0": Value("b", 32, value), "D0": Value("b", 32, 0),
            })  # fmt: skip
            reads = name.startswith("v_read")
            for at in range(LANES):
                if name == "ds_bpermute_b32" and not active >> at & 1:
                    continue
                expected = of(after["D0"] if reads else registers[at][2])
                assert int(result[at]) == expected.bits, (name, at)


# --- Scalar instructions: a loop over the lanes, each of which holds one set of operands ---


def scalar_cases() -> dict[str, tuple[str, int]]:
    names = sorted(name for name in SCALAR if name not in ELSEWHERE)
    constants = {name: IMMEDIATES for name in names if is_sopk(name)}
    return {f"{name}_{i}": (name, value) for name in names for i, value in enumerate(constants.get(name, (0,)))}


def is_sopk(name: str) -> bool:
    return name.startswith("s_cmpk_") or name in ("s_movk_i32", "s_addk_i32", "s_mulk_i32")


def scalar_text(key: str, name: str, immediate: int) -> str:
    counts, destination = widths(name)
    sources = [register("s", 8 + 2 * i, count) for i, count in enumerate(counts)]
    if is_sopk(name):
        sources[-1] = hex(immediate)
    if "D0" in pseudocode(name):
        sources.insert(0, register("s", 20, destination))
    reads = "\n".join(f"v_readlane_b32 s{target}, v{source}, s30" for target, source in SCALAR_OPERANDS.items())
    writes = "\n".join(f"v_writelane_b32 v{30 + i}, s{source}, m0" for i, source in enumerate((20, 21, 22, 24, 25)))
    return f"""
        s_mov_b32 s30, 0
      {key}_loop:
        {reads}
        s_cmp_lg_u32 s12, 0
        s_mov_b64 exec, s[26:27]
        {name} {", ".join(sources)}
        s_cselect_b32 s22, 1, 0
        s_mov_b64 s[24:25], exec
        s_mov_b32 m0, s30
        {writes}
        s_add_u32 s30, s30, 1
        s_cmp_lt_u32 s30, 64
        s_cbranch_scc1 {key}_loop
        s_mov_b64 exec, -1"""


# s8 to s11 the sources, s12 SCC, s20 and s21 the destination, s26 and s27 EXEC; from v10 on.
SCALAR_OPERANDS = dict(zip((8, 9, 10, 11, 12, 20, 21, 26, 27), range(10, 19)))


@pytest.fixture(scope="module", params=ARCHS)
def scalars(request):
    return Snippets({key: scalar_text(key, *case) for key, case in scalar_cases().items()}, request.param)


@pytest.mark.parametrize("key", scalar_cases())
def test_a_scalar_instruction(scalars, key):
    name, immediate = scalar_cases()[key]
    rng = seeded(key)
    words = [patterns("int", rng) for _ in SCALAR_OPERANDS]
    words[2][::4], words[3][::4] = words[0][::4], words[1][::4]
    words[2][1::8] = 0x100000 + words[2][1::8] % 64  # fields of S_BFE
    words[4] &= 1
    if is_sopk(name):
        words[0][::4] = immediate
    result = scalars.run(key, words)
    counts, destination = widths(name)
    for lane in range(LANES):
        s0, s1, d0, active = (int(words[i][lane]) | int(words[i + 1][lane]) << 32 for i in (0, 2, 5, 7))
        pairs = [s0, s1]
        if is_sopk(name):
            pairs[len(counts) - 1] = immediate
        after = execute(name, {
            **{f"S{i}": Value("b", 32 * count, pair) for i, (count, pair) in enumerate(zip(counts, pairs))},
            "D0": Value("b", 32 * destination, d0), "SCC": Value("u", 1, int(words[4][lane])),
            "EXEC": Value("u", 64, active), "PC": Value("i", 64, 0), "SIMM16": Value("i", 16, 1),
        })  # fmt: skip
        what = f"{key} of {s0:#x}, {s1:#x}, SCC {words[4][lane]}"
        if "D0" in pseudocode(name):
            got = int(result[0][lane]) | (int(result[1][lane]) << 32 if destination == 2 else 0)
            assert_same(got, after["D0"].part(0, 32 * destination), what)
        assert bool(result[2][lane]) == bool(after["SCC"]), f"{what}: SCC"
        assert int(result[3][lane]) | int(result[4][lane]) << 32 == after["EXEC"].bits, f"{what}: EXEC"


@pytest.mark.parametrize("arch", ARCHS)
def test_branches(arch):
    """SCC, VCC and EXEC of every kind; taken or not as the pseudocode's program counter says."""
    text = (
        "s_mov_b64 vcc, s[8:9]\n s_cmp_lg_u32 s12, 0\n s_mov_b32 s20, 1\n s_mov_b64 exec, s[10:11]\n"
        "{0} {0}_over\n s_mov_b32 s20, 0\n{0}_over:\n s_mov_b64 exec, -1\n v_mov_b32 v30, s20"
    )
    snippets = Snippets({name: text.format(name) for name in scalar_tables.BRANCHES}, arch)
    for name in scalar_tables.BRANCHES:
        for vcc in (0, 1, 1 << 32, 1 << 63):
            for active in (0, 1, 1 << 63):
                for scc in (0, 1):
                    words = [vcc & 0xFFFFFFFF, vcc >> 32, active & 0xFFFFFFFF, active >> 32, scc]
                    after = execute(name, {
                        "PC": Value("i", 64, 0), "SIMM16": Value("b", 16, 1), "SCC": Value("u", 1, scc),
                        "VCCZ": Value("u", 1, vcc == 0), "EXECZ": Value("u", 1, active == 0),
                    })  # fmt: skip
                    taken = after["PC"].number == 8
                    assert int(snippets.run(name, scalars=words)[0, 0]) == taken, (name, vcc, active, scc)


def test_every_instruction_is_covered():
    """By executed pseudocode, unless ELSEWHERE says why not."""
    known = {*VECTOR, *PACKED, *SCALAR, *scalar_tables.BRANCHES, *LANE_ACCESSES}
    assert not sorted(name for name in known if not pseudocode(name) and name not in ELSEWHERE)
    assert not sorted(name for name in ELSEWHERE if name not in known)


def test_what_the_simulator_chooses():
    """A NaN made from numbers is 0x7fc00000 (0x7e00 of halves): the pseudocode leaves its bits open."""
    text = (
        "v_sub_f32 v30, v10, v10\n v_mul_f32 v31, v10, v11\n v_fma_f32 v32, v10, v11, v10\n"
        "v_pk_mul_f16 v33, v12, v11\n v_sqrt_f32 v34, v13"
    )
    infinity, half_infinities, minus_one = 0x7F800000, 0x7C00FC00, 0xBF800000
    result = Snippets({"made": text}, "gfx942").run("made", [infinity, 0, half_infinities, minus_one])[:, 5]
    assert [hex(int(each)) for each in result[:5]] == ["0x7fc00000"] * 3 + ["0x7e007e00", "0x7fc00000"]


def test_decoding_is_right():
    """The interpreter's own floats, by hand: 1.5 * 2**-24 is the half 0x0002's lower tie, and so on."""
    assert [decode(bits, "f16") for bits in (0x0001, 0x3C01, 0xFBFF)] == [2.0**-24, 1 + 2.0**-10, -65504.0]
    assert [decode(bits, "f32") for bits in (0x1, 0x3F800001, 0xFF7FFFFF)] == [
        2.0**-149,
        1 + 2.0**-23,
        -(2 - 2.0**-23) * 2.0**127,
    ]
