"""VOP1, VOP2, VOP3 and VOPC: vector arithmetic, mostly from tables of (result type, source types, function)."""

import numpy as np

from . import conversions as convert
from . import floats
from .faults import UnsupportedError
from .operands import Instruction
from .wave import LANES, VCC, lanes_of, mask_of

U32, I32, U64, I64 = np.uint32, np.int32, np.uint64, np.int64
LANE = np.arange(LANES)


def _shift(count, bits: int, dtype):
    return (count & dtype(bits - 1)).astype(dtype)


def _bfe(value, offset, width):
    offset, width = offset & U32(31), width & U32(31)
    if value.dtype == U32:
        return value >> offset & ((U32(1) << width) - U32(1))
    field = (value.astype(I64) >> offset.astype(I64)) & ((I64(1) << width.astype(I64)) - I64(1))
    sign = (I64(1) << width.astype(I64)) >> I64(1)
    return ((field ^ sign) - sign).astype(I32)


def _bfe_signed(value, offset, width):
    # Where the field passes bit 31 it holds fewer bits than its width, and keeps the sign of bit 31.
    count = np.minimum(width & U32(31), U32(32) - (offset & U32(31)))
    return np.where(width & U32(31) == 0, I32(0), _bfe(value, offset, count))


def _perm(a, b, select):
    data = np.concatenate([b.view(np.uint8).reshape(LANES, 4), a.view(np.uint8).reshape(LANES, 4)], axis=1)
    chosen = select.view(np.uint8).reshape(LANES, 4)
    result = data[LANE[:, None], chosen & 7]
    if (chosen > 7).any():
        sign_of = np.clip(chosen.astype(int) - 8, 0, 3) * 2 + 1
        signs = np.where(data[LANE[:, None], sign_of] >> 7, 0xFF, 0)
        result = np.where(chosen > 12, 0xFF, np.where(chosen == 12, 0, np.where(chosen > 7, signs, result)))
    return np.ascontiguousarray(result.astype(np.uint8)).view(U32)[:, 0]


def _mad64(a, b, c):
    return a.astype(c.dtype) * b.astype(c.dtype) + c


def _high(a, b):
    wide = U64 if a.dtype == U32 else I64
    return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)


def _low24(a):
    return a & U32(0xFFFFFF) if a.dtype == U32 else a << I32(8) >> I32(8)


def _mul24(a, b):
    return _low24(a) * _low24(b)


def _mbcnt(half: int):
    below = np.array([(1 << max(0, min(32, lane - 32 * half))) - 1 for lane in range(LANES)], U32)
    return lambda mask, base: base + np.bitwise_count(mask & below)


def _sad(a, b, c):
    return c + np.where(a > b, a - b, b - a)


def _first_bit_low(a):
    lowest = a & (~a + U32(1))
    return np.where(a == 0, U32(0xFFFFFFFF), np.bitwise_count(lowest - U32(1)).astype(U32))


def _first_bit_high(a):
    _, exponent = np.frexp(a.astype(np.float64))
    return np.where(a == 0, U32(0xFFFFFFFF), (32 - exponent).astype(U32))


def _reverse(a):
    bits = np.unpackbits(a.view(np.uint8).reshape(LANES, 4), axis=1)
    return np.packbits(bits, axis=1, bitorder="little")[:, ::-1].copy().view(U32)[:, 0]


def _align(unit: int):
    def align(a, b, count):
        amount = (count & U32(31 if unit == 1 else 3)).astype(U64) * U64(unit)
        return ((a.astype(U64) << U64(32) | b) >> amount).astype(U32)

    return align


def _frexp_mantissa(a):
    mantissa, _ = np.frexp(a)
    return mantissa.astype(a.dtype)


def _frexp_exponent(a):
    _, exponent = np.frexp(a)
    return np.where(np.isfinite(a), exponent, 0).astype(I32)


def _pack_halves(low, high):
    return low.view(np.uint16).astype(U32) | high.view(np.uint16).astype(U32) << U32(16)


def _normalised(scale: float, dtype):
    return lambda a: convert.to_integer(np.rint(np.clip(np.nan_to_num(a.astype(np.float64)), -1, 1) * scale), dtype)


