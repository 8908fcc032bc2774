"""Scalar instructions against Python's integers: the result and SCC."""

import random

import pytest
from simulator_harness import ARCHS, Snippets, needs_clang
from simulator_reference import MASK, s32, s64

pytestmark = needs_clang

FULL = (1 << 64) - 1


def overflows(value: int) -> bool:
    return not -(1 << 31) <= value < 1 << 31


def bfe(value: int, control: int, signed: bool, width: int = 32) -> int:
    offset, count = control & width - 1, control >> 16 & 0x7F
    field = value >> offset & (1 << count) - 1
    return field - (1 << count) if signed and count and field >> count - 1 else field


def leading(value: int) -> int:
    same = next((i for i in range(1, 32) if value >> 31 - i & 1 != value >> 31), -1)
    return same


# instruction: on 32-bit a, b and SCC: (result, SCC or None where it stays)
WORDS = {
    "s_add_u32": lambda a, b, c: (a + b, a + b > MASK),
    "s_addc_u32": lambda a, b, c: (a + b + c, a + b + c > MASK),
    "s_sub_u32": lambda a, b, c: (a - b, b > a),
    "s_subb_u32": lambda a, b, c: (a - b - c, b + c > a),
    "s_add_i32": lambda a, b, c: (a + b, overflows(s32(a) + s32(b))),
    "s_sub_i32": lambda a, b, c: (a - b, overflows(s32(a) - s32(b))),
    "s_mul_i32": lambda a, b, c: (a * b, None),
    "s_mul_hi_u32": lambda a, b, c: (a * b >> 32, None),
    "s_mul_hi_i32": lambda a, b, c: (s32(a) * s32(b) >> 32, None),
    "s_min_u32": lambda a, b, c: (min(a, b), a < b),
    "s_max_i32": lambda a, b, c: (max(s32(a), s32(b)), s32(a) >= s32(b)),
    "s_and_b32": lambda a, b, c: (a & b, a & b != 0),
    "s_or_b32": lambda a, b, c: (a | b, a | b != 0),
    "s_xor_b32": lambda a, b, c: (a ^ b, a ^ b != 0),
    "s_andn2_b32": lambda a, b, c: (a & ~b, a & ~b != 0),
    "s_lshl_b32": lambda a, b, c: (a << (b & 31), a << (b & 31) & MASK != 0),
    "s_lshr_b32": lambda a, b, c: (a >> (b & 31), a >> (b & 31) != 0),
    "s_ashr_i32": lambda a, b, c: (s32(a) >> (b & 31), s32(a) >> (b & 31) != 0),
    "s_lshl2_add_u32": lambda a, b, c: ((a << 2) + b, (a << 2) + b > MASK),
    "s_lshl4_add_u32": lambda a, b, c: ((a << 4) + b, (a << 4) + b > MASK),
    "s_bfe_u32": lambda a, b, c: (bfe(a, b, False), bfe(a, b, False) != 0),
    "s_cselect_b32": lambda a, b, c: (a if c else b, None),
    "s_absdiff_i32": lambda a, b, c: (abs(s32(a - b & MASK)), a != b),
    "s_pack_lh_b32_b16": lambda a, b, c: (a & 0xFFFF | b & 0xFFFF0000, None),
}
ONE = {
    "s_brev_b32": lambda a, c: (int(f"{a:032b}"[::-1], 2), None),
    "s_flbit_i32": lambda a, c: (leading(a), None),
    "s_flbit_i32_b32": lambda a, c: (32 - a.bit_length() if a else -1, None),
    "s_ff1_i32_b32": lambda a, c: ((a & -a).bit_length() - 1, None),
    "s_bcnt1_i32_b32": lambda a, c: (a.bit_count(), a != 0),
    "s_sext_i32_i8": lambda a, c: (s32(a << 24 & MASK) >> 24, None),
    "s_not_b32": lambda a, c: (~a, ~a & MASK != 0),
    "s_abs_i32": lambda a, c: (abs(s32(a)), a != 0),
}
# On 64 bits, the second operand as wide as the instruction wants it.
PAIRS = {
    "s_and_b64": (64, lambda a, b: a & b),
    "s_or_b64": (64, lambda a, b: a | b),
    "s_xor_b64": (64, lambda a, b: a ^ b),
    "s_andn2_b64": (64, lambda a, b: a & ~b),
    "s_lshl_b64": (32, lambda a, b: a << (b & 63)),
    "s_lshr_b64": (32, lambda a, b: a >> (b & 63)),
    "s_ashr_i64": (32, lambda a, b: s64(a) >> (b & 63)),
}
COMPARES = {
    "s_cmp_eq_u32": lambda a, b: a == b,
    "s_cmp_lg_u32": lambda a, b: a != b,
    "s_cmp_lt_i32": lambda a, b: s32(a) < s32(b),
    "s_cmp_ge_i32": lambda a, b: s32(a) >= s32(b),
    "s_cmp_ge_u32": lambda a, b: a >= b,
    "s_cmp_gt_i32": lambda a, b: s32(a) > s32(b),
    "s_bitcmp1_b32": lambda a, b: a >> (b & 31) & 1,
    "s_bitcmp0_b32": lambda a, b: not a >> (b & 31) & 1,
}
IMMEDIATES = {
    "s_addk_i32 s20, 0x8001": lambda a: (a - 0x7FFF, overflows(s32(a) - 0x7FFF)),
    "s_mulk_i32 s20, 0xfffd": lambda a: (a * -3, None),
    "s_movk_i32 s20, 0xffff": lambda a: (-1, None),
    "s_cmpk_gt_u32 s8, 0xfff0": lambda a: (a, a > 0xFFF0),
    "s_cmpk_lt_i32 s8, 0xfff0": lambda a: (a, s32(a) < -16),
    "s_cmpk_eq_i32 s8, 7": lambda a: (a, a == 7),
}
SET_SCC = "s_cmp_lg_u32 s10, 0\n"
SHOW = "\n s_cselect_b32 s22, 1, 0\n v_mov_b32 v30, s20\n v_mov_b32 v31, s21\n v_mov_b32 v32, s22"


