"""The state of one wave: registers, masks, counters of outstanding memory operations."""

import functools

import numpy as np

LANES = 64
VCC, M0, EXEC = 106, 124, 126
ALL_LANES = (1 << LANES) - 1
# Registers are bits of one integer, so that one `&` asks whether an instruction touches a register of a set:
# scalar registers first, then v0 to v255, then a0 to a255.
VECTOR_BIT = 128
ACCUMULATION = 256
LOW32 = 0xFFFFFFFF


@functools.lru_cache(maxsize=4096)
def lanes_of(mask: int) -> np.ndarray:
    """The 64 booleans of a lane mask; read-only, shared."""
    bits = np.unpackbits(np.frombuffer(mask.to_bytes(8, "little"), np.uint8), bitorder="little").view(bool)
    bits.flags.writeable = False
    return bits


def mask_of(lanes: np.ndarray) -> int:
    return int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")


def register_bits(kind: str, index: int, count: int) -> int:
    base = {"s": 0, "v": VECTOR_BIT, "a": VECTOR_BIT + ACCUMULATION}[kind]
    return ((1 << count) - 1) << (base + index)


class RegisterFile:
    """Vector registers of one wave as rows of 64 dwords, with a view of each row in every type that is used."""

    def __init__(self, arch: int, accumulation: int):
        self.words = np.zeros((ACCUMULATION + accumulation if accumulation else arch, LANES), np.uint32)
        # Rows between the last architectural register and a0 do not exist; decoding refuses their numbers.
        self.u32 = list(self.words)
        self.i32 = [row.view(np.int32) for row in self.u32]
        self.f32 = [row.view(np.float32) for row in self.u32]
        self.f16 = [row.view(np.float16) for row in self.u32]
        self.u16 = [row.view(np.uint16) for row in self.u32]
        self.bytes = [row.view(np.uint8) for row in self.u32]


class Wave:
    """One wave in flight.

    `pending` holds the registers that a load will still write, `uninitialised` those that nothing wrote;
    `vm` and `lgkm` the outstanding operations in order of issue, as (register bits, deferred write or None);
    `knowledge` what it knows of other waves' stores (memory/coherence.py).
    """

    def __init__(self, workgroup, index: int, registers: RegisterFile, knowledge):
        self.workgroup = workgroup
        self.index = index
        self.registers = registers
        self.u32, self.i32, self.f32 = registers.u32, registers.i32, registers.f32
        self.f16, self.u16, self.bytes = registers.f16, registers.u16, registers.bytes
        self.s = [0] * 128
        self.scc = 0
        self.pc = 0
        self.pending = 0
        self.uninitialised = 0
        self.vm: list[tuple] = []
        self.lgkm: list[tuple] = []
        self.knowledge = knowledge
        # Of memory that devices share (memory/fine_grained.py): stores and loads on their way, and parts of the latest
        # load.
        self.sent: list = []
        self.late: list = []
        self.again: list = []
        self.fp16_overflow_clamps = False
        self.looks = False  # whether the LDS read that is executing is a look at a flag (schedule/polling.py)
        self.at_barrier = False
        self.ended = False
        # How often it slept since the launch last made progress (see schedule/engine.py), and in all.
        self.sleeps = self.naps = 0
        self.progress_seen = -1
        self.set_exec(ALL_LANES)

    def set_exec(self, value: int) -> None:
        self.exec = value
        self.mask = lanes_of(value)
        self.full = value == ALL_LANES

    def pair(self, index: int) -> int:
        """A 64-bit scalar."""
        return self.s[index] | self.s[index + 1] << 32

    def active_lanes(self) -> np.ndarray:
        return np.flatnonzero(self.mask)
