"""What vector instructions compute: tables of (result type, source types, function on arrays of 64 lanes)."""

import numpy as np

from . import conversions as convert
from . import doubles, floats
from .wave import LANES

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


def _reversed_bits(a):
    bits = np.unpackbits(a.view(np.uint8), bitorder="little").reshape(LANES, 32)
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(U32)[:, 0]


def _sign_bits(a):
    """Of a signed number: how many leading bits equal its sign; -1 where all of them do."""
    other = np.where(a < 0, ~a, a).astype(U32)  # its highest set bit ends them
    count = I32(32) - np.ceil(np.log2(other.astype(np.float64) + 1)).astype(I32)
    return np.where(other == 0, I32(-1), count).astype(I32)


def _high(a, b):
    return (a.astype(U64) * b.astype(U64) >> U64(32)).astype(U32)


def _low_24(a):
    return a & U32(0xFFFFFF)


def _signed_24(a):
    return a << I32(8) >> I32(8)


def _byte(place: int):
    return lambda a: a.view(np.uint8)[place::4].astype(np.float32)


def _mbcnt(half: int):
    below = np.array([(1 << max(0, min(32, lane - 32 * half))) - 1 for lane in range(LANES)], U32)
    return lambda mask, base: base + np.bitwise_count(mask & below)


def _align(a, b, count):
    return ((a.astype(U64) << U64(32) | b) >> (count & U32(31)).astype(U64)).astype(U32)


def _pack_halves(low, high):
    return low.view(np.uint16).astype(U32) | high.view(np.uint16).astype(U32) << U32(16)