def _pack_normalised(scale: float, dtype):
    one = _normalised(scale, dtype)
    return lambda a, b: _pack_halves(one(a), one(b))


def _dtype_max3(a, b, c):
    return np.maximum(np.maximum(a, b), c)


def _dtype_min3(a, b, c):
    return np.minimum(np.minimum(a, b), c)


def _dtype_med3(a, b, c):
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


# name (without its type suffixes' repetition): (result type, source types, function).
OPERATIONS = {
    "v_mov_b32": ("u32", ["u32"], lambda a: a),
    "v_not_b32": ("u32", ["u32"], lambda a: ~a),
    "v_bfrev_b32": ("u32", ["u32"], _reverse),
    "v_ffbl_b32": ("u32", ["u32"], _first_bit_low),
    "v_ffbh_u32": ("u32", ["u32"], _first_bit_high),
    "v_mov_b64": ("u64", ["u64"], lambda a: a),
    "v_accvgpr_read_b32": ("u32", ["u32"], lambda a: a),
    "v_accvgpr_write_b32": ("u32", ["u32"], lambda a: a),
    "v_accvgpr_mov_b32": ("u32", ["u32"], lambda a: a),
    # Integers.
    "v_add_u32": ("u32", ["u32"] * 2, np.add),
    "v_sub_u32": ("u32", ["u32"] * 2, np.subtract),
    "v_subrev_u32": ("u32", ["u32"] * 2, lambda a, b: b - a),
    "v_add_i32": ("i32", ["i32"] * 2, np.add),
    "v_sub_i32": ("i32", ["i32"] * 2, np.subtract),
    "v_and_b32": ("u32", ["u32"] * 2, np.bitwise_and),
    "v_or_b32": ("u32", ["u32"] * 2, np.bitwise_or),
    "v_xor_b32": ("u32", ["u32"] * 2, np.bitwise_xor),
    "v_xnor_b32": ("u32", ["u32"] * 2, lambda a, b: ~(a ^ b)),
    "v_min_u32": ("u32", ["u32"] * 2, np.minimum),
    "v_max_u32": ("u32", ["u32"] * 2, np.maximum),
    "v_min_i32": ("i32", ["i32"] * 2, np.minimum),
    "v_max_i32": ("i32", ["i32"] * 2, np.maximum),
    "v_lshlrev_b32": ("u32", ["u32"] * 2, lambda a, b: b << (a & U32(31))),
    "v_lshrrev_b32": ("u32", ["u32"] * 2, lambda a, b: b >> (a & U32(31))),
    "v_ashrrev_i32": ("i32", ["u32", "i32"], lambda a, b: b >> (a & U32(31)).view(I32)),
    "v_lshlrev_b64": ("u64", ["u32", "u64"], lambda a, b: b << _shift(a, 64, U64)),
    "v_lshrrev_b64": ("u64", ["u32", "u64"], lambda a, b: b >> _shift(a, 64, U64)),
    "v_ashrrev_i64": ("i64", ["u32", "i64"], lambda a, b: b >> _shift(a, 64, I64)),
    "v_bfm_b32": ("u32", ["u32"] * 2, lambda a, b: ((U32(1) << (a & U32(31))) - U32(1)) << (b & U32(31))),
    "v_bcnt_u32_b32": ("u32", ["u32"] * 2, lambda a, b: b + np.bitwise_count(a)),
    "v_mul_lo_u32": ("u32", ["u32"] * 2, np.multiply),
    "v_mul_hi_u32": ("u32", ["u32"] * 2, _high),
    "v_mul_hi_i32": ("i32", ["i32"] * 2, _high),
    "v_mul_u32_u24": ("u32", ["u32"] * 2, _mul24),
    "v_mul_i32_i24": ("i32", ["i32"] * 2, _mul24),
    "v_mad_u32_u24": ("u32", ["u32"] * 3, lambda a, b, c: _mul24(a, b) + c),
    "v_mad_i32_i24": ("i32", ["i32"] * 3, lambda a, b, c: _mul24(a, b) + c),
    "v_add3_u32": ("u32", ["u32"] * 3, lambda a, b, c: a + b + c),
    "v_add_lshl_u32": ("u32", ["u32"] * 3, lambda a, b, c: (a + b) << (c & U32(31))),
    "v_lshl_add_u32": ("u32", ["u32"] * 3, lambda a, b, c: (a << (b & U32(31))) + c),
    "v_lshl_or_b32": ("u32", ["u32"] * 3, lambda a, b, c: a << (b & U32(31)) | c),
    "v_and_or_b32": ("u32", ["u32"] * 3, lambda a, b, c: a & b | c),
    "v_or3_b32": ("u32", ["u32"] * 3, lambda a, b, c: a | b | c),
    "v_xad_u32": ("u32", ["u32"] * 3, lambda a, b, c: (a ^ b) + c),
    "v_bfi_b32": ("u32", ["u32"] * 3, lambda a, b, c: a & b | ~a & c),
    "v_bfe_u32": ("u32", ["u32"] * 3, _bfe),
    "v_bfe_i32": ("i32", ["i32", "u32", "u32"], _bfe_signed),
    "v_perm_b32": ("u32", ["u32"] * 3, _perm),
    "v_alignbit_b32": ("u32", ["u32"] * 3, _align(1)),
    "v_alignbyte_b32": ("u32", ["u32"] * 3, _align(8)),
    "v_sad_u32": ("u32", ["u32"] * 3, _sad),
    "v_lshl_add_u64": ("u64", ["u64", "u32", "u64"], lambda a, b, c: (a << (b & U32(7)).astype(U64)) + c),
    "v_mbcnt_lo_u32_b32": ("u32", ["u32"] * 2, _mbcnt(0)),
    "v_mbcnt_hi_u32_b32": ("u32", ["u32"] * 2, _mbcnt(1)),
    **{
        f"v_{name}3_{kind}": (kind, [kind] * 3, function)
        for name, function in (("min", _dtype_min3), ("max", _dtype_max3), ("med", _dtype_med3))
        for kind in ("u32", "i32", "u16", "i16")
    },
    # 16-bit integers.
    "v_add_u16": ("u16", ["u16"] * 2, np.add),
    "v_sub_u16": ("u16", ["u16"] * 2, np.subtract),
    "v_subrev_u16": ("u16", ["u16"] * 2, lambda a, b: b - a),
    "v_mul_lo_u16": ("u16", ["u16"] * 2, np.multiply),
    "v_min_u16": ("u16", ["u16"] * 2, np.minimum),
    "v_max_u16": ("u16", ["u16"] * 2, np.maximum),
    "v_min_i16": ("i16", ["i16"] * 2, np.minimum),
    "v_max_i16": ("i16", ["i16"] * 2, np.maximum),
    "v_lshlrev_b16": ("u16", ["u16"] * 2, lambda a, b: b << (a & np.uint16(15))),
    "v_lshrrev_b16": ("u16", ["u16"] * 2, lambda a, b: b >> (a & np.uint16(15))),
    "v_ashrrev_i16": ("i16", ["u16", "i16"], lambda a, b: b >> (a & np.uint16(15)).view(np.int16)),
    # Single precision.
    "v_add_f32": ("f32", ["f32"] * 2, floats.add),
    "v_sub_f32": ("f32", ["f32"] * 2, floats.subtract),
    "v_subrev_f32": ("f32", ["f32"] * 2, lambda a, b: floats.subtract(b, a)),
    "v_mul_f32": ("f32", ["f32"] * 2, floats.multiply),
    "v_min_f32": ("f32", ["f32"] * 2, floats.minimum),
    "v_max_f32": ("f32", ["f32"] * 2, floats.maximum),
    "v_fma_f32": ("f32", ["f32"] * 3, floats.fma32),
    "v_min3_f32": ("f32", ["f32"] * 3, floats.minimum3),
    "v_max3_f32": ("f32", ["f32"] * 3, floats.maximum3),
    "v_med3_f32": ("f32", ["f32"] * 3, floats.median3),
    "v_minimum3_f32": ("f32", ["f32"] * 3, lambda a, b, c: floats.minimum_nan(floats.minimum_nan(a, b), c)),
    "v_maximum3_f32": ("f32", ["f32"] * 3, lambda a, b, c: floats.maximum_nan(floats.maximum_nan(a, b), c)),
    "v_exp_f32": ("f32", ["f32"], floats.exp2),
    "v_log_f32": ("f32", ["f32"], floats.log2),
    "v_rcp_f32": ("f32", ["f32"], floats.reciprocal),
    "v_rcp_iflag_f32": ("f32", ["f32"], floats.reciprocal),
    "v_rsq_f32": ("f32", ["f32"], floats.reciprocal_square_root),
    "v_sqrt_f32": ("f32", ["f32"], floats.square_root),
    "v_floor_f32": ("f32", ["f32"], floats.quiet(np.floor)),
    "v_ceil_f32": ("f32", ["f32"], floats.quiet(np.ceil)),
    "v_trunc_f32": ("f32", ["f32"], floats.quiet(np.trunc)),
    "v_rndne_f32": ("f32", ["f32"], floats.quiet(np.rint)),
    "v_fract_f32": ("f32", ["f32"], floats.quiet(floats.fract32)),
    "v_ldexp_f32": ("f32", ["f32", "i32"], floats.quiet(floats.ldexp)),
    "v_frexp_mant_f32": ("f32", ["f32"], floats.quiet(_frexp_mantissa)),
    "v_frexp_exp_i32_f32": ("i32", ["f32"], _frexp_exponent),
    "v_div_fixup_f32": ("f32", ["f32"] * 3, floats.division_fixup),
    # Double precision, where it has one rounding in NumPy too.
    "v_add_f64": ("f64", ["f64"] * 2, floats.add),
    "v_mul_f64": ("f64", ["f64"] * 2, floats.multiply),
    # Half precision.
    "v_add_f16": ("f16", ["f16"] * 2, floats.add),
    "v_sub_f16": ("f16", ["f16"] * 2, floats.subtract),
    "v_subrev_f16": ("f16", ["f16"] * 2, lambda a, b: floats.subtract(b, a)),
    "v_mul_f16": ("f16", ["f16"] * 2, floats.multiply),
    "v_min_f16": ("f16", ["f16"] * 2, floats.minimum),
    "v_max_f16": ("f16", ["f16"] * 2, floats.maximum),
    "v_fma_f16": ("f16", ["f16"] * 3, floats.fma16),
    "v_min3_f16": ("f16", ["f16"] * 3, floats.minimum3),
    "v_max3_f16": ("f16", ["f16"] * 3, floats.maximum3),
    "v_med3_f16": ("f16", ["f16"] * 3, floats.median3),
    "v_rcp_f16": ("f16", ["f16"], floats.half_unary(np.reciprocal)),
    "v_sqrt_f16": ("f16", ["f16"], floats.half_unary(np.sqrt)),
    "v_rsq_f16": ("f16", ["f16"], floats.half_unary(lambda a: np.reciprocal(np.sqrt(a)))),
    "v_exp_f16": ("f16", ["f16"], floats.half_unary(np.exp2)),
    "v_log_f16": ("f16", ["f16"], floats.half_unary(np.log2)),
    # Conversions.
    "v_cvt_f32_f16": ("f32", ["f16"], floats.quiet(lambda a: a.astype(np.float32))),
    "v_cvt_f16_f32": ("f16", ["f32"], convert.f32_to_f16),
    "v_cvt_f32_u32": ("f32", ["u32"], lambda a: a.astype(np.float32)),
    "v_cvt_f32_i32": ("f32", ["i32"], lambda a: a.astype(np.float32)),
    "v_cvt_u32_f32": ("u32", ["f32"], lambda a: convert.to_integer(a, U32)),
    "v_cvt_i32_f32": ("i32", ["f32"], lambda a: convert.to_integer(a, I32)),
    "v_cvt_rpi_i32_f32": ("i32", ["f32"], lambda a: convert.to_integer(np.floor(a.astype(np.float64) + 0.5), I32)),
    "v_cvt_flr_i32_f32": ("i32", ["f32"], lambda a: convert.to_integer(np.floor(a), I32)),
    "v_cvt_f64_f32": ("f64", ["f32"], floats.quiet(lambda a: a.astype(np.float64))),
    "v_cvt_f32_f64": ("f32", ["f64"], floats.quiet(lambda a: a.astype(np.float32))),
    "v_cvt_f64_i32": ("f64", ["i32"], lambda a: a.astype(np.float64)),
    "v_cvt_f64_u32": ("f64", ["u32"], lambda a: a.astype(np.float64)),
    "v_cvt_f16_u16": ("f16", ["u16"], lambda a: a.astype(np.float16)),
    "v_cvt_f16_i16": ("f16", ["i16"], lambda a: a.astype(np.float16)),
    "v_cvt_u16_f16": ("u16", ["f16"], lambda a: convert.to_integer(a, np.uint16)),
    "v_cvt_i16_f16": ("i16", ["f16"], lambda a: convert.to_integer(a, np.int16)),
    "v_cvt_pkrtz_f16_f32": (
        "u32", ["f32"] * 2,
        lambda a, b: _pack_halves(convert.f32_to_f16_towards_zero(a), convert.f32_to_f16_towards_zero(b)),
    ),
    "v_cvt_pk_u16_u32": ("u32", ["u32"] * 2, lambda a, b: np.minimum(a, U32(0xFFFF)) | np.minimum(b, U32(0xFFFF)) << U32(16)),
    "v_cvt_pknorm_i16_f32": ("u32", ["f32"] * 2, _pack_normalised(32767.0, np.int16)),
    "v_pack_b32_f16": ("u32", ["f16"] * 2, _pack_halves),
    "v_cvt_pk_f16_f32": (
        "u32", ["f32"] * 2, lambda a, b: _pack_halves(convert.f32_to_f16(a), convert.f32_to_f16(b)),
    ),
    **{
        f"v_cvt_f32_ubyte{n}": ("f32", ["u32"], lambda a, n=n: (a >> U32(8 * n) & U32(0xFF)).astype(np.float32))
        for n in range(4)
    },
}  # fmt: skip

