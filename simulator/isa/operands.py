"""Operands of an instruction's text as closures over a wave: readers of 64-lane arrays, readers of scalars, writers.

An `Instruction` is built by its handler, which asks it for every operand; so the registers it reads and writes are
known from the same calls, and a modifier that no handler asked for is noticed at the end of decoding.
"""

import re
import struct

import numpy as np

from simulator.binary.disassembly import Text
from simulator.faults import UnsupportedError

from . import crosslane
from .registers import BITS, DTYPES, half_writer, pair_writer, sign_modified, word_writer
from .wave import ACCUMULATION, EXEC, LANES, LOW32, M0, VCC, mask_of, register_bits

REGISTER = re.compile(r"^(?P<kind>[sva])(?:(?P<one>\d+)|\[(?P<first>\d+):(?P<last>\d+)\])$")
NAMED = {"vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1), "m0": (M0, 1)}
NAMED |= {"exec": (EXEC, 2), "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1)}
NAMED |= {"flat_scratch": (102, 2), "xnack_mask": (104, 2)}
FLOAT = re.compile(r"^-?\d+\.\d+(e[-+]?\d+)?$")
INVERSE_TWO_PI = {"f16": 0x3118, "f32": 0x3E22F983, "f64": 0x3FC45F306DC9C882}


def constant_bits(text: str, kind: str) -> int | None:
    """The bits of an inline constant or literal, as wide as the operand; None for anything else.

    A floating-point inline constant in an integer instruction has its 32-bit (or 64-bit) encoding.
    """
    width = BITS[kind]
    # Literals that an inline constant could have said.
    if text.startswith("lit("):
        text = text[4:-1]
    if FLOAT.match(text):
        value = float(text)
        if text.startswith("0.15915"):
            return INVERSE_TWO_PI[kind if kind in INVERSE_TWO_PI else f"f{max(width, 32)}"]
        code = {"f16": "<e", "f64": "<d", "u64": "<d", "i64": "<d"}.get(kind, "<f")
        return int.from_bytes(struct.pack(code, value), "little") & ((1 << width) - 1)
    try:
        value = int(text, 0)
    except ValueError:
        return None
    if kind == "f64" and text.startswith("0x"):
        return value << 32
    # A 32-bit literal is sign-extended to a 64-bit integer operand, as inline constants are.
    if text.startswith("0x") and kind in ("u64", "i64") and value >> 31:
        raise UnsupportedError(f"literal {text} in a 64-bit operand")
    return value & ((1 << width) - 1)


class Operand:
    """One operand's text, taken apart: a register range or a constant, with its sign modifiers."""

    def __init__(self, text: str):
        self.text = text
        self.negative = self.absolute = self.sign_extend = False
        if text.startswith("sext("):
            self.sign_extend, text = True, text[5:-1]
        if text.startswith("-") and not re.match(r"^-\d", text):
            self.negative, text = True, text[1:]
        if text.startswith("neg("):
            self.negative, text = True, text[4:-1]
        if text.startswith("|"):
            self.absolute, text = True, text[1:-1]
        self.body = text
        self.kind, self.index, self.count = "constant", 0, 0
        if match := REGISTER.match(text):
            first = int(match["one"] or match["first"])
            last = int(match["one"] or match["last"])
            self.kind, self.index, self.count = match["kind"], first, last - first + 1
        elif text in NAMED:
            self.kind, (self.index, self.count) = "s", NAMED[text]

    @property
    def row(self) -> int:
        """The row of the register file."""
        return self.index + (ACCUMULATION if self.kind == "a" else 0)


class Instruction:
    """One decoded instruction. `run(wave)` executes it and returns the next instruction's index, or None for the
    following one; `kind` is its class for the counters."""

    def __init__(self, text: Text, address: int, arch: str):
        self.text = text
        self.arch = arch
        self.address = address
        self.mnemonic = text.mnemonic
        self.operands = [Operand(each) for each in text.operands]
        self.modifiers = dict(text.modifiers)
        self.reads = self.writes = 0
        self.kind = "other"
        self.is_look = False  # an LDS read that looks at a flag (schedule/polling.py)
        self.run = None
        self.dpp = crosslane.take_dpp(self.modifiers)
        self.sdwa = crosslane.take_sdwa(self.modifiers) if text.mnemonic.endswith("_sdwa") else None
        self.op_sel = self.bits("op_sel")
        self.op_sel_hi = self.bits("op_sel_hi")

    def at(self, address: int) -> "Instruction":
        """The same one at another place."""
        other = object.__new__(Instruction)
        other.__dict__.update(self.__dict__)
        other.address = address
        return other

    def bits(self, name: str) -> list[int] | None:
        value = self.modifiers.pop(name, None)
        return [int(each) for each in value.strip("[]").split(",")] if value is not None else None

    def flag(self, name: str) -> bool:
        return bool(self.modifiers.pop(name, False))

    def number(self, name: str) -> int:
        return int(str(self.modifiers.pop(name, "0")), 0)

    def note(self, operand: Operand, count: int, read: bool) -> None:
        """Enters `count` registers of an operand into the read or the written set."""
        if operand.kind == "constant":
            return
        if operand.count < count:
            raise UnsupportedError(f"operand {operand.text}: {count} registers expected")
        if operand.kind == "s" and 102 <= operand.index < VCC:
            raise UnsupportedError(f"register {operand.text}")
        bits = register_bits(operand.kind, operand.index, count)
        if read:
            self.reads |= bits
        else:
            self.writes |= bits

    # Scalars: Python integers.

    def scalar(self, position: int, width: int = 32):
        """A reader of a scalar operand of 32 or 64 bits: wave -> unsigned integer."""
        operand = self.operands[position]
        if operand.negative or operand.absolute:
            raise UnsupportedError(f"scalar operand {operand.text}")
        if operand.kind == "constant":
            value = {"src_scc": None}.get(operand.body, constant_bits(operand.body, f"u{width}"))
            if operand.body == "src_scc":
                return lambda wave: wave.scc
            if value is None:
                raise UnsupportedError(f"scalar operand {operand.text}")
            return lambda wave: value
        if operand.kind != "s":
            raise UnsupportedError(f"scalar operand {operand.text}")
        self.note(operand, width // 32, read=True)
        index = operand.index
        if index in (EXEC, EXEC + 1):
            shift = 32 * (index - EXEC)
            full = (1 << width) - 1
            return lambda wave: wave.exec >> shift & full
        if width == 32:
            return lambda wave: wave.s[index]
        return lambda wave: wave.s[index] | wave.s[index + 1] << 32

    def put_scalar(self, position: int, width: int = 32):
        """A writer of a scalar operand: (wave, unsigned integer of that width)."""
        operand = self.operands[position]
        if operand.kind != "s":
            raise UnsupportedError(f"scalar destination {operand.text}")
        self.note(operand, width // 32, read=False)
        index = operand.index
        if index in (EXEC, EXEC + 1):
            if width == 64:
                return lambda wave, value: wave.set_exec(value)
            shift = 32 * (index - EXEC)

            def put_half(wave, value):
                wave.set_exec(wave.exec & ~(LOW32 << shift) | value << shift)

            return put_half
        if width == 32:

            def put(wave, value):
                wave.s[index] = value

            return put

        def put_pair(wave, value):
            wave.s[index] = value & LOW32
            wave.s[index + 1] = value >> 32

        return put_pair

    def put_lanes(self, position: int):
        """A writer of a lane mask: (wave, 64 booleans); inactive lanes get 0."""
        put = self.put_scalar(position, 64)
        return lambda wave, lanes: put(wave, mask_of(lanes & wave.mask))

    # Vectors: arrays of 64 lanes.

    def half(self, position: int) -> int:
        """Which half a 16-bit source stands in, by op_sel."""
        return self.op_sel[position - 1] if self.op_sel else 0

    def words(self, position: int, offset: int = 0):
        """A reader of the dword `offset` of an operand as 64 unsigned integers, without modifiers."""
        operand = self.operands[position]
        if operand.kind in "va" and operand.count:
            row = operand.row + offset
            return lambda wave: wave.u32[row]
        scratch = np.zeros(LANES, np.uint32)
        if operand.kind == "constant" and operand.body != "src_scc":
            value = constant_bits(operand.body, "u32")
            if value is None:
                raise UnsupportedError(f"operand {operand.text}")
            scratch.fill(value)
            scratch.flags.writeable = False
            return lambda wave: scratch
        read = self.scalar_word(operand, offset)

        def broadcast(wave):
            scratch.fill(read(wave))
            return scratch

        return broadcast

    def scalar_word(self, operand: Operand, offset: int):
        index = operand.index + offset
        if operand.body == "src_scc":
            return lambda wave: wave.scc
        if index in (EXEC, EXEC + 1):
            return lambda wave: wave.exec >> 32 * (index - EXEC) & LOW32
        return lambda wave: wave.s[index]

    def source(self, position: int, kind: str):
        """A reader of an operand as 64 values of a type, its modifiers (sign, lanes, parts of a word) applied."""
        operand = self.operands[position]
        self.note(operand, max(1, BITS[kind] // 32), read=True)
        part = self.sdwa.sources[position - 1] if self.sdwa and position <= 2 else None
        lanes = self.dpp if position == 1 else None
        if (part is not None or lanes is not None) and operand.kind != "v" and lanes is not None:
            raise UnsupportedError(f"operand {operand.text} under DPP")
        if BITS[kind] == 64:
            read = self._wide(operand, position, kind)
        elif part is not None:
            read = crosslane.read_part(self.words(position), part, kind, operand.sign_extend)
        else:
            if operand.sign_extend:
                raise UnsupportedError(f"operand {operand.text}")
            read = self._narrow(operand, position, kind)
        if lanes is not None:
            read = lanes.reader(read)
        if operand.absolute or operand.negative:
            read = sign_modified(read, kind, operand)
        return read

    def _narrow(self, operand: Operand, position: int, kind: str):
        dtype = DTYPES[kind]
        if operand.kind == "constant" and operand.body != "src_scc":
            bits = constant_bits(operand.body, kind)
            if bits is None:
                raise UnsupportedError(f"operand {operand.text}")
            value = np.full(LANES, bits, f"u{BITS[kind] // 8}").view(dtype)
            value.flags.writeable = False
            return lambda wave: value
        if operand.kind in "va":
            row, half = operand.row, self.half(position)
            if kind == "f32":
                return lambda wave: wave.f32[row]
            if kind == "u32":
                return lambda wave: wave.u32[row]
            if kind == "i32":
                return lambda wave: wave.i32[row]
            if kind == "f16":
                return lambda wave: wave.f16[row][half::2]
            return lambda wave: wave.u16[row][half::2].view(dtype)
        words = self.words(position)
        if BITS[kind] == 16:
            half = self.half(position)
            return lambda wave: words(wave).view(dtype)[half::2]
        return lambda wave: words(wave).view(dtype)

    def _wide(self, operand: Operand, position: int, kind: str):
        dtype = DTYPES[kind]
        if operand.kind == "constant":
            bits = constant_bits(operand.body, kind)
            if bits is None:
                raise UnsupportedError(f"operand {operand.text}")
            value = np.full(LANES, bits, np.uint64).view(dtype)
            return lambda wave: value
        low, high = self.words(position), self.words(position, 1)
        scratch = np.zeros((LANES, 2), np.uint32)
        value = scratch.view(dtype)[:, 0]

        def read(wave):
            scratch[:, 0] = low(wave)
            scratch[:, 1] = high(wave)
            return value

        return read

    def put_vector(self, position: int, kind: str, keep_high: bool = False):
        """A writer of 64 values of a type to a VGPR (pair), for the active lanes, with clamp and omod for floats.

        16-bit results clear the other half, but for `keep_high` or op_sel's destination bit.
        """
        operand = self.operands[position]
        if operand.kind not in "va":
            raise UnsupportedError(f"vector destination {operand.text}")
        self.note(operand, max(1, BITS[kind] // 32), read=False)
        row = operand.row
        finish = self.output_modifier(kind)
        high = self.op_sel is not None and len(self.op_sel) == len(self.operands) and self.op_sel[-1]
        if self.sdwa:
            put = crosslane.part_writer(row, self.sdwa, kind)
            if self.sdwa.preserves:
                self.reads |= register_bits(operand.kind, operand.index, 1)
        elif BITS[kind] == 16:
            put = half_writer(row, high, keep_high or high)
            if keep_high or high:
                self.reads |= register_bits(operand.kind, operand.index, 1)
        elif BITS[kind] == 64:
            put = pair_writer(row)
        else:
            put = word_writer(row, kind)
        if self.dpp is not None:
            put = self.dpp.writer(put)
        if finish is None:
            return put
        return lambda wave, value: put(wave, finish(value))

    def output_modifier(self, kind: str):
        clamp = self.flag("clamp")
        scale = {"": None, "mul:2": 2.0, "mul:4": 4.0, "div:2": 0.5}[
            next((f"{name}:{self.modifiers.pop(name)}" for name in ("mul", "div") if name in self.modifiers), "")
        ]
        if not clamp and scale is None:
            return None
        if kind not in ("f64", "f32", "f16"):
            raise UnsupportedError(f"clamp or omod of a {kind} result")
        dtype = DTYPES[kind]

        def finish(value):
            if scale is not None:
                value = value * dtype(scale)
            if clamp:
                # DX10_CLAMP: NaN becomes 0.
                value = np.where(value > 0, np.minimum(value, dtype(1)), dtype(0))
            return value

        return finish