@pytest.fixture(scope="module", params=ARCHS)
def bench(request):
    texts = {name: f"{SET_SCC}{name} s20, s8, s9" for name in WORDS}
    texts |= {name: f"{SET_SCC}{name} s20, s8" for name in ONE}
    texts |= {
        name: f"{name} s[20:21], s[8:9], {'s[12:13]' if width == 64 else 's12'}" for name, (width, _) in PAIRS.items()
    }
    texts |= {name: f"{name} s8, s9" for name in COMPARES}
    texts |= {f"k{i}": f"{SET_SCC}s_mov_b32 s20, s8\n{line}" for i, line in enumerate(IMMEDIATES)}
    texts["saveexec"] = (
        "s_mov_b64 exec, s[12:13]\n s_and_saveexec_b64 s[20:21], s[8:9]\n s_mov_b64 s[24:25], exec\n s_mov_b64 exec, -1"
    )
    texts = {name: body + SHOW for name, body in texts.items()}
    texts["saveexec"] += "\n v_mov_b32 v33, s24\n v_mov_b32 v34, s25"
    return Snippets(texts, request.param)


def values() -> list[tuple[int, int]]:
    rng = random.Random(5)
    special = [0, 1, 7, 31, 0x7FFFFFFF, 0x80000000, MASK, 0xFFF0, 0x0010_0004]
    return [(a, b) for a in special for b in special] + [(rng.getrandbits(32), rng.getrandbits(32)) for _ in range(20)]


def check(bench, name: str, scalars, expected: int, scc, before: int) -> None:
    result = bench.run(name, scalars=scalars)
    assert int(result[0, 0]) == expected & MASK, (name, [hex(each) for each in scalars])
    assert int(result[2, 0]) == int(before if scc is None else bool(scc)), (name, scalars)


def test_words(bench):
    for index, (a, b) in enumerate(values()):
        c = index & 1
        for name, reference in WORDS.items():
            check(bench, name, [a, b, c], *reference(a, b, c), c)
        for name, reference in ONE.items():
            check(bench, name, [a, b, c], *reference(a, c), c)
        for number, reference in enumerate(IMMEDIATES.values()):
            check(bench, f"k{number}", [a, b, c], *reference(a), c)


def test_compares(bench):
    for a, b in values():
        for name, reference in COMPARES.items():
            assert int(bench.run(name, scalars=[a, b])[2, 0]) == int(bool(reference(a, b))), (name, a, b)


def test_pairs(bench):
    rng = random.Random(6)
    for _ in range(20):
        a, b = rng.getrandbits(64), rng.getrandbits(64)
        scalars = [a & MASK, a >> 32, 0, 0, b & MASK, b >> 32]
        for name, (width, reference) in PAIRS.items():
            expected = reference(a, b if width == 64 else b & MASK) & FULL
            result = bench.run(name, scalars=scalars)
            assert int(result[0, 0]) | int(result[1, 0]) << 32 == expected, name
            assert int(result[2, 0]) == (expected != 0)
        result = bench.run("saveexec", scalars=scalars)
        old, now = (int(result[i, 0]) | int(result[i + 1, 0]) << 32 for i in (0, 3))
        assert (old, now, int(result[2, 0])) == (b, a & b, int(a & b != 0))