# gfx950 has these besides.
ONLY_GFX950 = {"v_minimum3_f32", "v_maximum3_f32", "v_cvt_pk_bf16_f32", "v_cvt_pk_f16_f32", "v_bitop3_b32"}
OPERATIONS["v_cvt_pk_bf16_f32"] = (
    "u32", ["f32"] * 2, lambda a, b: convert.f32_to_bf16(a) | convert.f32_to_bf16(b) << U32(16),
)  # fmt: skip

# 16-bit results that leave the other half of the register alone (the rest clear it on GFX9).
KEEPS_HIGH_HALF = {"v_fma_f16", "v_min3_f16", "v_max3_f16", "v_med3_f16"}
KEEPS_HIGH_HALF |= {f"v_{name}3_{kind}" for name in ("min", "max", "med") for kind in ("u16", "i16")}

RELATIONS = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ne": np.not_equal, "ge": np.greater_equal,
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)), "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b), "neq": lambda a, b: ~(a == b), "nlt": lambda a, b: ~(a < b),
    "class": floats.classify,
}  # fmt: skip


def base_name(mnemonic: str) -> str:
    for suffix in ("_e32", "_e64", "_dpp", "_sdwa"):
        mnemonic = mnemonic.removesuffix(suffix)
    return mnemonic


