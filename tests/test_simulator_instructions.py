"""Vector instructions against tests/simulator_reference.py, lane by lane, to the bit."""

import math

import numpy as np
import pytest
import simulator_reference as ref
from simulator_cases import CASES, ONLY_GFX950, cases, classified
from simulator_harness import ARCHS, LANES, Snippets, needs_clang, patterns
from simulator_reference import MASK, f16, f32, s32, s64

pytestmark = needs_clang


@pytest.fixture(scope="module", params=ARCHS)
def bench(request):
    arch = request.param
    table = cases(arch)
    return Snippets({name: case[0] for name, case in table.items()}, arch), table


def assert_bits(got: int, expected, what: str) -> None:
    if isinstance(expected, tuple):
        for shift, half in zip((0, 16), expected):
            bits = got >> shift & 0xFFFF
            assert math.isnan(f16(bits)) if half == "nan" else bits == half, f"{what}: {got:#x}"
    elif expected == "nan":
        assert math.isnan(f32(got)) or (got >> 16 == 0 and math.isnan(f16(got))), f"{what}: {got:#x}"
    else:
        assert got == expected, f"{what}: {got:#x}, not {expected:#x}"


@pytest.mark.parametrize("name", [*CASES, *ONLY_GFX950, "cvt_pk_fp8", *(f"cvt_f32_fp8_{i}" for i in range(4))])
def test_against_the_reference(bench, name):
    snippets, table = bench
    if name not in table:
        pytest.skip("a gfx950 instruction")
    _, kinds, reference = table[name]
    for seed in range(4):
        rng = np.random.default_rng(seed)
        inputs = [patterns(kind, rng) for kind in kinds]
        result = snippets.run(name, inputs)[0]
        for lane in range(LANES):
            sources = [int(each[lane]) for each in inputs]
            assert_bits(int(result[lane]), reference(*sources), f"{name} of {[hex(each) for each in sources]}")


