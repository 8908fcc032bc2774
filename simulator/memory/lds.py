"""The LDS of a workgroup, and ds_ instructions."""

import numpy as np

from simulator.faults import LdsFault, MemoryFault, UnsupportedError
from simulator.isa.operands import Instruction
from simulator.isa.wave import LANES

from .races import Races
from .regions import byte_views
from .transfers import DS_READS, DS_WRITES, Move, load_words, store_words

LANE = np.arange(LANES)


class Lds:
    """`size` bytes, and for each whether it has been written; `races` or None watches the order of accesses."""

    def __init__(self, size: int, garbage: np.random.Generator, checks, races: Races | None):
        self.races = races
        self.size = size
        self.data = garbage.integers(0, 256, size, np.uint8)
        self.views = byte_views(self.data)
        self.written = np.zeros(size, np.uint8)
        self.written_views = byte_views(self.written)
        self.checks = checks

    def check_range(self, addresses: np.ndarray, size: int, lanes) -> None:
        if addresses.size and (int(addresses.max()) + size > self.size or int(addresses.min()) < 0):
            bad = int(np.flatnonzero((addresses + size > self.size) | (addresses < 0))[0])
            raise LdsFault(f"lane {lanes[bad]}: LDS bytes {int(addresses[bad])} to +{size} of {self.size} allocated")
        if self.checks.alignment:
            unit = size & -size
            if (addresses & (unit - 1)).any():
                bad = int(np.flatnonzero(addresses & (unit - 1))[0])
                raise MemoryFault(f"lane {lanes[bad]}: LDS address {int(addresses[bad])} is not a multiple of {unit}")

    def read(self, addresses: np.ndarray, move: Move, lanes, wave) -> np.ndarray:
        if self.checks.uninitialised_lds:
            written = np.ascontiguousarray(self.written_views[move.size][addresses]).view(np.uint8)
            if not written.all():
                bad = int(np.flatnonzero(written == 0)[0]) // move.size
                raise LdsFault(f"lane {lanes[bad]}: LDS bytes {int(addresses[bad])} to +{move.size} were never written")
        if self.races:
            self.races.read(wave.index, addresses, move.size, wave.looks)
        return self.views[move.size][addresses]

    def write(self, addresses: np.ndarray, move: Move, values: np.ndarray, lanes, wave, in_order: bool = True) -> None:
        """`in_order`: behind the wave's other LDS operations, as ds_write is and a load to LDS is not."""
        if self.races:

            def unchanged():
                old = np.ascontiguousarray(self.views[move.size][addresses]).view(np.uint8).reshape(-1, move.size)
                new = np.ascontiguousarray(values).view(np.uint8).reshape(-1, move.size)
                return (old == new).all(axis=1)

            self.races.write(wave.index, addresses, move.size, unchanged, in_order)
        self.views[move.size][addresses] = values
        ones = np.ones(move.size, np.uint8).view(self.views[move.size].dtype)
        self.written_views[move.size][addresses] = ones[0]
        wave.workgroup.launch.progress += 1


def _active(wave):
    """(lanes or None for all, their numbers)."""
    return (None, LANE) if wave.full else ((lanes := wave.active_lanes()), lanes)


class LdsAddress:
    def __init__(self, ins: Instruction, position: int):
        ins.note(ins.operands[position], 1, read=True)
        self.vector = ins.words(position)

    def at(self, wave, lanes, offset: int) -> np.ndarray:
        vector = self.vector(wave)
        # The sum wraps: compilers put a negative number into the register (LLVM: hasUsableDSOffset).
        return (vector if lanes is None else vector[lanes]).astype(np.int64) + offset & 0xFFFFFFFF


def issue(wave, bits: int) -> None:
    wave.pending |= bits
    wave.lgkm.append(("lds", bits, None))


def _offsets(ins: Instruction, pairs: bool, unit: int, stride: int) -> list[int]:
    if not pairs:
        return [ins.number("offset")]
    return [ins.number(name) * unit * stride for name in ("offset0", "offset1")]


def _read(ins: Instruction, move: Move, offsets: list[int]):
    destination = ins.operands[0]
    count = move.registers
    ins.note(destination, count * len(offsets), read=False)
    if move.half is not None:
        ins.note(destination, 1, read=True)
    address = LdsAddress(ins, 1)
    row, bits = destination.row, ins.writes

    def run(wave):
        lanes, numbers = _active(wave)
        if numbers.size:
            lds, counters = wave.workgroup.lds, wave.workgroup.launch.counters
            found = []
            for offset in offsets:
                addresses = address.at(wave, lanes, offset)
                lds.check_range(addresses, move.size, numbers)
                counters.lds_access(addresses, move.size, numbers, write=False)
                found.append(lds.read(addresses, move, numbers, wave))
            for index, values in enumerate(found):
                store_words(wave, row + count * index, move, values, lanes)
        issue(wave, bits)

    return run