def closure(function, sources, put):
    """wave -> None, applying `function` to the sources; written out by arity for speed."""
    if len(sources) == 1:
        (a,) = sources
        return lambda wave: put(wave, function(a(wave)))
    if len(sources) == 2:
        a, b = sources
        return lambda wave: put(wave, function(a(wave), b(wave)))
    a, b, c = sources
    return lambda wave: put(wave, function(a(wave), b(wave), c(wave)))


def _from_table(ins: Instruction, name: str):
    result, kinds, function = OPERATIONS[name]
    sources = [ins.source(position + 1, kind) for position, kind in enumerate(kinds)]
    return closure(function, sources, ins.put_vector(0, result, name in KEEPS_HIGH_HALF))


def _compare(ins: Instruction, name: str):
    writes_exec = name.startswith("v_cmpx_")
    _, _, relation, kind = name.split("_")
    holds = RELATIONS[relation]
    if relation == "class":
        a, b = ins.source(1, kind), ins.source(2, "u32")
    else:
        a, b = ins.source(1, kind), ins.source(2, kind)
    put = ins.put_lanes(0)

    def run(wave):
        lanes = holds(a(wave), b(wave))
        put(wave, lanes)
        if writes_exec:
            wave.set_exec(wave.exec & mask_of(lanes))

    return run


