"""Wait states that gfx942 and gfx950 do not insert by themselves: a static check over all paths of a kernel.

After some instructions others come too early unless enough wait states lie between: each instruction issued counts
one, s_nop N counts N + 1. The compiler keeps these distances; inline assembly and hand-written code may not. The
rules are those that LLVM's GCNHazardRecognizer keeps for the instructions that the simulator knows: matrix results and
accumulators, VALU to matrix operands, DPP, lane accesses, VMEM addresses and v_div_fmas, EXEC, transcendental and
half-register results, data of wide stores, M0, s_setreg after s_setreg. Instructions that are not known have no rule.
tests/test_hazards.py holds the rules to what clang leaves, no more and no less, for matrix results on both chips too.

Each instruction leaves hazards behind (`left_by`): registers, the view through which a later instruction must not look
at them, and for how many wait states. Each has views (`views`): what it reads or writes, and as what.
"""

from dataclasses import dataclass

from simulator.binary.source_lines import at_source_line
from simulator.counting.counters import matrix_cycles
from simulator.faults import HazardFault
from simulator.isa.operands import Instruction
from simulator.isa.wave import EXEC, M0, VCC, VECTOR_BIT

SCALARS = (1 << VECTOR_BIT) - 1
EXEC_BITS, VCC_BITS, M0_BIT = 3 << EXEC, 3 << VCC, 1 << M0
MODE_BIT = 1 << 125  # a number that no register has
TRANSCENDENTAL = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_")
# Packed instructions have no bit in op_sel for their destination.
NO_DESTINATION_IN_OP_SEL = ("v_pk_", "v_dot", "v_fma_mix", "v_mfma", "v_smfmac")
WIDE_STORES = ("store_dwordx3", "store_dwordx4")


@dataclass(frozen=True)
class Hazard:
    """`states` wait states have to lie between the instruction that leaves `registers` and one that has one of them in
    `view`."""

    registers: int
    view: str
    states: int
    what: str


def _operand_bits(ins: Instruction, position: int) -> int:
    """The registers of a vector operand, exactly."""
    operand = ins.operands[position]
    if operand.kind == "constant":
        return 0
    return ((1 << operand.count) - 1) << (operand.row + VECTOR_BIT)


def _accumulator(ins: Instruction) -> int:
    """What a matrix instruction adds to: SMFMAC its destination, MFMA its last operand."""
    return _operand_bits(ins, 0 if ins.mnemonic.startswith("v_smfmac") else 3)


def _writes_high_half(ins: Instruction) -> bool:
    if ins.sdwa:
        return ins.sdwa.destination is not None
    chosen = str(ins.text.modifiers.get("op_sel", "")).strip("[]")
    if ins.mnemonic.startswith("v_cvt_scalef32_pk_fp4_"):  # two bits choose the byte
        return "1" in chosen[-3:]
    return chosen.endswith("1") and not ins.mnemonic.startswith(NO_DESTINATION_IN_OP_SEL)


def views(ins: Instruction) -> dict[str, int]:
    """The registers that an instruction touches, by the views that hazards name."""
    found = {}
    vector_reads = ins.reads & ~SCALARS
    if ins.kind == "mfma":
        c = _accumulator(ins)
        beside = (3,) if ins.mnemonic.startswith("v_smfmac") else range(4, len(ins.operands))  # an index, scales
        found["matrix operand"] = vector_reads
        found["A or B"] = 0
        for position in (1, 2, *beside):
            found["A or B"] |= _operand_bits(ins, position)
        found["C"] = c
        found["plain read by VALU"] = vector_reads
        found["EXEC of a matrix instruction"] = EXEC_BITS
    elif ins.kind == "valu":
        found["vector read"], found["vector write"] = vector_reads, ins.writes & ~SCALARS
        found["scalar read by VALU"] = ins.reads & SCALARS
        found["write by VALU"] = ins.writes & ~SCALARS
        found["read by VALU"] = vector_reads
        if not ins.mnemonic.startswith(TRANSCENDENTAL):
            found["plain read by VALU"] = vector_reads
        if ins.dpp is not None:
            found["DPP read"], found["EXEC of DPP"] = vector_reads, EXEC_BITS
        if ins.mnemonic.startswith("v_div_fmas"):
            found["VCC of v_div_fmas"] = VCC_BITS
        if "lane_b32" in ins.mnemonic:
            found["EXEC of a lane access"] = EXEC_BITS
            found["lane access"] = vector_reads if ins.mnemonic.startswith("v_read") else 0
            if len(ins.operands) == 3 and ins.operands[2].kind == "s":
                found["lane select"] = 1 << ins.operands[2].index
    elif ins.kind in ("vmem", "lds"):
        found["vector read"], found["vector write"] = vector_reads, ins.writes & ~SCALARS
        if ins.kind == "vmem":
            found["scalar read by VMEM"] = ins.reads & SCALARS
            if "_load_lds_" in ins.mnemonic:
                found["M0 of a load to LDS"] = M0_BIT
    elif ins.mnemonic.startswith("s_setreg"):
        found["MODE set again"] = MODE_BIT
    return found


def _left_by_matrix(ins: Instruction, gfx950: bool) -> list[Hazard]:
    passes = matrix_cycles(ins.mnemonic, ins.text.modifiers) // 4
    extra = 1 if gfx950 else 0
    d, c = ins.writes, _accumulator(ins)
    return [
        Hazard(d, "vector read", passes + 3 + extra, "the result is not there yet"),
        Hazard(d, "vector write", passes + 3 + extra, "the result would be written later"),
        Hazard(d, "A or B", passes + 3 + extra, "the result is not there yet"),
        Hazard(d, "C", passes + 1 + extra, "the result, overlapped by an accumulator that is not the same registers"),
        Hazard(c, "vector write", passes - 1, "the accumulator is still being read"),
    ]


