"""SOP1, SOP2, SOPC, SOPK, SOPP: scalar arithmetic, branches, waits. Values are Python integers, unsigned."""

from .faults import UnsupportedError
from .operands import Instruction
from .scalar_tables import ARITHMETIC, BRANCHES, COMPARE, LOGIC, SAVEEXEC, SHIFTS, UNARY, overflow, signed
from .wave import ALL_LANES, LOW32

# What `run` returns when the scheduler must look at the wave again.
YIELD = -1

HARDWARE_REGISTERS = {"HW_REG_MODE", "HW_REG_XCC_ID", "HW_REG_HW_ID"}
FP16_OVERFLOW_BIT = 23

# Nothing that the simulated state shows; s_waitcnt and the like have their own handlers. Cache maintenance is
# nothing here because memory is always coherent in the simulation.
NOTHING = {"s_nop", "s_setprio", "s_icache_inv", "s_dcache_inv", "s_dcache_wb"}


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
            wave.scc = overflow(a + value)
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