def _multiply_add(ins: Instruction, name: str):
    """fmac/mac-like: the destination is the addend. fmaak and fmamk carry a literal."""
    kind = name[-3:]
    function = floats.fma32 if kind == "f32" else floats.fma16
    if name.startswith("v_fmac_"):
        ins.operands.append(ins.operands[0])
    sources = [ins.source(position, kind) for position in (1, 2, 3)]
    if name.startswith("v_fmac_"):
        ins.operands.pop()
    return closure(function, sources, ins.put_vector(0, kind))


def _select(ins: Instruction, name: str):
    kind = "u32" if name.endswith("b32") else "u16"
    # With a sign modifier its sources are floats.
    modified = any(each.negative or each.absolute for each in ins.operands[1:3])
    source_kind = "f32" if modified and kind == "u32" else kind
    a, b = ins.source(1, source_kind), ins.source(2, source_kind)
    condition = ins.scalar(3, 64)
    put = ins.put_vector(0, kind)
    def run(wave):
        value = np.where(lanes_of(condition(wave)), b(wave), a(wave))
        put(wave, value.view(U32) if source_kind == "f32" else value)

    return run


CARRY = {
    "v_add_co_u32": (lambda a, b, c: a + b, False),
    "v_sub_co_u32": (lambda a, b, c: a - b, False),
    "v_subrev_co_u32": (lambda a, b, c: b - a, False),
    "v_addc_co_u32": (lambda a, b, c: a + b + c, True),
    "v_subb_co_u32": (lambda a, b, c: a - b - c, True),
    "v_subbrev_co_u32": (lambda a, b, c: b - a - c, True),
}