RELATIONS = {
    "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "lg": lambda a, b: a < b or a > b, "o": lambda a, b: a == a and b == b,
    "u": lambda a, b: not (a == a and b == b), "nlt": lambda a, b: not a < b, "neq": lambda a, b: not a == b,
    "nle": lambda a, b: not a <= b, "ngt": lambda a, b: not a > b, "nge": lambda a, b: not a >= b,
    "nlg": lambda a, b: not (a < b or a > b), "ne": lambda a, b: a != b,
}  # fmt: skip
COMPARES = {
    **{f"{relation}_f32": (f32, "f32", 1) for relation in RELATIONS if relation != "ne"},
    **{f"{relation}_{kind}": (convert, "int", width) for relation in ("lt", "eq", "le", "gt", "ne", "ge")
       for kind, convert, width in (("u32", int, 1), ("i32", s32, 1), ("i64", s64, 2), ("u64", int, 2))},
    "nlt_f16": (f16, "f16", 1), "ngt_f16": (f16, "f16", 1),
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
def test_compares_write_a_bit_for_each_active_lane(arch):
    active = 0xF0F0FFFF0000FFFF
    body = "s_mov_b64 exec, s[8:9]\n v_cmp_{} s[20:21], {}, {}\n s_mov_b64 exec, -1\n v_mov_b32 v30, s20\n v_mov_b32 v31, s21"
    words = {1: ("v10", "v12"), 2: ("v[10:11]", "v[12:13]")}
    texts = {name: body.format(name, *words[width]) for name, (_, _, width) in COMPARES.items()}
    texts["class_f32"] = body.format("class_f32", "v10", "v12")
    snippets = Snippets(texts, arch)
    for name in texts:
        convert, kind, width = COMPARES.get(name, (None, "f32", 1))
        rng = np.random.default_rng(1)
        inputs = [patterns(kind, rng) for _ in range(4)]
        inputs[2][::3] = inputs[0][::3]
        inputs[3][::2] = inputs[1][::2]
        result = snippets.run(name, inputs, [active & MASK, active >> 32])
        mask = int(result[0, 0]) | int(result[1, 0]) << 32
        for lane in range(LANES):
            values = [int(inputs[i][lane]) | (int(inputs[i + 1][lane]) << 32 if width == 2 else 0) for i in (0, 2)]
            if name == "class_f32":
                holds = classified(*values)
            else:
                holds = RELATIONS[name.split("_")[0]](*map(convert, values))
            assert (mask >> lane & 1) == (holds and active >> lane & 1), (name, lane, values)


@pytest.mark.parametrize("arch", ARCHS)
def test_64_bit_arithmetic_and_carries(arch):
    body = {
        "shift": "v_lshlrev_b64 v[30:31], v14, v[10:11]\n v_lshrrev_b64 v[32:33], v14, v[10:11]\n"
        "v_ashrrev_i64 v[34:35], v14, v[10:11]\n v_lshl_add_u64 v[36:37], v[10:11], 3, v[12:13]",
        "carry": "v_add_co_u32 v30, vcc, v10, v12\n v_addc_co_u32 v31, vcc, v11, v13, vcc\n"
        "v_sub_co_u32 v32, vcc, v10, v12\n v_subb_co_u32 v33, vcc, v11, v13, vcc\n"
        "v_subrev_co_u32_e64 v34, s[20:21], v10, v12\n v_subbrev_co_u32_e64 v35, s[20:21], v11, v13, s[20:21]",
        "mad": "v_mad_u64_u32 v[30:31], s[20:21], v10, v12, v[14:15]\n v_cndmask_b32 v32, 0, 1, s[20:21]\n"
        "v_mad_i64_i32 v[34:35], s[20:21], v10, v12, v[14:15]",
    }
    snippets = Snippets(body, arch)
    rng = np.random.default_rng(2)
    inputs = [patterns("int", rng) for _ in range(6)]
    results = {name: snippets.run(name, inputs) for name in body}
    pair = lambda rows, at, lane: int(rows[at][lane]) | int(rows[at + 1][lane]) << 32  # noqa: E731
    full = (1 << 64) - 1
    for lane in range(LANES):
        a, b, c = (pair(inputs, at, lane) for at in (0, 2, 4))
        count, low, other = int(inputs[4][lane]) & 63, int(inputs[0][lane]), int(inputs[2][lane])
        got = [pair(results["shift"], at, lane) for at in (0, 2, 4, 6)]
        assert got == [a << count & full, a >> count, s64(a) >> count & full, (a << 3) + b & full]
        got = [pair(results["carry"], at, lane) for at in (0, 2, 4)]
        assert got == [a + b & full, a - b & full, b - a & full]
        assert pair(results["mad"], 0, lane) == low * other + c & full
        assert int(results["mad"][2][lane]) == (low * other + c) >> 64
        assert pair(results["mad"], 4, lane) == s32(low) * s32(other) + c & full


@pytest.mark.parametrize("arch", ARCHS)
def test_packed_single_precision(arch):
    body = {
        "plain": "v_pk_fma_f32 v[30:31], v[10:11], v[12:13], v[14:15]\n v_pk_mul_f32 v[32:33], v[10:11], v[12:13]\n"
        "v_pk_add_f32 v[34:35], v[10:11], v[12:13]",
        "chosen": "v_pk_mul_f32 v[30:31], v[10:11], s[8:9] op_sel:[0,1] op_sel_hi:[1,0]\n"
        "v_pk_fma_f32 v[32:33], v[10:11], v[12:13], v[14:15] op_sel_hi:[0,1,1] neg_lo:[0,0,1] neg_hi:[1,0,0]\n"
        "v_pk_mul_f32 v[34:35], v[10:11], 0.5 op_sel_hi:[1,0]\n v_pk_mov_b32 v[36:37], v[10:11], v[12:13] op_sel:[1,0]",
    }
    snippets = Snippets(body, arch)
    rng = np.random.default_rng(3)
    inputs = [patterns("f32", rng) for _ in range(6)]
    scalars = [0x40490FDB, 0xC0000000]
    plain, chosen = snippets.run("plain", inputs), snippets.run("chosen", inputs, scalars)
    for lane in range(LANES):
        a, b, c, d, e, g = (f32(int(each[lane])) for each in inputs)
        s = [f32(each) for each in scalars]
        expected = [
            ref.fma(a, c, e),
            ref.fma(b, d, g),
            ref.multiply(a, c),
            ref.multiply(b, d),
            ref.add(a, c),
            ref.add(b, d),
        ]
        for row, bits in enumerate(expected):
            assert_bits(int(plain[row][lane]), bits, f"row {row}")
        expected = [ref.multiply(a, s[1]), ref.multiply(b, s[0]), ref.fma(a, c, -e), ref.fma(-a, d, g)]
        expected += [ref.multiply(a, 0.5), ref.multiply(b, 0.5), int(inputs[1][lane]), int(inputs[2][lane])]
        for row, bits in enumerate(expected):
            assert_bits(int(chosen[row][lane]), bits, f"chosen row {row}")


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
    for seed in range(20):
        rng = np.random.default_rng(seed)
        inputs = [patterns("f32", rng), patterns("f32", rng)]
        result = snippets.run("divide", inputs)[0]
        with np.errstate(all="ignore"):
            expected = inputs[0].view(np.float32) / inputs[1].view(np.float32)
        nan = np.isnan(expected)
        assert np.isnan(result.view(np.float32)[nan]).all()
        assert (result[~nan] == expected.view(np.uint32)[~nan]).all()
