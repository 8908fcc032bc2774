"""SOP1, SOP2, SOPC, SOPK, SOPP: scalar arithmetic, branches, waits. Values are Python integers, unsigned."""

from .faults import UnsupportedError
from .operands import Instruction
from .wave import ALL_LANES, LOW32

# What `run` returns when the scheduler must look at the wave again.
YIELD = -1

HARDWARE_REGISTERS = {"HW_REG_MODE", "HW_REG_XCC_ID", "HW_REG_HW_ID"}
FP16_OVERFLOW_BIT = 23


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
    "s_add_i32": lambda a, b, c: (a + b, _overflow(signed(a) + signed(b))),
    "s_sub_i32": lambda a, b, c: (a - b, _overflow(signed(a) - signed(b))),
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
# Nothing that the simulated state shows; s_waitcnt and the like have their own handlers. Cache maintenance is
# nothing here because memory is always coherent in the simulation.
NOTHING = {"s_nop", "s_setprio", "s_icache_inv", "s_dcache_inv", "s_dcache_wb"}


def _overflow(value: int) -> int:
    return int(not -(1 << 31) <= value < 1 << 31)


def _width(name: str) -> int:
    return 64 if name.endswith("64") else 32


def binary(ins: Instruction, width: int, compute, second_width: int | None = None):
    """compute(a, b, scc) -> (result, new scc or None)."""
    a, b = ins.scalar(1, width), ins.scalar(2, second_width or width)
    put, cut = ins.put_scalar(0, width), (1 << width) - 1

    def run(wave):
        value, scc = compute(a(wave), b(wave), wave.scc)
        value &= cut
        put(wave, value)
        if scc is not None:
            wave.scc = scc

    return run


def _binary_from_tables(ins: Instruction, name: str):
    stem = name[: -len("_b32")] if name.endswith(("_b32", "_b64")) else name
    if name in ARITHMETIC:
        return binary(ins, 32, ARITHMETIC[name])
    if name in SHIFTS:
        width, compute = SHIFTS[name]
        cut = (1 << width) - 1

        def shifted(a, b, c):
            value = compute(a, b) & cut
            return value, int(value != 0)

        return binary(ins, width, shifted, 32)
    if stem in LOGIC and stem != name:
        width, compute = _width(name), LOGIC[stem]
        cut = (1 << width) - 1

        def logic(a, b, c):
            value = compute(a, b, width) & cut
            return value, int(value != 0)

        return binary(ins, width, logic)
    return None


def _unary(ins: Instruction, name: str):
    source, result, compute, sets_scc = UNARY[name]
    a, put, cut = ins.scalar(1, source), ins.put_scalar(0, result), (1 << result) - 1

    def run(wave):
        value = compute(a(wave)) & cut
        put(wave, value)
        if sets_scc:
            wave.scc = int(value != 0)

    return run


def _move(ins: Instruction, name: str):
    width = _width(name)
    a, put = ins.scalar(1, width), ins.put_scalar(0, width)
    if name.startswith("s_cmov"):
        # The destination keeps its value when SCC is 0, so it is a source too.
        ins.reads |= ins.writes

        def conditional(wave):
            if wave.scc:
                put(wave, a(wave))

        return conditional
    return lambda wave: put(wave, a(wave))


def _select(ins: Instruction, name: str):
    width = _width(name)
    a, b, put = ins.scalar(1, width), ins.scalar(2, width), ins.put_scalar(0, width)
    return lambda wave: put(wave, a(wave) if wave.scc else b(wave))


def _compare(ins: Instruction, name: str):
    _, _, relation, kind = name.split("_")
    width = int(kind[1:])
    a, b, holds = ins.scalar(0, width), ins.scalar(1, width), COMPARE[relation]
    is_signed = kind[0] == "i"

    def run(wave):
        left, right = a(wave), b(wave)
        if is_signed:
            left, right = signed(left), signed(right)
        wave.scc = int(holds(left, right))

    return run


def _bit_compare(ins: Instruction, name: str):
    wanted, width = int(name[len("s_bitcmp")]), _width(name)
    a, b = ins.scalar(0, width), ins.scalar(1, 32)

    def run(wave):
        wave.scc = int((a(wave) >> (b(wave) & (width - 1)) & 1) == wanted)

    return run


def _bit_set(ins: Instruction, name: str):
    value, width = int(name[len("s_bitset")]), _width(name)
    old, a, put = ins.scalar(0, width), ins.scalar(1, 32), ins.put_scalar(0, width)

    def run(wave):
        bit = 1 << (a(wave) & (width - 1))
        put(wave, old(wave) | bit if value else old(wave) & ~bit)

    return run


def _saveexec(ins: Instruction, name: str):
    compute = SAVEEXEC[name.removesuffix("_saveexec_b64")]
    a, put = ins.scalar(1, 64), ins.put_scalar(0, 64)

    def run(wave):
        old, value = wave.exec, a(wave)
        put(wave, old)
        wave.set_exec(compute(value, old) & ALL_LANES)
        wave.scc = int(wave.exec != 0)

    return run


def _immediate(ins: Instruction) -> int:
    """SOPK's 16-bit constant, sign-extended."""
    return signed(ins.text.words[0] & 0xFFFF, 16)