def _carry(ins: Instruction, name: str):
    """dst, carry out, a, b[, carry in]; computed in 64 bits, whose upper half tells the carry or borrow."""
    compute, takes_carry = CARRY[name]
    if ins.sdwa or ins.dpp:
        raise UnsupportedError(f"{ins.mnemonic}: DPP and SDWA of carry instructions")
    a, b = ins.source(2, "u32"), ins.source(3, "u32")
    carry_in = ins.scalar(4, 64) if takes_carry else None
    put, put_carry = ins.put_vector(0, "u32"), ins.put_lanes(1)

    def run(wave):
        carry = lanes_of(carry_in(wave)).astype(I64) if carry_in else 0
        value = compute(a(wave).astype(I64), b(wave).astype(I64), carry)
        put(wave, value.astype(U32))
        put_carry(wave, value >> 32 != 0)

    return run


def _mad_64(ins: Instruction, name: str):
    """v_mad_u64_u32 / v_mad_i64_i32: dst pair, carry out, a, b, c pair."""
    unsigned = name == "v_mad_u64_u32"
    a, b = (ins.source(position, "u32" if unsigned else "i32") for position in (2, 3))
    c = ins.source(4, "u64" if unsigned else "i64")
    put, put_carry = ins.put_vector(0, "u64" if unsigned else "i64"), ins.put_lanes(1)

    def run(wave):
        addend = c(wave).copy()
        product = a(wave).astype(addend.dtype) * b(wave).astype(addend.dtype)
        total = product + addend
        put(wave, total)
        if unsigned:
            put_carry(wave, total < product)
        else:
            put_carry(wave, ((product ^ total) & (addend ^ total)) < 0)

    return run


def _division_scale(ins: Instruction, name: str):
    sources = [ins.source(position, "f32") for position in (2, 3, 4)]
    put, put_flag = ins.put_vector(0, "f32"), ins.put_lanes(1)

    def run(wave):
        with np.errstate(all="ignore"):
            value, flag = floats.division_scale(*(source(wave) for source in sources))
        put(wave, value)
        put_flag(wave, flag)

    return run


def _division_fmas(ins: Instruction, name: str):
    a, b, c = (ins.source(position, "f32") for position in (1, 2, 3))
    put = ins.put_vector(0, "f32")
    ins.reads |= 3 << VCC

    def run(wave):
        put(wave, floats.division_fmas(a(wave), b(wave), c(wave), lanes_of(wave.pair(VCC))))

    return run


