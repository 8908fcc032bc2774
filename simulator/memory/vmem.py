"""SMEM, global_, flat_ and buffer_ instructions; atomics are in atomics.py, memory that devices share in
fine_grained.py."""

import numpy as np

from simulator.faults import MemoryFault, UnsupportedError
from simulator.isa.operands import Instruction
from simulator.isa.scalar_tables import signed
from simulator.isa.wave import LANES, LOW32

from . import fine_grained
from .fine_grained import AGENT, put
from .transfers import LOADS, STORES, Move, load_words, store_words

U32, U64 = np.uint32, np.uint64
LANE = np.arange(LANES)
SCALAR_LOADS = {"dword": 1, "dwordx2": 2, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16}
CACHE_BITS = ("sc0", "sc1", "nt")
CACHE_CONTROL = ("buffer_wbl2", "buffer_inv")


def scalar_load(ins: Instruction, words: int):
    ins.kind = "smem"
    destination = ins.operands[0]
    ins.note(destination, words, read=False)
    base = ins.scalar(1, 64)
    offset_operand = ins.operands[2]
    fixed = ins.number("offset")
    if offset_operand.kind == "constant":
        fixed += signed(int(offset_operand.body, 0) & 0x1FFFFF, 21)
        register = None
    else:
        register = ins.scalar(2)
    for name in CACHE_BITS + ("glc",):
        ins.flag(name)
    first, bits = destination.index, ins.writes

    def run(wave):
        address = base(wave) + fixed + (register(wave) if register else 0)
        if address & 3:
            raise MemoryFault(f"scalar load at {address:#x}, not a multiple of 4")
        launch = wave.workgroup.launch
        data = launch.memory.read_scalar(address, 4 * words)
        region = launch.memory.find(address)
        if region.fine_grained:
            region.scalar_load(wave, address - region.address, 4 * words)
        if launch.coherence:
            launch.coherence.scalar_load(region, address - region.address, 4 * words)
        wave.s[first : first + words] = np.frombuffer(data, U32).tolist()
        wave.pending |= bits
        wave.lgkm.append(("smem", bits, None))

    return run


def clock(ins: Instruction):
    """s_memrealtime."""
    ins.kind = "smem"
    destination = ins.operands[0]
    ins.note(destination, 2, read=False)
    first, bits = destination.index, ins.writes

    def run(wave):
        launch = wave.workgroup.launch
        ticks = launch.clock.read(launch.device)
        wave.s[first : first + 2] = [ticks & LOW32, ticks >> 32 & LOW32]
        wave.pending |= bits
        wave.lgkm.append(("smem", bits, None))

    return run


class Addressing:
    """Where the lanes of a global_ or flat_ instruction access memory."""

    def __init__(self, ins: Instruction, position: int, flat: bool):
        address = ins.operands[position]
        self.offset = ins.number("offset")
        self.base = None
        if flat or ins.operands[-1].text == "off":
            ins.note(address, 2, read=True)
            self.vector = ins._wide(address, position, "u64")
        else:
            self.base = ins.scalar(len(ins.operands) - 1, 64)
            if address.text == "off":
                self.vector = None
            else:
                ins.note(address, 1, read=True)
                self.vector = ins.words(position)

    def addresses(self, wave, lanes) -> np.ndarray:
        """Addresses of the given lanes (None for all 64), as a fresh array."""
        fixed = self.offset
        if self.base is not None:
            fixed += self.base(wave)
        if self.vector is None:
            return np.full(LANES if lanes is None else len(lanes), fixed, U64)
        vector = self.vector(wave)
        if lanes is not None:
            vector = vector[lanes]
        return vector.astype(U64) + U64(fixed & 0xFFFFFFFFFFFFFFFF)


class BufferAddressing:
    """Raw buffers (stride 0): base + soffset + (voffset + offset), the sum in brackets checked against num_records.

    Out of range, loads give 0 and stores are dropped, dword by dword."""

    def __init__(self, ins: Instruction, position: int):
        self.offset = ins.number("offset")
        if ins.flag("idxen") or ins.flag("tfe") or ins.flag("addr64"):
            raise UnsupportedError(ins.text.line)
        self.vector = None
        if ins.flag("offen"):
            ins.note(ins.operands[position], 1, read=True)
            self.vector = ins.words(position)
        elif ins.operands[position].text != "off":
            raise UnsupportedError(ins.text.line)
        resource = ins.operands[position + 1]
        ins.note(resource, 4, read=True)
        self.resource = resource.index
        self.scalar_offset = ins.scalar(position + 2)

    def locate(self, wave, lanes) -> tuple[int, np.ndarray, int]:
        """(base address, offsets of the lanes, number of bytes in range)."""
        words = wave.s[self.resource : self.resource + 4]
        if words[1] >> 16:
            raise UnsupportedError(f"buffer resource with stride or swizzle: {words[1]:#x}")
        scalar_offset = self.scalar_offset(wave)
        count = LANES if lanes is None else len(lanes)
        offsets = np.full(count, self.offset, np.int64)
        if self.vector is not None:
            vector = self.vector(wave)
            offsets += vector if lanes is None else vector[lanes]
        return (words[0] | words[1] << 32) + scalar_offset, offsets, words[2] - scalar_offset