def left_by(ins: Instruction, arch: str) -> list[Hazard]:
    """The hazards that an instruction leaves behind."""
    if ins.kind == "mfma":
        return _left_by_matrix(ins, arch == "gfx950")
    if ins.kind == "valu":
        vector, scalar = ins.writes & ~SCALARS, ins.writes & SCALARS
        found = []
        if vector:
            found += [
                Hazard(vector, "matrix operand", 2, "written by a vector instruction"),
                Hazard(vector, "DPP read", 2, "written by a vector instruction"),
                Hazard(vector, "lane access", 1, "written by a vector instruction"),
            ]
            if ins.mnemonic.startswith(TRANSCENDENTAL):
                found.append(Hazard(vector, "plain read by VALU", 1, "written by a transcendental instruction"))
            if _writes_high_half(ins):
                found.append(Hazard(vector, "read by VALU", 1, "written in part"))
                found.append(Hazard(vector, "matrix operand", 1, "written in part"))
        if scalar:
            what = "a scalar register written by a vector instruction"
            found += [
                Hazard(scalar, "scalar read by VALU", 2, what),
                Hazard(scalar, "scalar read by VMEM", 5, what),
                Hazard(scalar, "lane select", 4, what),
                Hazard(scalar, "VCC of v_div_fmas", 4, what),
            ]
        if ins.mnemonic.startswith("v_cmpx_"):
            what = "EXEC written by a vector instruction"
            found += [
                Hazard(EXEC_BITS, "EXEC of a matrix instruction", 4, what),
                Hazard(EXEC_BITS, "EXEC of DPP", 5, what),
                Hazard(EXEC_BITS, "EXEC of a lane access", 4, what),
            ]
        return found
    if ins.kind == "vmem" and ins.mnemonic.endswith(WIDE_STORES):
        buffer = ins.mnemonic.startswith("buffer_")
        if buffer and ins.operands[3].kind == "s":
            return []
        return [Hazard(_operand_bits(ins, 0 if buffer else 1), "write by VALU", 2, "data of a wide store")]
    if ins.mnemonic.startswith("s_setreg"):
        return [Hazard(MODE_BIT, "MODE set again", 2, "the same hardware register")]
    if ins.writes & M0_BIT:
        return [Hazard(M0_BIT, "M0 of a load to LDS", 1, "M0 written by a scalar instruction")]
    return []


def wait_states(ins: Instruction) -> int:
    return (ins.text.words[0] & 0xFFFF) + 1 if ins.mnemonic == "s_nop" else 1


def successors(program: list[Instruction], at: int) -> list[int]:
    ins = program[at]
    if ins.mnemonic == "s_endpgm":
        return []
    target = getattr(ins, "target_index", None)
    following = [] if ins.mnemonic == "s_branch" else [at + 1]
    return following if target is None else [*following, target]


@dataclass(frozen=True)
class Violation:
    first: Instruction
    second: Instruction
    hazard: Hazard
    states: int

    def __str__(self) -> str:
        return (
            f"`{self.second.text.line}` at {self.second.address:#x} comes {self.states} wait states after "
            f"`{self.first.text.line}` at {self.first.address:#x}; {self.hazard.states} are needed ({self.hazard.what}"
            f"; {self.hazard.view})"
        )


def violations(program: list[Instruction], arch: str, slack: int = 0):
    """Every pair of instructions that is too close on some path, as an iterator; with `slack` also those that have up
    to so many wait states more than they need."""
    seen = [views(ins) for ins in program]
    states_of = [wait_states(ins) for ins in program]
    for start, first in enumerate(program):
        hazards = left_by(first, arch)
        if not hazards:
            continue
        reach, alive = 0, 0
        for hazard in hazards:
            reach, alive = max(reach, hazard.states + slack), alive | hazard.registers
        least: dict[tuple[int, int], int] = {}
        # (position, wait states so far, hazards' registers that nobody of the same kind has written since)
        open_paths = [(each, 0, alive) for each in successors(program, start)]
        while open_paths:
            at, states, alive = open_paths.pop()
            if states >= reach or least.get((at, alive), reach) <= states:
                continue
            least[at, alive] = states
            second, view = program[at], seen[at]
            if view:
                for hazard in hazards:
                    touched = view.get(hazard.view, 0)
                    if states < hazard.states + slack and hazard.registers & touched & alive:
                        # The matrix unit forwards a result to the same accumulator.
                        if hazard.view == "C" and touched == hazard.registers:
                            continue
                        yield Violation(first, second, hazard, states)
                if second.kind == first.kind:
                    alive &= ~second.writes
            open_paths += [(each, states + states_of[at], alive) for each in successors(program, at)]


_clean: set[tuple[str, str]] = set()


def check(code, kernel, program: list[Instruction]) -> None:
    """Raises a HazardFault for the first violation in a kernel; each kernel is looked at once."""
    key = code.digest, kernel.name
    if key in _clean:
        return
    for found in violations(program, code.arch):
        fault = HazardFault(str(found))
        places = [f"`{each.text.line}`{at_source_line(code, each.address)}" for each in (found.first, found.second)]
        fault.where = f"\n  kernel {kernel.name}: {', '.join(places)}"
        raise fault
    _clean.add(key)