def _pack_bytes(ins: Instruction, name: str):
    """v_cvt_pk_fp8_f32 and its e5m2 twin: two bytes into the half that op_sel names."""
    format_name, fnuz = name.split("_")[3], ins.arch == "gfx942"
    half = ins.op_sel[-1] if ins.op_sel else 0
    ins.op_sel = [0, 0, half] if ins.op_sel else None
    a, b = ins.source(1, "f32"), ins.source(2, "f32")
    ins.op_sel = None
    operand = ins.operands[0]
    ins.note(operand, 1, read=True)
    ins.note(operand, 1, read=False)
    row = operand.row

    def run(wave):
        clamp = wave.fp16_overflow_clamps
        low, high = (convert.f32_to_byte(np.ascontiguousarray(v(wave)), format_name, fnuz, clamp) for v in (a, b))
        np.copyto(wave.u16[row][half::2], (low | high << U32(8)).astype(np.uint16), where=wave.mask)

    return run


def _unpack_bytes(ins: Instruction, name: str):
    """v_cvt_f32_fp8 (the byte by SDWA or op_sel) and v_cvt_pk_f32_fp8 (two bytes into a register pair)."""
    table = convert.DECODE[name.rsplit("_", 1)[1], ins.arch == "gfx942"]
    packed = name.startswith("v_cvt_pk_")
    part = ins.sdwa.sources[0] if ins.sdwa else None
    shift = part.shift if part else 0
    if ins.op_sel:
        shift = 16 * ins.op_sel[0] + (8 * ins.op_sel[1] if not packed and len(ins.op_sel) > 1 else 0)
    if ins.sdwa and ins.sdwa.destination or ins.dpp:
        raise UnsupportedError(ins.text.line)
    ins.sdwa = ins.op_sel = None
    a = ins.source(1, "u32")
    shift = U32(shift)
    if not packed:
        put = ins.put_vector(0, "f32")
        return lambda wave: put(wave, table[a(wave) >> shift & U32(0xFF)])
    put = ins.put_vector(0, "u64")

    def run(wave):
        bits = (a(wave) >> shift).astype(np.uint16).view(np.uint8)
        put(wave, table[bits].view(U64))

    return run


def _mix(ins: Instruction, name: str):
    """v_fma_mix_f32, v_fma_mixlo_f16, v_fma_mixhi_f16: each source a float or (op_sel_hi) a half."""
    is_half = ins.op_sel_hi or [0, 0, 0]
    ins.op_sel_hi = None
    sources = [ins.source(position + 1, "f16" if is_half[position] else "f32") for position in range(3)]
    high = name == "v_fma_mixhi_f16"
    ins.op_sel = [0, 0, 0, int(high)] if name != "v_fma_mix_f32" else None
    put = ins.put_vector(0, "f32" if name == "v_fma_mix_f32" else "f16", keep_high=True)

    def run(wave):
        a, b, c = (source(wave).astype(np.float32) for source in sources)
        if name == "v_fma_mix_f32":
            put(wave, floats.fma32(a, b, c))
            return
        # To a half in one rounding: the float64 sum first made odd where it is not exact.
        product = a.astype(np.float64) * b
        total = product + c
        part = total - product
        with np.errstate(invalid="ignore"):
            error = (product - (total - part)) + (c - part)
            exact = np.isfinite(total)
            put(wave, np.where(exact, floats.round_to_odd(total, error), total).astype(np.float16))

    return run


def _lane_access(ins: Instruction, name: str):
    if name == "v_writelane_b32":
        value, lane = ins.scalar(1), ins.scalar(2)
        operand = ins.operands[0]
        ins.note(operand, 1, read=True)
        ins.note(operand, 1, read=False)
        row = operand.row

        def write(wave):
            wave.u32[row][lane(wave) & 63] = value(wave)

        return write
    a, put = ins.source(1, "u32"), ins.put_scalar(0)
    if name == "v_readlane_b32":
        lane = ins.scalar(2)
        return lambda wave: put(wave, int(a(wave)[lane(wave) & 63]))

    def first(wave):
        # With no lane active, lane 0.
        lane = (wave.exec & -wave.exec).bit_length() - 1 if wave.exec else 0
        put(wave, int(a(wave)[lane]))

    return first