def take_cache_bits(ins: Instruction) -> dict[str, bool]:
    return {name: ins.flag(name) for name in CACHE_BITS}


def take_scope(ins: Instruction) -> int:
    """Of a load or store: 0 wave, 1 workgroup, 2 agent, 3 system."""
    bits = take_cache_bits(ins)
    return bits["sc0"] + AGENT * bits["sc1"]


def _lanes(wave):
    return None if wave.full else wave.active_lanes()


def aligned(wave, addresses: np.ndarray, size: int, lanes) -> None:
    unit = min(size & -size, 16)
    if unit > 1:
        bad = addresses & U64(unit - 1)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            lane = at if lanes is None else int(lanes[at])
            raise MemoryFault(f"lane {lane}: address {int(addresses[at]):#x} is not a multiple of {unit}")


def read_lanes(wave, addresses: np.ndarray, move: Move, lanes, scope: int) -> np.ndarray:
    """The values at the addresses, one a lane. `put` takes them, as they may change until they are waited for."""
    launch = wave.workgroup.launch
    if launch.checks.alignment:
        aligned(wave, addresses, move.size, lanes)
    launch.counters.global_access(wave.workgroup.index, addresses, move.size, write=False)
    numbers = lanes if lanes is not None else LANE
    groups = launch.memory.groups(addresses, move.size, numbers, write=False)
    found = []
    wave.again = []
    for region, positions, offsets in groups:
        if region.fine_grained:
            found.append(region.load(wave, offsets, move.size, scope, positions, numbers[positions]))
            continue
        if launch.coherence:
            launch.coherence.load(wave, region, offsets, move.size, scope >= AGENT, numbers[positions])
        found.append(region.views[move.size][offsets])
    if len(groups) == 1:
        return found[0]
    dtype = np.dtype(f"V{move.size}" if move.size > 8 else f"<u{move.size}")
    values = np.zeros(len(addresses), dtype)
    for (_, positions, _), each in zip(groups, found):
        values[positions] = each
    return values


def write_lanes(wave, addresses: np.ndarray, move: Move, values: np.ndarray, lanes, scope: int) -> None:
    launch = wave.workgroup.launch
    if launch.checks.alignment:
        aligned(wave, addresses, move.size, lanes)
    launch.counters.global_access(wave.workgroup.index, addresses, move.size, write=True)
    numbers = lanes if lanes is not None else LANE
    for region, positions, offsets in launch.memory.groups(addresses, move.size, numbers, write=True):
        if region.fine_grained:
            region.store(wave, offsets, move.size, values[positions], scope)
            continue
        region.views[move.size][offsets] = values[positions]
        if launch.coherence:
            launch.coherence.store(wave, region, offsets, move.size, scope >= AGENT)
    launch.progress += 1


def issue(wave, bits: int, deferred=None, flat: bool = False) -> None:
    """Enters a vector memory operation into vmcnt (and lgkmcnt for flat_)."""
    wave.pending |= bits
    if wave.knowledge.arrivals:
        told = wave.knowledge.take_arrivals() + ([deferred] if deferred else [])
        deferred = lambda: [tell() for tell in told]
    wave.vm.append(("vmem", bits, deferred))
    launch = wave.workgroup.launch
    if len(wave.vm) > launch.counters.most_in_flight:
        launch.counters.most_in_flight = len(wave.vm)
    if flat:
        wave.lgkm.append(("flat", bits, None))


def _load(ins: Instruction, move: Move, flat: bool):
    destination = ins.operands[0]
    ins.note(destination, move.registers, read=False)
    if move.half is not None:
        ins.note(destination, 1, read=True)
    where = Addressing(ins, 1, flat)
    scope = take_scope(ins)
    row, bits = destination.row, ins.writes

    def run(wave):
        lanes, then = _lanes(wave), None
        addresses = where.addresses(wave, lanes)
        if addresses.size:
            then = put(wave, row, move, read_lanes(wave, addresses, move, lanes, scope), lanes)
        issue(wave, bits, flat=flat)
        return then

    return run


def _store(ins: Instruction, move: Move, flat: bool):
    source = ins.operands[1]
    ins.note(source, move.registers, read=True)
    where = Addressing(ins, 0, flat)
    scope = take_scope(ins)
    row = source.row

    def run(wave):
        lanes = _lanes(wave)
        addresses = where.addresses(wave, lanes)
        if addresses.size:
            write_lanes(wave, addresses, move, load_words(wave, row, move, lanes), lanes, scope)
        issue(wave, 0, flat=flat)

    return run


