"""Vector and scalar instructions against tests/simulator_reference.py, lane by lane, to the bit."""

import math

import numpy as np
import pytest
import simulator_reference as ref
from simulator_harness import ARCHS, LANES, Snippets, needs_clang, patterns
from simulator_reference import MASK, f16, f32, s32, s64

pytestmark = needs_clang


def float_result(value: float):
    return "nan" if math.isnan(value) else ref.bits_of(value, "f32")


def f32_unary(function):
    """A reference from a function of floats, its result rounded to float32."""
    return lambda a: float_result(function(f32(a)))


def transcendental(function, flush_result=True):
    def compute(a):
        value = f32(a)
        if math.isnan(value):
            return "nan"
        result = ref.nearest_f32(function(ref.flushed(value)))
        if math.isnan(result):
            return ref.NAN["f32"]
        return ref.bits_of(ref.flushed(result) if flush_result else result, "f32")

    return compute


def reciprocal(a: float) -> float:
    return math.copysign(math.inf, a) if a == 0 else 1 / a


def log2(a: float) -> float:
    return -math.inf if a == 0 else math.nan if a < 0 else math.log2(a) if math.isfinite(a) else a


def exp2(a: float) -> float:
    return math.inf if a > 200 else 0.0 if a < -200 else 2.0**a


def square_root(a: float) -> float:
    return a if a == 0 else math.nan if a < 0 else math.sqrt(a)


def rsq(a: float) -> float:
    return reciprocal(a) if a == 0 else math.nan if a < 0 else 1 / math.sqrt(a)


def to_int(value: float, low: int, high: int) -> int:
    if math.isnan(value):
        return 0
    return (low if value < low else high if value > high else int(value)) & MASK


def ldexp(a: int, b: int):
    value = f32(a)
    if not math.isfinite(value) or value == 0:
        return float_result(value)
    return ref.bits_of(
        math.copysign(
            ref.round_exact(ref.Fraction(value) * ref.Fraction(2) ** max(-400, min(400, s32(b))), "f32"), value
        ),
        "f32",
    )


def bfe_signed(a: int, b: int, c: int) -> int:
    offset, width = b & 31, c & 31
    if width == 0:
        return 0
    width = min(width, 32 - offset)
    field = s32(a) >> offset & (1 << width) - 1
    return (field - (1 << width) if field >> width - 1 else field) & MASK


def classified(a: int, b: int) -> bool:
    exponent, mantissa, negative = a >> 23 & 255, a & 0x7FFFFF, a >> 31
    if exponent == 255 and mantissa:
        return bool(b >> (1 if mantissa >> 22 else 0) & 1)
    kind = 2 if exponent == 255 else 3 if exponent else 4 if mantissa else 5
    return bool(b >> (kind if negative else 11 - kind) & 1)


def halves(function):
    """A reference on halves: of the low halves, the result's high half 0."""
    return lambda *bits: function(*[f16(each) for each in bits])


def packed(function):
    """On both halves; each result an integer or "nan"."""

    def compute(*bits):
        return tuple(function(*[f16(each >> shift) for each in bits]) for shift in (0, 16))

    return compute


def fp8_pair(fnuz):
    return lambda a, b: 0x5A5A0000 | ref.fp8_code(f32(a), fnuz) | ref.fp8_code(f32(b), fnuz) << 8


def bf16(bits: int) -> int:
    value = f32(bits)
    if math.isnan(value):
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def half_bits(bits: int):
    value = f32(bits)
    if math.isnan(value):
        return "nan"
    return ref.bits_of(
        math.copysign(ref.round_exact(ref.Fraction(value), "f16"), value) if math.isfinite(value) else value, "f16"
    )


I1, I2, I3 = ["int"], ["int"] * 2, ["int"] * 3
F1, F2, F3 = ["f32"], ["f32"] * 2, ["f32"] * 3
H2 = ["f16"] * 2