def _bit_operation(ins: Instruction, name: str):
    """gfx950's v_bitop3_b32: any function of three bits, by its truth table."""
    table = ins.number("bitop3")
    sources = [ins.source(position, "u32") for position in (1, 2, 3)]
    put = ins.put_vector(0, "u32")

    def run(wave):
        values = [source(wave) for source in sources]
        result = np.zeros(LANES, U32)
        for index in range(8):
            if table >> index & 1:
                a, b, c = (value if index >> 2 - i & 1 else ~value for i, value in enumerate(values))
                result |= a & b & c
        put(wave, result)

    return run


def _lane_swap(ins: Instruction, name: str):
    """gfx950's v_permlane{16,32}_swap: odd groups of the destination change places with even ones of the source."""
    size = int(name.removeprefix("v_permlane").split("_")[0])
    ins.flag("bound_ctrl"), ins.flag("fi")
    for operand in ins.operands:
        ins.note(operand, 1, read=True)
        ins.note(operand, 1, read=False)
    destination, source = (operand.row for operand in ins.operands)
    even = np.flatnonzero(LANE // size % 2 == 0)

    def run(wave):
        if not wave.full:
            raise UnsupportedError(f"{name} with inactive lanes")
        kept = wave.u32[source][even].copy()
        wave.u32[source][even] = wave.u32[destination][even + size]
        wave.u32[destination][even + size] = kept

    return run


def _swap(ins: Instruction, name: str):
    for operand in ins.operands:
        ins.note(operand, 1, read=True)
        ins.note(operand, 1, read=False)
    first, second = (operand.row for operand in ins.operands)

    def run(wave):
        kept = wave.u32[first].copy()
        np.copyto(wave.u32[first], wave.u32[second], where=wave.mask)
        np.copyto(wave.u32[second], kept, where=wave.mask)

    return run


SPECIAL = {
    **dict.fromkeys(CARRY, _carry),
    **dict.fromkeys(["v_mad_u64_u32", "v_mad_i64_i32"], _mad_64),
    **dict.fromkeys(["v_fmac_f32", "v_fmaak_f32", "v_fmamk_f32", "v_fmac_f16", "v_fmaak_f16", "v_fmamk_f16"], _multiply_add),
    **dict.fromkeys(["v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32"], _pack_bytes),
    **dict.fromkeys(["v_cvt_f32_fp8", "v_cvt_f32_bf8", "v_cvt_pk_f32_fp8", "v_cvt_pk_f32_bf8"], _unpack_bytes),
    **dict.fromkeys(["v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"], _mix),
    **dict.fromkeys(["v_readlane_b32", "v_readfirstlane_b32", "v_writelane_b32"], _lane_access),
    **dict.fromkeys(["v_permlane16_swap_b32", "v_permlane32_swap_b32"], _lane_swap),
    "v_cndmask_b32": _select,
    "v_div_scale_f32": _division_scale,
    "v_div_fmas_f32": _division_fmas,
    "v_bitop3_b32": _bit_operation,
    "v_swap_b32": _swap,
}  # fmt: skip
ONLY_GFX950 |= {"v_permlane16_swap_b32", "v_permlane32_swap_b32"}


def build(ins: Instruction, mnemonic: str):
    """The closure for a vector instruction, or None if it is not one of this file's."""
    ins.kind = "valu"
    name = base_name(mnemonic)
    if name in ONLY_GFX950 and ins.arch != "gfx950":
        raise UnsupportedError(f"{name} on {ins.arch}")
    if name == "v_nop":
        return lambda wave: None
    if name in SPECIAL:
        return SPECIAL[name](ins, name)
    if name in OPERATIONS:
        return _from_table(ins, name)
    if name.startswith(("v_cmp_", "v_cmpx_")) and name.split("_")[2] in ("f", "t", "tru"):
        raise UnsupportedError(name)
    if name.startswith(("v_cmp_", "v_cmpx_")):
        return _compare(ins, name)
    return None
