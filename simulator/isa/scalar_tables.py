"""What scalar instructions compute, on Python integers."""

from .wave import LOW32


def signed(value: int, bits: int = 32) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _find_low(value: int) -> int:
    return (value & -value).bit_length() - 1 if value else -1


def _count_sign(value: int) -> int:
    """How many of 32 bits equal the sign bit, from the top; -1 if all do."""
    value = value ^ LOW32 if value >> 31 else value
    return 32 - value.bit_length() if value else -1


def _bfe(value: int, control: int, width: int, is_signed: bool) -> int:
    """A field by its offset and its number of bits; one that passes the top is filled as a shift fills it."""
    offset, count = control & (width - 1), control >> 16 & 0x7F
    field = (signed(value, width) if is_signed else value) >> offset & ((1 << count) - 1)
    return signed(field, count) if is_signed and 0 < count < width else field


def overflow(value: int) -> int:
    return int(not -(1 << 31) <= value < 1 << 31)


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
    "s_pack_ll_b32_b16": lambda a, b, c: (a & 0xFFFF | b << 16, None),
    "s_pack_lh_b32_b16": lambda a, b, c: (a & 0xFFFF | b & 0xFFFF0000, None),
    "s_pack_hh_b32_b16": lambda a, b, c: (a >> 16 | b & 0xFFFF0000, None),
    **{
        f"s_lshl{n}_add_u32": lambda a, b, c, n=n: ((a << n) + b, int((a << n) + b > LOW32))
        for n in (1, 2, 3, 4)
    },
}  # fmt: skip
_LOGIC = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nor": lambda a, b: ~(a | b),
}
# name: (width of the result, of the second source, function); SCC says whether the result, cut to its width, is not 0.
BITS = {
    **{f"s_{name}_b{width}": (width, width, compute) for name, compute in _LOGIC.items() for width in (32, 64)},
    "s_lshl_b32": (32, 32, lambda a, b: a << (b & 31)),
    "s_lshr_b32": (32, 32, lambda a, b: a >> (b & 31)),
    "s_ashr_i32": (32, 32, lambda a, b: signed(a) >> (b & 31)),
    "s_lshl_b64": (64, 32, lambda a, b: a << (b & 63)),
    "s_lshr_b64": (64, 32, lambda a, b: a >> (b & 63)),
    "s_ashr_i64": (64, 32, lambda a, b: signed(a, 64) >> (b & 63)),
    "s_bfe_u32": (32, 32, lambda a, b: _bfe(a, b, 32, False)),
    "s_bfe_i32": (32, 32, lambda a, b: _bfe(a, b, 32, True)),
    "s_bfe_i64": (64, 32, lambda a, b: _bfe(a, b, 64, True)),
}
# name: (width of the source, of the result, function, does SCC say that the result is not 0)
UNARY = {
    "s_mov_b32": (32, 32, lambda a: a, False),
    "s_mov_b64": (64, 64, lambda a: a, False),
    "s_not_b32": (32, 32, lambda a: ~a, True),
    "s_not_b64": (64, 64, lambda a: ~a, True),
    "s_brev_b32": (32, 32, lambda a: int(f"{a:032b}"[::-1], 2), False),
    "s_bcnt1_i32_b32": (32, 32, lambda a: a.bit_count(), True),
    "s_bcnt1_i32_b64": (64, 32, lambda a: a.bit_count(), True),
    "s_ff1_i32_b32": (32, 32, _find_low, False),
    "s_ff1_i32_b64": (64, 32, _find_low, False),
    "s_flbit_i32_b32": (32, 32, lambda a: 32 - a.bit_length() if a else -1, False),
    "s_flbit_i32": (32, 32, _count_sign, False),
    "s_sext_i32_i8": (32, 32, lambda a: signed(a & 0xFF, 8), False),
    "s_sext_i32_i16": (32, 32, lambda a: signed(a & 0xFFFF, 16), False),
    "s_abs_i32": (32, 32, lambda a: abs(signed(a)), True),
}
RELATIONS = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
# name: (source, EXEC) -> EXEC
SAVEEXEC = {
    "s_and_saveexec_b64": lambda s, e: s & e,
    "s_or_saveexec_b64": lambda s, e: s | e,
    "s_andn2_saveexec_b64": lambda s, e: s & ~e,
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