# name (without its type suffixes' repetition): (result type, source types, function).
OPERATIONS = {
    "v_mov_b32": ("u32", ["u32"], lambda a: a),
    **dict.fromkeys(
        ["v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"], ("u32", ["u32"], lambda a: a)
    ),
    "v_not_b32": ("u32", ["u32"], lambda a: ~a),
    "v_bfrev_b32": ("u32", ["u32"], _reversed_bits),
    "v_ffbh_i32": ("i32", ["i32"], _sign_bits),
    "v_mov_b64": ("u64", ["u64"], lambda a: a),
    # Integers.
    "v_add_u32": ("u32", ["u32"] * 2, np.add),
    "v_sub_u32": ("u32", ["u32"] * 2, np.subtract),
    "v_subrev_u32": ("u32", ["u32"] * 2, lambda a, b: b - a),
    "v_add_i32": ("i32", ["i32"] * 2, np.add),
    "v_sub_i32": ("i32", ["i32"] * 2, np.subtract),
    "v_and_b32": ("u32", ["u32"] * 2, np.bitwise_and),
    "v_or_b32": ("u32", ["u32"] * 2, np.bitwise_or),
    "v_xor_b32": ("u32", ["u32"] * 2, np.bitwise_xor),
    "v_min_u32": ("u32", ["u32"] * 2, np.minimum),
    "v_max_u32": ("u32", ["u32"] * 2, np.maximum),
    "v_max3_u32": ("u32", ["u32"] * 3, lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_min_i32": ("i32", ["i32"] * 2, np.minimum),
    "v_max_i32": ("i32", ["i32"] * 2, np.maximum),
    "v_lshlrev_b32": ("u32", ["u32"] * 2, lambda a, b: b << (a & U32(31))),
    "v_lshrrev_b32": ("u32", ["u32"] * 2, lambda a, b: b >> (a & U32(31))),
    "v_ashrrev_i32": ("i32", ["u32", "i32"], lambda a, b: b >> (a & U32(31)).view(I32)),
    "v_lshlrev_b64": ("u64", ["u32", "u64"], lambda a, b: b << _shift(a, 64, U64)),
    "v_lshrrev_b64": ("u64", ["u32", "u64"], lambda a, b: b >> _shift(a, 64, U64)),
    "v_mul_lo_u32": ("u32", ["u32"] * 2, np.multiply),
    "v_mul_hi_u32": ("u32", ["u32"] * 2, _high),
    "v_mul_hi_i32": ("i32", ["i32"] * 2, lambda a, b: (a.astype(I64) * b >> I64(32)).astype(I32)),
    "v_mul_u32_u24": ("u32", ["u32"] * 2, lambda a, b: _low_24(a) * _low_24(b)),
    "v_mad_u32_u24": ("u32", ["u32"] * 3, lambda a, b, c: _low_24(a) * _low_24(b) + c),
    "v_mul_i32_i24": ("i32", ["i32"] * 2, lambda a, b: _signed_24(a) * _signed_24(b)),
    "v_mad_i32_i24": ("i32", ["i32"] * 3, lambda a, b, c: _signed_24(a) * _signed_24(b) + c),
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
    "v_alignbit_b32": ("u32", ["u32"] * 3, _align),
    "v_lshl_add_u64": ("u64", ["u64", "u32", "u64"], lambda a, b, c: (a << (b & U32(7)).astype(U64)) + c),
    "v_mbcnt_lo_u32_b32": ("u32", ["u32"] * 2, _mbcnt(0)),
    "v_mbcnt_hi_u32_b32": ("u32", ["u32"] * 2, _mbcnt(1)),
    # 16-bit integers.
    "v_add_u16": ("u16", ["u16"] * 2, np.add),
    "v_sub_u16": ("u16", ["u16"] * 2, np.subtract),
    "v_lshlrev_b16": ("u16", ["u16"] * 2, lambda a, b: b << (a & np.uint16(15))),
    "v_lshrrev_b16": ("u16", ["u16"] * 2, lambda a, b: b >> (a & np.uint16(15))),
    "v_ashrrev_i16": ("i16", ["u16", "i16"], lambda a, b: b >> (a & np.uint16(15)).view(np.int16)),
    "v_min_u16": ("u16", ["u16"] * 2, np.minimum),
    "v_max_u16": ("u16", ["u16"] * 2, np.maximum),
    "v_min3_u16": ("u16", ["u16"] * 3, lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_min_i16": ("i16", ["i16"] * 2, np.minimum),
    "v_max_i16": ("i16", ["i16"] * 2, np.maximum),
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
    "v_exp_f32": ("f32", ["f32"], floats.exp2),
    "v_log_f32": ("f32", ["f32"], floats.log2),
    "v_rcp_f32": ("f32", ["f32"], floats.reciprocal),
    "v_rcp_iflag_f32": ("f32", ["f32"], floats.reciprocal),
    "v_rsq_f32": ("f32", ["f32"], floats.reciprocal_square_root),
    "v_sqrt_f32": ("f32", ["f32"], floats.square_root),
    "v_rndne_f32": ("f32", ["f32"], floats.quiet(np.rint)),
    "v_trunc_f32": ("f32", ["f32"], floats.quiet(np.trunc)),
    "v_ldexp_f32": ("f32", ["f32", "i32"], floats.quiet(floats.ldexp)),
    "v_div_fixup_f32": ("f32", ["f32"] * 3, floats.division_fixup),
    # Half precision.
    "v_add_f16": ("f16", ["f16"] * 2, floats.add),
    "v_sub_f16": ("f16", ["f16"] * 2, floats.subtract),
    "v_mul_f16": ("f16", ["f16"] * 2, floats.multiply),
    # Conversions.
    "v_cvt_f32_f16": ("f32", ["f16"], convert.f16_to_f32),
    "v_cvt_f16_f32": ("f16", ["f32"], convert.f32_to_f16),
    "v_cvt_f32_u32": ("f32", ["u32"], lambda a: a.astype(np.float32)),
    "v_cvt_f32_i32": ("f32", ["i32"], lambda a: a.astype(np.float32)),
    **{f"v_cvt_f32_ubyte{i}": ("f32", ["u32"], _byte(i)) for i in range(4)},
    "v_cvt_u32_f32": ("u32", ["f32"], lambda a: convert.to_integer(a, U32)),
    "v_cvt_i32_f32": ("i32", ["f32"], lambda a: convert.to_integer(a, I32)),
    "v_pack_b32_f16": ("u32", ["f16"] * 2, _pack_halves),
    "v_cvt_pk_f16_f32": (
        "u32", ["f32"] * 2, lambda a, b: _pack_halves(convert.f32_to_f16(a), convert.f32_to_f16(b)),
    ),
}  # fmt: skip

OPERATIONS |= doubles.OPERATIONS

# With clamp a sum or difference of integers stops at the ends of its type.
SATURATING = {
    "v_add_u32", "v_sub_u32", "v_subrev_u32", "v_add_i32", "v_sub_i32", "v_add_u16", "v_sub_u16",
}  # fmt: skip


def saturated(function, dtype):
    limits = np.iinfo(dtype)
    return lambda *sources: np.clip(function(*(a.astype(I64) for a in sources)), limits.min, limits.max).astype(dtype)


# gfx950 has these besides.
ONLY_GFX950 = {"v_cvt_pk_bf16_f32", "v_cvt_pk_f16_f32", "v_bitop3_b16", "v_bitop3_b32"}
OPERATIONS["v_cvt_pk_bf16_f32"] = (
    "u32", ["f32"] * 2, lambda a, b: convert.f32_to_bf16(a) | convert.f32_to_bf16(b) << U32(16),
)  # fmt: skip

RELATIONS = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ne": np.not_equal, "ge": np.greater_equal,
    "lg": lambda a, b: (a < b) | (a > b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b), "neq": lambda a, b: ~(a == b),
    "nge": lambda a, b: ~(a >= b), "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b), "nlt": lambda a, b: ~(a < b),
    "class": floats.classify,
}  # fmt: skip