def _write(ins: Instruction, move: Move, offsets: list[int]):
    address = LdsAddress(ins, 0)
    rows = []
    for position in range(len(offsets)):
        ins.note(ins.operands[1 + position], move.registers, read=True)
        rows.append(ins.operands[1 + position].row)

    def run(wave):
        lanes, numbers = _active(wave)
        if numbers.size:
            lds, counters = wave.workgroup.lds, wave.workgroup.launch.counters
            for offset, row in zip(offsets, rows):
                addresses = address.at(wave, lanes, offset)
                lds.check_range(addresses, move.size, numbers)
                counters.lds_access(addresses, move.size, numbers, write=True)
                lds.write(addresses, move, load_words(wave, row, move, lanes), numbers, wave)
        issue(wave, 0)

    return run


def _read_turned(ins: Instruction):
    """ds_read_b64_tr_b16: each lane reads 8 bytes. Of its 16 lanes, lane i then has number i % 4 of what lanes i / 4,
    i / 4 + 4, + 8 and + 12 read (CDNA4's manual, 11.4, and AMD's own emulator: a column of a 4 x 16 matrix, four
    lanes a row). It has no pseudocode; tests/test_memory.py has its lanes."""
    if ins.arch != "gfx950":
        raise UnsupportedError(f"{ins.mnemonic} on {ins.arch}")
    destination, move, offset = ins.operands[0], Move(8), ins.number("offset")
    ins.note(destination, move.registers, read=False)
    address = LdsAddress(ins, 1)
    row, bits = destination.row, ins.writes

    def run(wave):
        if not wave.full:
            raise UnsupportedError(f"{ins.mnemonic} with inactive lanes")
        lds = wave.workgroup.lds
        addresses = address.at(wave, None, offset)
        lds.check_range(addresses, move.size, LANE)
        wave.workgroup.launch.counters.lds_access(addresses, move.size, LANE, write=False)
        found = np.ascontiguousarray(lds.read(addresses, move, LANE, wave)).view(np.uint16)
        # [16 lanes][row][lane of a row][number] to [16 lanes][lane of a row][number][row]
        turned = np.ascontiguousarray(found.reshape(4, 4, 4, 4).transpose(0, 2, 3, 1))
        store_words(wave, row, move, turned.view(np.uint64).reshape(LANES), None)
        issue(wave, bits)

    return run


def _permute(ins: Instruction, name: str):
    """ds_bpermute_b32 (each lane says where it reads) and ds_permute_b32 (where it writes); no memory involved."""
    offset = ins.number("offset")
    for position in (1, 2):
        ins.note(ins.operands[position], 1, read=True)
    ins.note(ins.operands[0], 1, read=False)
    address, data = ins.words(1), ins.words(2)
    row, bits = ins.operands[0].row, ins.writes
    backward = name == "bpermute_b32"

    def run(wave):
        other = ((address(wave).astype(np.int64) + offset) // 4) % LANES
        values = np.where(wave.mask, data(wave), np.uint32(0))
        if backward:
            result = values[other]
        else:
            result = np.zeros(LANES, np.uint32)
            active = wave.active_lanes()
            result[other[active]] = values[active]
        np.copyto(wave.u32[row], result, where=wave.mask)
        issue(wave, bits)

    return run


def swizzle_sources(text: str) -> np.ndarray:
    """The lane that each lane reads, from LLVM's spelling of ds_swizzle's offset."""
    kind, *arguments = text.removeprefix("swizzle(").rstrip(")").split(",")
    within, base = LANE % 32, LANE // 32 * 32
    if kind == "QUAD_PERM":
        return LANE // 4 * 4 + np.array([int(each) for each in arguments])[LANE % 4]
    if kind == "BITMASK_PERM":
        result = np.zeros(LANES, np.int64)
        for character, bit in zip(arguments[0].strip('"'), (16, 8, 4, 2, 1)):
            own = within & bit
            result |= {"0": 0 * own, "1": 0 * own + bit, "p": own, "i": own ^ bit}[character]
        return base + result
    raise UnsupportedError(f"ds_swizzle {text}")


def _swizzle(ins: Instruction, name: str):
    sources = swizzle_sources(ins.modifiers.pop("offset", 'swizzle(BITMASK_PERM,"00000")'))
    ins.note(ins.operands[1], 1, read=True)
    ins.note(ins.operands[0], 1, read=False)
    data = ins.words(1)
    row, bits = ins.operands[0].row, ins.writes

    def run(wave):
        # Inactive lanes give 0.
        result = np.where(wave.mask, data(wave), np.uint32(0))[sources]
        np.copyto(wave.u32[row], result, where=wave.mask)
        issue(wave, bits)

    return run


ACROSS_LANES = {"bpermute_b32": _permute, "permute_b32": _permute, "swizzle_b32": _swizzle}


def build(ins: Instruction, mnemonic: str):
    """The closure for a ds_ instruction, or None."""
    if not mnemonic.startswith("ds_"):
        return None
    ins.kind = "lds"
    name = mnemonic[3:]
    if name in ACROSS_LANES:
        return ACROSS_LANES[name](ins, name)
    if name == "read_b64_tr_b16":
        return _read_turned(ins)
    for verb, moves, handler in (("read", DS_READS, _read), ("write", DS_WRITES, _write)):
        for prefix, pairs, stride in ((f"{verb}2st64_", True, 64), (f"{verb}2_", True, 1), (f"{verb}_", False, 1)):
            form = name.removeprefix(prefix)
            if form != name and form in moves:
                return handler(ins, moves[form], _offsets(ins, pairs, moves[form].size, stride))
    return None
