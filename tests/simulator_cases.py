"""Vector instructions with what tests/simulator_reference.py makes of them, a lane at a time."""

import math

import simulator_reference as ref
from simulator_reference import MASK, f16, f32, s32


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
    "cvt_f32_ubyte0": ("v_cvt_f32_ubyte0 v30, v10", I1, lambda a: ref.bits_of(float(a & 255), "f32")),
    "cvt_f32_ubyte1": ("v_cvt_f32_ubyte1 v30, v10", I1, lambda a: ref.bits_of(float(a >> 8 & 255), "f32")),
    "cvt_f32_ubyte3": ("v_cvt_f32_ubyte3 v30, v10", I1, lambda a: ref.bits_of(float(a >> 24), "f32")),
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