def _sopk(ins: Instruction, name: str):
    value = _immediate(ins)
    if name.startswith("s_cmpk_"):
        relation, kind = name.removeprefix("s_cmpk_").split("_")
        a, holds = ins.scalar(0), COMPARE[relation]
        constant = value if kind == "i32" else value & 0xFFFF

        def compare(wave):
            wave.scc = int(holds(signed(a(wave)) if kind == "i32" else a(wave), constant))

        return compare
    put = ins.put_scalar(0)
    if name == "s_movk_i32":
        return lambda wave: put(wave, value & LOW32)
    old = ins.scalar(0)
    if name == "s_cmovk_i32":
        return lambda wave: put(wave, value & LOW32) if wave.scc else None

    def run(wave):
        a = signed(old(wave))
        if name == "s_addk_i32":
            wave.scc = _overflow(a + value)
            put(wave, a + value & LOW32)
        else:
            put(wave, a * value & LOW32)

    return run


def _branch(ins: Instruction, name: str):
    ins.kind = "branch"
    target = ins.address + 4 + 4 * signed(ins.text.words[0] & 0xFFFF, 16)
    if "vcc" in name:
        ins.reads |= 3 << 106
    holds = BRANCHES[name]
    # Addresses become positions in the list of instructions once all are decoded (see program.py).
    ins.target = target

    def run(wave):
        return ins.target_index if holds(wave) else None

    return run


def _setreg(ins: Instruction, name: str):
    register, *field = ins.operands[0].body.removeprefix("hwreg(").rstrip(")").split(",")
    low, count = (int(each) for each in field) if field else (0, 32)
    if register != "HW_REG_MODE" or (low, count) != (FP16_OVERFLOW_BIT, 1):
        raise UnsupportedError(f"{ins.text.line}: only MODE's FP16_OVFL can be set")
    value = ins.scalar(1)

    def run(wave):
        wave.fp16_overflow_clamps = bool(value(wave) & 1)

    return run


def _getreg(ins: Instruction, name: str):
    register, *field = ins.operands[1].body.removeprefix("hwreg(").rstrip(")").split(",")
    if register not in HARDWARE_REGISTERS:
        raise UnsupportedError(ins.text.line)
    low, count = (int(each) for each in field) if field else (0, 32)
    put, cut = ins.put_scalar(0), (1 << count) - 1

    def run(wave):
        if register == "HW_REG_MODE":
            value = wave.mode | wave.fp16_overflow_clamps << FP16_OVERFLOW_BIT
        elif register == "HW_REG_XCC_ID":
            value = wave.workgroup.index % 8
        else:
            # WAVE_ID and SIMD_ID: waves go to the four SIMDs in turn.
            value = wave.index // 4 & 15 | (wave.index & 3) << 4
        put(wave, value >> low & cut)

    return run


def _program_counter(ins: Instruction, name: str):
    put, following = ins.put_scalar(0, 64), ins.address + 4
    return lambda wave: put(wave, wave.workgroup.launch.image_base + following)


def _barrier(ins: Instruction, name: str):
    ins.kind = "barrier"

    def run(wave):
        wave.at_barrier = True
        return YIELD

    return run


def _sleep(ins: Instruction, name: str):
    def run(wave):
        progress = wave.workgroup.launch.progress
        wave.sleeps = wave.sleeps + 1 if wave.progress_seen == progress else 1
        wave.progress_seen = progress
        return YIELD

    return run


def _end(ins: Instruction, name: str):
    def run(wave):
        wave.ended = True
        return YIELD

    return run


def _clock(ins: Instruction, name: str):
    put = ins.put_scalar(0, 64)
    return lambda wave: put(wave, wave.workgroup.launch.executed)


def _special(name: str):
    exact = {
        "s_setreg_imm32_b32": _setreg, "s_setreg_b32": _setreg, "s_getreg_b32": _getreg,
        "s_getpc_b64": _program_counter, "s_barrier": _barrier, "s_sleep": _sleep, "s_endpgm": _end,
        "s_memtime": _clock, "s_memrealtime": _clock, "s_cselect_b32": _select, "s_cselect_b64": _select,
        "s_mov_b32": _move, "s_mov_b64": _move, "s_cmov_b32": _move, "s_cmov_b64": _move,
        "s_movk_i32": _sopk, "s_addk_i32": _sopk, "s_mulk_i32": _sopk, "s_cmovk_i32": _sopk,
    }  # fmt: skip
    if name in exact:
        return exact[name]
    prefixes = {"s_cmpk_": _sopk, "s_cmp_": _compare, "s_bitcmp": _bit_compare, "s_bitset": _bit_set}
    return next((handler for prefix, handler in prefixes.items() if name.startswith(prefix)), None)


def build(ins: Instruction, name: str):
    """The closure for a scalar instruction, or None if it is not one of this file's."""
    ins.kind = "salu"
    if name in NOTHING:
        ins.operands = []
        return lambda wave: None
    if name in BRANCHES:
        return _branch(ins, name)
    if name in UNARY:
        return _unary(ins, name)
    if name.endswith("_saveexec_b64"):
        return _saveexec(ins, name)
    special = _special(name)
    return special(ins, name) if special else _binary_from_tables(ins, name)