# name: (instruction on v10, v11, v12 to v30, operand patterns, reference)
CASES = {
    "add_u32": ("v_add_u32 v30, v10, v11", I2, lambda a, b: a + b & MASK),
    "sub_u32": ("v_sub_u32 v30, v10, v11", I2, lambda a, b: a - b & MASK),
    "subrev_u32": ("v_subrev_u32 v30, v10, v11", I2, lambda a, b: b - a & MASK),
    "and": ("v_and_b32 v30, v10, v11", I2, lambda a, b: a & b),
    "or": ("v_or_b32 v30, v10, v11", I2, lambda a, b: a | b),
    "xor": ("v_xor_b32 v30, v10, v11", I2, lambda a, b: a ^ b),
    "not": ("v_not_b32 v30, v10", I1, lambda a: ~a & MASK),
    "bfrev": ("v_bfrev_b32 v30, v10", I1, lambda a: int(f"{a:032b}"[::-1], 2)),
    "ffbh": ("v_ffbh_u32 v30, v10", I1, lambda a: 32 - a.bit_length() if a else MASK),
    "ffbl": ("v_ffbl_b32 v30, v10", I1, lambda a: (a & -a).bit_length() - 1 & MASK),
    "bcnt": ("v_bcnt_u32_b32 v30, v10, v11", I2, lambda a, b: a.bit_count() + b & MASK),
    "lshlrev": ("v_lshlrev_b32 v30, v10, v11", I2, lambda a, b: b << (a & 31) & MASK),
    "lshrrev": ("v_lshrrev_b32 v30, v10, v11", I2, lambda a, b: b >> (a & 31)),
    "ashrrev": ("v_ashrrev_i32 v30, v10, v11", I2, lambda a, b: s32(b) >> (a & 31) & MASK),
    "min_i32": ("v_min_i32 v30, v10, v11", I2, lambda a, b: min(s32(a), s32(b)) & MASK),
    "max_u32": ("v_max_u32 v30, v10, v11", I2, max),
    "med3_i32": ("v_med3_i32 v30, v10, v11, v12", I3, lambda *x: sorted(map(s32, x))[1] & MASK),
    "mul_lo": ("v_mul_lo_u32 v30, v10, v11", I2, lambda a, b: a * b & MASK),
    "mul_hi_u": ("v_mul_hi_u32 v30, v10, v11", I2, lambda a, b: a * b >> 32),
    "mul_hi_i": ("v_mul_hi_i32 v30, v10, v11", I2, lambda a, b: s32(a) * s32(b) >> 32 & MASK),
    "mul_u24": ("v_mul_u32_u24 v30, v10, v11", I2, lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) & MASK),
    "mad_i24": (
        "v_mad_i32_i24 v30, v10, v11, v12", I3,
        lambda a, b, c: (s32(a << 8 & MASK) >> 8) * (s32(b << 8 & MASK) >> 8) + c & MASK,
    ),
    "add3": ("v_add3_u32 v30, v10, v11, v12", I3, lambda a, b, c: a + b + c & MASK),
    "add_lshl": ("v_add_lshl_u32 v30, v10, v11, v12", I3, lambda a, b, c: (a + b & MASK) << (c & 31) & MASK),
    "lshl_add": ("v_lshl_add_u32 v30, v10, v11, v12", I3, lambda a, b, c: (a << (b & 31)) + c & MASK),
    "lshl_or": ("v_lshl_or_b32 v30, v10, v11, v12", I3, lambda a, b, c: a << (b & 31) & MASK | c),
    "and_or": ("v_and_or_b32 v30, v10, v11, v12", I3, lambda a, b, c: a & b | c),
    "or3": ("v_or3_b32 v30, v10, v11, v12", I3, lambda a, b, c: a | b | c),
    "xad": ("v_xad_u32 v30, v10, v11, v12", I3, lambda a, b, c: (a ^ b) + c & MASK),
    "bfi": ("v_bfi_b32 v30, v10, v11, v12", I3, lambda a, b, c: a & b | ~a & c & MASK),
    "bfe_u": ("v_bfe_u32 v30, v10, v11, v12", I3, lambda a, b, c: a >> (b & 31) & (1 << (c & 31)) - 1),
    "bfe_i": ("v_bfe_i32 v30, v10, v11, v12", I3, bfe_signed),
    "bfm": ("v_bfm_b32 v30, v10, v11", I2, lambda a, b: ((1 << (a & 31)) - 1) << (b & 31) & MASK),
    "alignbit": ("v_alignbit_b32 v30, v10, v11, v12", I3, lambda a, b, c: (a << 32 | b) >> (c & 31) & MASK),
    "alignbyte": ("v_alignbyte_b32 v30, v10, v11, v12", I3, lambda a, b, c: (a << 32 | b) >> 8 * (c & 3) & MASK),
    "perm": ("v_and_b32 v12, 0x0f0f0f0f, v12\n v_perm_b32 v30, v10, v11, v12", I3,
             lambda a, b, c: ref.permute_bytes(a, b, c & 0x0F0F0F0F)),
    "sad": ("v_sad_u32 v30, v10, v11, v12", I3, lambda a, b, c: abs(a - b) + c & MASK),
    "add_u16": ("v_add_u16 v30, v10, v11", I2, lambda a, b: a + b & 0xFFFF),
    "sub_u16": ("v_sub_u16 v30, v10, v11", I2, lambda a, b: a - b & 0xFFFF),
    "lshrrev_b16": ("v_lshrrev_b16 v30, v10, v11", I2, lambda a, b: (b & 0xFFFF) >> (a & 15)),
    "max_i16": ("v_max_i16 v30, v10, v11", I2,
                lambda a, b: max(s32(a << 16 & MASK) >> 16, s32(b << 16 & MASK) >> 16) & 0xFFFF),
    # Parts of words.
    "sdwa_and": ("v_and_b32_sdwa v30, v10, v11 dst_sel:DWORD src0_sel:WORD_1 src1_sel:BYTE_2", I2,
                 lambda a, b: a >> 16 & b >> 16 & 0xFF),
    "sdwa_add": ("v_add_u32_sdwa v30, sext(v10), v11 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE "
                 "src0_sel:BYTE_3 src1_sel:WORD_1", I2,
                 lambda a, b: 0x5A5A005A | ((s32(a) >> 24) + (b >> 16) & 0xFF) << 8),
    "sdwa_pad": ("v_ashrrev_i16_sdwa v30, v10, v11 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:WORD_1",
                 I2, lambda a, b: (s32(b) >> 16 >> (a & 15) & 0xFFFF) << 16),
    "sdwa_f16": ("v_cvt_f32_f16_sdwa v30, v10 dst_sel:DWORD src0_sel:WORD_1", ["f16"],
                 lambda a: float_result(f16(a >> 16))),
    # Single precision.
    "add_f32": ("v_add_f32 v30, v10, v11", F2, lambda a, b: ref.add(f32(a), f32(b))),
    "sub_f32": ("v_sub_f32 v30, v10, v11", F2, lambda a, b: ref.add(f32(a), -f32(b))),
    "mul_f32": ("v_mul_f32 v30, v10, v11", F2, lambda a, b: ref.multiply(f32(a), f32(b))),
    "mul_f32_modified": ("v_mul_f32_e64 v30, -|v10|, v11", F2, lambda a, b: ref.multiply(-abs(f32(a)), f32(b))),
    "add_f32_clamp": ("v_add_f32_e64 v30, v10, v11 clamp", F2, lambda a, b: _clamped(ref.add(f32(a), f32(b)))),
    "fma_f32": ("v_fma_f32 v30, v10, v11, v12", F3, lambda a, b, c: ref.fma(f32(a), f32(b), f32(c))),
    "fma_f32_negated": ("v_fma_f32 v30, v10, -v11, |v12|", F3, lambda a, b, c: ref.fma(f32(a), -f32(b), abs(f32(c)))),
    "fmac_f32": ("v_mov_b32 v30, v12\n v_fmac_f32 v30, v10, v11", F3, lambda a, b, c: ref.fma(f32(a), f32(b), f32(c))),
    "fmamk_f32": ("v_fmamk_f32 v30, v10, 0x40490fdb, v11", F2, lambda a, b: ref.fma(f32(a), f32(0x40490FDB), f32(b))),
    "fmaak_f32": ("v_fmaak_f32 v30, v10, v11, 0x40490fdb", F2, lambda a, b: ref.fma(f32(a), f32(b), f32(0x40490FDB))),
    "min_f32": ("v_min_f32 v30, v10, v11", F2, ref.minimum),
    "max_f32": ("v_max_f32 v30, v10, v11", F2, ref.maximum),
    "min3_f32": ("v_min3_f32 v30, v10, v11, v12", F3, lambda a, b, c: ref.minimum(ref.minimum(a, b), c)),
    "max3_f32": ("v_max3_f32 v30, v10, v11, v12", F3, lambda a, b, c: ref.maximum(ref.maximum(a, b), c)),
    "med3_f32": ("v_med3_f32 v30, v10, v11, v12", F3, ref.median),
    "exp_f32": ("v_exp_f32 v30, v10", F1, transcendental(exp2)),
    "log_f32": ("v_log_f32 v30, v10", F1, transcendental(log2, flush_result=False)),
    "rcp_f32": ("v_rcp_f32 v30, v10", F1, transcendental(reciprocal)),
    "rcp_iflag_f32": ("v_rcp_iflag_f32 v30, v10", F1, transcendental(reciprocal)),
    "rsq_f32": ("v_rsq_f32 v30, v10", F1, transcendental(rsq)),
    "sqrt_f32": ("v_sqrt_f32 v30, v10", F1, transcendental(square_root)),
    "trunc_f32": ("v_trunc_f32 v30, v10", F1, f32_unary(lambda a: math.copysign(math.trunc(a), a) if math.isfinite(a) else a)),
    "rndne_f32": ("v_rndne_f32 v30, v10", F1, f32_unary(lambda a: math.copysign(round(a), a) if math.isfinite(a) else a)),
    "floor_f32": ("v_floor_f32 v30, v10", F1, f32_unary(lambda a: a if not math.isfinite(a) or a == 0 else float(math.floor(a)))),
    "ldexp_f32": ("v_ldexp_f32 v30, v10, v11", ["f32", "int"], ldexp),
    "cvt_u32_f32": ("v_cvt_u32_f32 v30, v10", F1, lambda a: to_int(f32(a), 0, MASK)),
    "cvt_i32_f32": ("v_cvt_i32_f32 v30, v10", F1, lambda a: to_int(f32(a), -(1 << 31), (1 << 31) - 1)),
    "cvt_f32_u32": ("v_cvt_f32_u32 v30, v10", I1, lambda a: ref.bits_of(ref.round_exact(ref.Fraction(a), "f32"), "f32")),
    "cvt_f32_i32": ("v_cvt_f32_i32 v30, v10", I1, lambda a: ref.bits_of(ref.round_exact(ref.Fraction(s32(a)), "f32"), "f32")),
    "cvt_f32_ubyte2": ("v_cvt_f32_ubyte2 v30, v10", I1, lambda a: ref.bits_of(float(a >> 16 & 255), "f32")),
    "cvt_f16_f32": ("v_cvt_f16_f32 v30, v10", F1, lambda a: half_bits(a)),
    "cvt_f32_f16": ("v_cvt_f32_f16 v30, v10", ["f16"], lambda a: float_result(f16(a))),
    # Half precision.
    "add_f16": ("v_add_f16 v30, v10, v11", H2, halves(lambda a, b: ref.add(a, b, "f16"))),
    "mul_f16": ("v_mul_f16 v30, v10, v11", H2, halves(lambda a, b: ref.multiply(a, b, "f16"))),
    "pk_add_f16": ("v_pk_add_f16 v30, v10, v11", H2, packed(lambda a, b: ref.add(a, b, "f16"))),
    "pk_mul_f16": ("v_pk_mul_f16 v30, v10, v11", H2, packed(lambda a, b: ref.multiply(a, b, "f16"))),
    "pk_fma_f16": ("v_pk_fma_f16 v30, v10, v11, v12", ["f16"] * 3, packed(lambda a, b, c: ref.fma(a, b, c, "f16"))),
    "pk_add_f16_swapped": ("v_pk_add_f16 v30, v10, v11 op_sel:[1,0] op_sel_hi:[0,1] neg_hi:[0,1]", H2,
                           lambda a, b: (ref.add(f16(a >> 16), f16(b), "f16"), ref.add(f16(a), -f16(b >> 16), "f16"))),
    "pack_b32_f16": ("v_pack_b32_f16 v30, v10, v11 op_sel:[1,0,0]", H2, lambda a, b: a >> 16 | (b & 0xFFFF) << 16),
    "fma_mix": ("v_fma_mix_f32 v30, v10, v11, -v12 op_sel:[1,0,0] op_sel_hi:[1,1,0]", ["f16", "f16", "f32"],
                lambda a, b, c: ref.fma(f16(a >> 16), f16(b), -f32(c))),
}  # fmt: skip


