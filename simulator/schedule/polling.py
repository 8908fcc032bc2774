"""Which LDS reads are looks at a flag: reads of a dword that a loop repeats until another wave has changed it.

Machine code does not mark them. But a loop that reads the same address again, and that stores nothing and meets no
barrier, makes sense only if somebody else writes there. So a read is a look if a path leads back to it

  through a conditional branch that depends on what it returned,
  with its address unchanged: nothing writes to its register, or constants alone do, the same each time,
  without stores, LDS writes, atomics or barriers, within LONGEST instructions.

Compilers peel the first turn off: a read is a look too if such a path leads to another look at the same address.
What a wave does in between its looks, other than to wait or to load, makes them reads of data: memory/races.py then
reports.
"""

import re

from simulator.isa.operands import Instruction
from simulator.isa.wave import EXEC, VCC

LONGEST = 128
SCC_BIT = 1 << 125  # a number that no register has
CONDITIONS = {"scc": SCC_BIT, "vcc": 3 << VCC, "exec": 3 << EXEC}
BRANCH = re.compile(r"s_cbranch_(scc|vcc|exec)")
EFFECT = re.compile(r"ds_write|(global|flat|buffer)_(store|atomic)|s_barrier|s_endpgm")
LEAVES_SCC = re.compile(r"s_(c?mov|cselect|bfm|mulk?_|mul_|pack|brev|ff[01]|flbit|sext|bitset|getpc|nop|sleep|waitcnt)")
READS_SCC = re.compile(r"s_(cselect|cmov|addc|subb)")


def _depends(ins: Instruction, tainted: int) -> bool:
    return bool(ins.reads & tainted or (tainted & SCC_BIT and READS_SCC.match(ins.mnemonic)))


def _after(ins: Instruction, tainted: int) -> int:
    """What depends on the looked-at dword once `ins` has executed."""
    written = ins.writes
    if ins.mnemonic.startswith("s_") and ins.kind == "salu" and not LEAVES_SCC.match(ins.mnemonic):
        written |= SCC_BIT
    return tainted | written if _depends(ins, tainted) else tainted & ~written


def _successors(program: list[Instruction], at: int) -> list[int]:
    ins = program[at]
    ahead = [] if ins.mnemonic in ("s_branch", "s_endpgm") else [at + 1]
    target = getattr(ins, "target_index", None)
    return ahead if target is None else [*ahead, target]


class _Addresses:
    """Where reads look: (what the address is, the offset), and the registers that must not change for it to stay."""

    def __init__(self, program: list[Instruction]):
        self.program = program
        self.before: list[list[int]] = [[] for _ in program]
        for at in range(len(program)):
            for following in _successors(program, at):
                self.before[following].append(at)

    def of(self, at: int) -> tuple[tuple, int]:
        ins = self.program[at]
        constant = self._constant(at, ins.reads)
        operand = ins.text.operands[1] if constant is None else f"= {constant}"
        return (operand, ins.text.modifiers.get("offset", "0")), ins.reads if constant is None else 0

    def _constant(self, at: int, register: int) -> str | None:
        """What every v_mov that an address register may have come from puts there. Compilers write it anew."""
        found, seen, open_positions = set(), set(), [at]
        while open_positions:
            before = self.before[open_positions.pop()]
            if not before:
                return None
            for each in before:
                ins = self.program[each]
                if ins.writes & register:
                    constant = ins.mnemonic.startswith("v_mov_b32_e") and ins.operands[1].kind == "constant"
                    found.add(ins.operands[1].body if constant else None)
                elif each not in seen:
                    seen.add(each)
                    open_positions.append(each)
            if None in found or len(found) > 1:
                return None
        return found.pop()


def _leads_to(program: list[Instruction], start: int, goals: set[int], addresses: dict[int, tuple]) -> bool:
    """Does a path as above lead from the read at `start` to one of `goals`, of the same address?"""
    where, address = addresses[start]
    # (position, what depends on the dword, whether a branch did)
    level, seen = {(start + 1, program[start].writes, False)}, set()
    if program[start].writes & address:
        return False
    for _ in range(LONGEST):
        following = set()
        for at, tainted, decided in level:
            ins = program[at]
            if decided and at in goals and addresses[at][0] == where:
                return True
            if EFFECT.match(ins.mnemonic) or ins.writes & address or not (tainted or decided):
                continue
            if match := BRANCH.match(ins.mnemonic):
                decided = decided or bool(tainted & CONDITIONS[match[1]])
            after = _after(ins, tainted)
            following |= {(each, after, decided) for each in _successors(program, at)}
        level = following - seen
        seen |= level
    return False


def _marked(ins: Instruction) -> None:
    inner = ins.run

    def look(wave):
        wave.looks = True
        inner(wave)
        wave.looks = False

    ins.run, ins.is_look = look, True


def looks(program: list[Instruction]) -> set[int]:
    """The positions of the looks among a kernel's instructions."""
    reads = [at for at, ins in enumerate(program) if ins.mnemonic == "ds_read_b32"]
    if not reads:
        return set()
    known = _Addresses(program)
    addresses = {at: known.of(at) for at in reads}
    found = {at for at in reads if _leads_to(program, at, {at}, addresses)}
    return found | {at for at in reads if found and at not in found and _leads_to(program, at, found, addresses)}


def mark_looks(program: list[Instruction]) -> None:
    """Makes looks tell their wave that they are."""
    for at in looks(program):
        _marked(program[at])
