"""SOP1, SOP2, SOPC, SOPK, SOPP: scalar arithmetic, branches, state. Values are Python integers, unsigned."""

from simulator.faults import UnsupportedError

from .operands import Instruction
from .scalar_tables import ARITHMETIC, BITS, BRANCHES, RELATIONS, SAVEEXEC, UNARY, overflow, signed
from .wave import ALL_LANES, LOW32

# What `run` returns when the scheduler must look at the wave again.
YIELD = -1
FP16_OVERFLOW_BIT = 23


def _width(name: str) -> int:
    return 64 if name.endswith("64") else 32


def _arithmetic(ins: Instruction, name: str):
    compute = ARITHMETIC[name]
    a, b, put = ins.scalar(1), ins.scalar(2), ins.put_scalar(0)

    def run(wave):
        value, scc = compute(a(wave), b(wave), wave.scc)
        put(wave, value & LOW32)
        if scc is not None:
            wave.scc = scc

    return run


def _bits(ins: Instruction, name: str):
    width, second, compute = BITS[name]
    a, b, put, cut = ins.scalar(1, width), ins.scalar(2, second), ins.put_scalar(0, width), (1 << width) - 1

    def run(wave):
        value = compute(a(wave), b(wave)) & cut
        put(wave, value)
        wave.scc = int(value != 0)

    return run


def _unary(ins: Instruction, name: str):
    source, result, compute, sets_scc = UNARY[name]
    a, put, cut = ins.scalar(1, source), ins.put_scalar(0, result), (1 << result) - 1

    def run(wave):
        value = compute(a(wave)) & cut
        put(wave, value)
        if sets_scc:
            wave.scc = int(value != 0)

    return run


def _select(ins: Instruction, name: str):
    width = _width(name)
    a, b, put = ins.scalar(1, width), ins.scalar(2, width), ins.put_scalar(0, width)
    return lambda wave: put(wave, a(wave) if wave.scc else b(wave))


def _compare(ins: Instruction, name: str):
    """s_cmp, and s_cmpk with a 16-bit constant."""
    first, relation, kind = name.removeprefix("s_").split("_")
    width, is_signed, holds = int(kind[1:]), kind[0] == "i", RELATIONS[relation]
    a = ins.scalar(0, width)
    if first == "cmpk":
        constant = _immediate(ins) & (LOW32 if is_signed else 0xFFFF)
        b = lambda wave: constant
    else:
        b = ins.scalar(1, width)

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


def _saveexec(ins: Instruction, name: str):
    compute = SAVEEXEC[name]
    a, put = ins.scalar(1, 64), ins.put_scalar(0, 64)

    def run(wave):
        old, value = wave.exec, a(wave)
        put(wave, old)
        wave.set_exec(compute(value, old) & ALL_LANES)
        wave.scc = int(wave.exec != 0)

    return run


def _immediate(ins: Instruction) -> int:
    """SOPK's and SOPP's 16-bit constant, sign-extended."""
    return signed(ins.text.words[0] & 0xFFFF, 16)


def _with_constant(ins: Instruction, name: str):
    value, put = _immediate(ins), ins.put_scalar(0)
    if name == "s_movk_i32":
        return lambda wave: put(wave, value & LOW32)
    old = ins.scalar(0)

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
    if "vcc" in name:
        ins.reads |= 3 << 106
    holds = BRANCHES[name]
    # Addresses become positions in the list of instructions once all are decoded (see program.py).
    ins.target = ins.address + 4 + 4 * _immediate(ins)

    def run(wave):
        return ins.target_index if holds(wave) else None

    return run


def _setreg(ins: Instruction, name: str):
    if ins.operands[0].body != f"hwreg(HW_REG_MODE,{FP16_OVERFLOW_BIT},1)":
        raise UnsupportedError(f"{ins.text.line}: only MODE's FP16_OVFL can be set")
    value = ins.scalar(1)

    def run(wave):
        wave.fp16_overflow_clamps = bool(value(wave) & 1)

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
        wave.naps += 1
        return YIELD

    return run


def _end(ins: Instruction, name: str):
    def run(wave):
        wave.ended = True
        return YIELD

    return run


def _nothing(ins: Instruction, name: str):
    """What the simulated state does not show; s_nop counts in schedule/hazards.py."""
    ins.operands = []
    return lambda wave: None


HANDLERS = {
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    **dict.fromkeys(BITS, _bits),
    **dict.fromkeys(UNARY, _unary),
    **{
        f"s_{compare}_{each}_{kind}": _compare
        for compare in ("cmp", "cmpk") for each in RELATIONS for kind in ("i32", "u32")
    },
    **dict.fromkeys(["s_cmp_eq_u64", "s_cmp_lg_u64"], _compare),
    **dict.fromkeys((f"s_bitcmp{bit}_b{width}" for bit in (0, 1) for width in (32, 64)), _bit_compare),
    **dict.fromkeys(SAVEEXEC, _saveexec),
    **dict.fromkeys(BRANCHES, _branch),
    **dict.fromkeys(["s_cselect_b32", "s_cselect_b64"], _select),
    **dict.fromkeys(["s_movk_i32", "s_addk_i32", "s_mulk_i32"], _with_constant),
    **dict.fromkeys(["s_nop", "s_setprio"], _nothing),
    "s_setreg_imm32_b32": _setreg, "s_getpc_b64": _program_counter, "s_barrier": _barrier, "s_sleep": _sleep,
    "s_endpgm": _end,
}  # fmt: skip


def build(ins: Instruction, name: str):
    """The closure for a scalar instruction, or None if it is not one of this file's."""
    ins.kind = "salu"
    return HANDLERS[name](ins, name) if name in HANDLERS else None