def _clamped(bits):
    value = f32(bits) if bits != "nan" else 0.0
    return ref.bits_of(0.0 if math.isnan(value) or value <= 0 else min(value, 1.0), "f32")


ONLY_GFX950 = {
    "cvt_pk_bf16": ("v_cvt_pk_bf16_f32 v30, v10, v11", F2, lambda a, b: bf16(a) | bf16(b) << 16),
    "cvt_pk_f16": ("v_cvt_pk_f16_f32 v30, v10, v11", F2, lambda a, b: (half_bits(a), half_bits(b))),
    "bitop3": ("v_bitop3_b32 v30, v10, v11, v12 bitop3:0x6c", I3,
               lambda a, b, c: sum((0x6C >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))),
    "minimum3": ("v_minimum3_f32 v30, v10, v11, v12", F3,
                 lambda a, b, c: "nan" if any(map(ref.is_nan, (a, b, c))) else ref.minimum(ref.minimum(a, b), c)),
}  # fmt: skip


def cases(arch: str) -> dict:
    found = dict(CASES)
    found["cvt_pk_fp8"] = ("v_cvt_pk_fp8_f32 v30, v10, v11", F2, fp8_pair(arch == "gfx942"))
    for byte in range(4):
        found[f"cvt_f32_fp8_{byte}"] = (
            f"v_cvt_f32_fp8_sdwa v30, v10 src0_sel:BYTE_{byte}", ["bits"],
            lambda a, byte=byte: float_result(ref.fp8_value(a >> 8 * byte & 0xFF, arch == "gfx942")),
        )  # fmt: skip
    return found | (ONLY_GFX950 if arch == "gfx950" else {})


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
