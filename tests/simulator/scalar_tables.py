"""What scalar instructions compute, on Python integers."""

from .wave import ALL_LANES, LOW32


def signed(value: int, bits: int = 32) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _bit_reverse(value: int, width: int) -> int:
    return int(f"{value:0{width}b}"[::-1], 2)


def _find_low(value: int, width: int) -> int:
    return (value & -value).bit_length() - 1 if value else -1


def _count_sign(value: int, width: int) -> int:
    """How many bits equal the sign bit, from the top; -1 if all do (S_FLBIT_I32)."""
    value = value ^ ((1 << width) - 1) if value >> (width - 1) else value
    return width - value.bit_length() if value else -1


def _bfe(value: int, control: int, width: int, is_signed: bool) -> int:
    offset, count = control & (width - 1), control >> 16 & 0x7F
    field = value >> offset & ((1 << count) - 1)
    if is_signed and count and offset + count <= width and field >> (count - 1):
        field -= 1 << count
    return field


def overflow(value: int) -> int:
    return int(not -(1 << 31) <= value < 1 << 31)


# SCC says whether the result, cut to the width, is not zero.
LOGIC = {
    "s_and": lambda a, b, w: a & b,
    "s_or": lambda a, b, w: a | b,
    "s_xor": lambda a, b, w: a ^ b,
    "s_andn2": lambda a, b, w: a & ~b,
    "s_orn2": lambda a, b, w: a | ~b,
    "s_nand": lambda a, b, w: ~(a & b),
    "s_nor": lambda a, b, w: ~(a | b),
    "s_xnor": lambda a, b, w: ~(a ^ b),
}
SHIFTS = {
    "s_lshl_b32": (32, lambda a, b: a << (b & 31)),
    "s_lshr_b32": (32, lambda a, b: a >> (b & 31)),
    "s_ashr_i32": (32, lambda a, b: signed(a) >> (b & 31)),
    "s_lshl_b64": (64, lambda a, b: a << (b & 63)),
    "s_lshr_b64": (64, lambda a, b: a >> (b & 63)),
    "s_ashr_i64": (64, lambda a, b: signed(a, 64) >> (b & 63)),
    "s_bfe_u32": (32, lambda a, b: _bfe(a, b, 32, False)),
    "s_bfe_i32": (32, lambda a, b: _bfe(a, b, 32, True)),
    "s_bfe_u64": (64, lambda a, b: _bfe(a, b, 64, False)),
    "s_bfe_i64": (64, lambda a, b: _bfe(a, b, 64, True)),
}
# name: (a, b, scc in) -> (result, scc out or None for unchanged)
ARITHMETIC = {
    "s_add_u32": lambda a, b, c: (a + b, a + b >> 32),
    "s_sub_u32": lambda a, b, c: (a - b, int(b > a)),
    "s_addc_u32": lambda a, b, c: (a + b + c, a + b + c >> 32),
    "s_subb_u32": lambda a, b, c: (a - b - c, int(b + c > a)),
    "s_add_i32": lambda a, b, c: (a + b, overflow(signed(a) + signed(b))),
    "s_sub_i32": lambda a, b, c: (a - b, overflow(signed(a) - signed(b))),
    "s_mul_i32": lambda a, b, c: (a * b, None),
    "s_mul_hi_u32": lambda a, b, c: (a * b >> 32, None),
    "s_mul_hi_i32": lambda a, b, c: (signed(a) * signed(b) >> 32, None),
    "s_min_i32": lambda a, b, c: (min(signed(a), signed(b)), int(signed(a) < signed(b))),
    "s_max_i32": lambda a, b, c: (max(signed(a), signed(b)), int(signed(a) >= signed(b))),
    "s_min_u32": lambda a, b, c: (min(a, b), int(a < b)),
    "s_max_u32": lambda a, b, c: (max(a, b), int(a >= b)),
    "s_bfm_b32": lambda a, b, c: (((1 << (a & 31)) - 1) << (b & 31), None),
    "s_absdiff_i32": lambda a, b, c: (abs(signed(a - b & LOW32)), int(a != b)),
    "s_pack_ll_b32_b16": lambda a, b, c: (a & 0xFFFF | b << 16, None),
    "s_pack_lh_b32_b16": lambda a, b, c: (a & 0xFFFF | b & 0xFFFF0000, None),
    "s_pack_hh_b32_b16": lambda a, b, c: (a >> 16 | b & 0xFFFF0000, None),
    **{
        f"s_lshl{n}_add_u32": lambda a, b, c, n=n: ((a << n) + b, int((a << n) + b > LOW32))
        for n in (1, 2, 3, 4)
    },
}  # fmt: skip
# name: (source width, result width, function, does SCC say that the result is not zero)
UNARY = {
    "s_not_b32": (32, 32, lambda a: ~a, True),
    "s_not_b64": (64, 64, lambda a: ~a, True),
    "s_brev_b32": (32, 32, lambda a: _bit_reverse(a, 32), False),
    "s_brev_b64": (64, 64, lambda a: _bit_reverse(a, 64), False),
    "s_bcnt0_i32_b32": (32, 32, lambda a: 32 - a.bit_count(), True),
    "s_bcnt0_i32_b64": (64, 32, lambda a: 64 - a.bit_count(), True),
    "s_bcnt1_i32_b32": (32, 32, lambda a: a.bit_count(), True),
    "s_bcnt1_i32_b64": (64, 32, lambda a: a.bit_count(), True),
    "s_ff1_i32_b32": (32, 32, lambda a: _find_low(a, 32), False),
    "s_ff1_i32_b64": (64, 32, lambda a: _find_low(a, 64), False),
    "s_ff0_i32_b32": (32, 32, lambda a: _find_low(a ^ LOW32, 32), False),
    "s_ff0_i32_b64": (64, 32, lambda a: _find_low(a ^ ALL_LANES, 64), False),
    "s_flbit_i32_b32": (32, 32, lambda a: 32 - a.bit_length() if a else -1, False),
    "s_flbit_i32_b64": (64, 32, lambda a: 64 - a.bit_length() if a else -1, False),
    "s_flbit_i32": (32, 32, lambda a: _count_sign(a, 32), False),
    "s_sext_i32_i8": (32, 32, lambda a: signed(a & 0xFF, 8), False),
    "s_sext_i32_i16": (32, 32, lambda a: signed(a & 0xFFFF, 16), False),
    "s_abs_i32": (32, 32, lambda a: abs(signed(a)), True),
}
COMPARE = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "ne": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
SAVEEXEC = {
    "s_and": lambda s, e: s & e,
    "s_or": lambda s, e: s | e,
    "s_xor": lambda s, e: s ^ e,
    "s_andn2": lambda s, e: s & ~e,
    "s_orn2": lambda s, e: s | ~e,
    "s_andn1": lambda s, e: ~s & e,
    "s_orn1": lambda s, e: ~s | e,
    "s_nand": lambda s, e: ~(s & e),
    "s_nor": lambda s, e: ~(s | e),
    "s_xnor": lambda s, e: ~(s ^ e),
}
BRANCHES = {
    "s_branch": lambda wave: True,
    "s_cbranch_scc0": lambda wave: not wave.scc,
    "s_cbranch_scc1": lambda wave: wave.scc,
    "s_cbranch_vccz": lambda wave: not (wave.s[106] | wave.s[107]),
    "s_cbranch_vccnz": lambda wave: wave.s[106] | wave.s[107],
    "s_cbranch_execz": lambda wave: not wave.exec,
    "s_cbranch_execnz": lambda wave: wave.exec,
}