def _load_to_lds(ins: Instruction, size: int):
    """global_load_lds_*: lane i's data lands in LDS at M0 + offset + i·size, when the load returns."""
    if size > 4 and ins.arch != "gfx950":
        raise UnsupportedError(f"{ins.mnemonic} on {ins.arch}")
    where = Addressing(ins, 0, flat=False)
    scope = take_scope(ins)
    ins.reads |= 1 << 124
    move, offset = Move(size), where.offset
    m0_mask = 0xFFFF if ins.arch == "gfx942" else LOW32

    def run(wave):
        lanes = _lanes(wave)
        addresses = where.addresses(wave, lanes)
        values = read_lanes(wave, addresses, move, lanes, scope) if addresses.size else None
        numbers = np.arange(LANES) if lanes is None else lanes
        targets = (wave.s[124] & m0_mask) + offset + numbers * size
        lds = wave.workgroup.lds
        lds.check_range(targets, size, numbers)
        wave.workgroup.launch.counters.lds_access(targets, size, numbers, write=True)

        def arrive():
            if values is not None:
                lds.write(targets, move, values, numbers, wave, in_order=False)

        issue(wave, 0, arrive)

    return run


def _buffer(ins: Instruction, name: str):
    kind, _, form = name.partition("_")
    moves = LOADS if kind == "load" else STORES
    if form not in moves or "lds" in ins.modifiers:
        raise UnsupportedError(ins.text.line)
    move = moves[form]
    data = ins.operands[0]
    ins.note(data, move.registers, read=kind == "store")
    where = BufferAddressing(ins, 1)
    scope = take_scope(ins)
    row, bits = data.row, ins.writes
    unit = min(4, move.size)

    def run(wave):
        lanes = _lanes(wave)
        base, offsets, limit = where.locate(wave, lanes)
        if offsets.size and int(offsets.max()) + move.size <= limit:
            addresses, then = (offsets + base).astype(U64), None
            if kind == "load":
                then = put(wave, row, move, read_lanes(wave, addresses, move, lanes, scope), lanes)
            else:
                write_lanes(wave, addresses, move, load_words(wave, row, move, lanes), lanes, scope)
            issue(wave, bits)
            return then
        numbers = np.arange(LANES) if lanes is None else lanes
        # Checked dword by dword: a lane may lie in part inside. Where none does, it is one access.
        whole = bool(((offsets + move.size <= limit) | (offsets >= limit)).all())
        piece = move if whole else Move(unit, move.sign, move.half)
        kept = np.dtype(f"V{piece.size}" if piece.size > 8 else f"u{piece.size}")
        for part in range(move.size // piece.size):
            inside = np.flatnonzero(offsets + piece.size * (part + 1) <= limit)
            chosen = numbers[inside]
            addresses = (offsets[inside] + piece.size * part + base).astype(U64)
            if kind == "load":
                values = np.zeros(len(numbers), kept)
                if chosen.size:
                    values[inside] = read_lanes(wave, addresses, piece, chosen, scope)
                store_words(wave, row + part, piece, values, numbers)
            elif chosen.size:
                write_lanes(wave, addresses, piece, load_words(wave, row + part, piece, chosen), chosen, scope)
        issue(wave, bits)
        return None

    return run


def _cache_control(ins: Instruction, name: str):
    everywhere = "sc1" in ins.text.line.split()
    of_system = everywhere and "sc0" in ins.text.line.split()
    ins.operands, ins.modifiers = [], {}
    writes_back = name == "buffer_wbl2"

    def run(wave):
        coherence = wave.workgroup.launch.coherence if everywhere else None
        if writes_back:
            if coherence:
                coherence.write_back(wave)
            if of_system and (written := fine_grained.write_back(wave)):
                wave.knowledge.arrivals.append(written)
            issue(wave, 0)
            return
        if coherence:
            coherence.invalidate(wave)
        if of_system:
            fine_grained.invalidate(wave)

    return run


def build(ins: Instruction, mnemonic: str):
    """The closure for a scalar, global, flat or buffer memory instruction, or None."""
    if mnemonic.startswith("s_load_"):
        return scalar_load(ins, SCALAR_LOADS[mnemonic.removeprefix("s_load_")])
    if mnemonic == "s_memrealtime":
        return clock(ins)
    ins.kind = "vmem"
    if mnemonic in CACHE_CONTROL:
        return _cache_control(ins, mnemonic)
    space, _, name = mnemonic.partition("_")
    if space == "buffer":
        return _buffer(ins, name)
    if space not in ("global", "flat"):
        return None
    flat = space == "flat"
    if name.startswith("load_lds_"):
        return _load_to_lds(ins, LOADS[name.removeprefix("load_lds_")].size)
    if name.startswith("load_") and name[5:] in LOADS:
        return _load(ins, LOADS[name[5:]], flat)
    if name.startswith("store_") and name[6:] in STORES:
        return _store(ins, STORES[name[6:]], flat)
    return None
