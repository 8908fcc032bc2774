"""VOP3P: packed halves and packed single precision, and single precision of halves (v_fma_mix)."""

import numpy as np

from simulator.faults import UnsupportedError

from . import conversions as convert
from . import floats
from .operands import FLOAT, Instruction, constant_bits
from .registers import DTYPES, half_writer
from .wave import LANES

U16 = np.uint16

# name: (element type, number of sources, function)
PACKED = {
    "v_pk_add_f16": ("f16", 2, floats.add),
    "v_pk_mul_f16": ("f16", 2, floats.multiply),
    "v_pk_add_f32": ("f32", 2, floats.add),
    "v_pk_mul_f32": ("f32", 2, floats.multiply),
    "v_pk_fma_f32": ("f32", 3, floats.fma32),
    "v_pk_max_i16": ("i16", 2, np.maximum),
    "v_pk_max_u16": ("u16", 2, np.maximum),
}


class Halves:
    """The modifiers of a packed instruction: which half of each source feeds each half of the result, and its sign."""

    def __init__(self, ins: Instruction, count: int):
        self.low = (ins.op_sel or [0] * count)[:count]
        self.high = (ins.op_sel_hi or [1] * count)[:count]
        self.negate_low = (ins.bits("neg_lo") or [0] * count)[:count]
        self.negate_high = (ins.bits("neg_hi") or [0] * count)[:count]
        ins.op_sel = ins.op_sel_hi = None

    def plain(self, index: int) -> bool:
        chosen = self.low[index], self.high[index], self.negate_low[index], self.negate_high[index]
        return chosen == (0, 1, 0, 0)

    def sides(self, index: int):
        """(half, negate) for the low and for the high result."""
        return (self.low[index], self.negate_low[index]), (self.high[index], self.negate_high[index])


def packed_word(ins: Instruction, position: int, kind: str):
    """A reader of an operand's dword as 64 × 2 halves, interleaved, before op_sel."""
    operand = ins.operands[position]
    ins.note(operand, 1, read=True)
    dtype = DTYPES[kind]
    if operand.kind == "constant":
        # A constant stands in the low half; floating-point ones leave the high half 0, integers are sign-extended.
        if FLOAT.match(operand.body):
            bits = constant_bits(operand.body, "f16" if kind == "f16" else "f32")
        else:
            bits = constant_bits(operand.body, "u32")
        if bits is None:
            raise UnsupportedError(f"operand {operand.text}")
        value = np.full(LANES, bits, np.uint32).view(dtype)
        return lambda wave: value
    words = ins.words(position)
    return lambda wave: words(wave).view(dtype)


def _source16(ins: Instruction, position: int, kind: str, halves: Halves):
    read = packed_word(ins, position, kind)
    index = position - 1
    if halves.plain(index):
        return read
    (low, negate_low), (high, negate_high) = halves.sides(index)
    if kind != "f16" and (negate_low or negate_high):
        raise UnsupportedError(f"sign modifier in {ins.text.line}")
    signs = np.array([negate_low << 15, negate_high << 15], U16)

    def chosen(wave):
        pairs = read(wave).view(U16).reshape(LANES, 2)[:, [low, high]]
        return (pairs ^ signs).reshape(-1).view(DTYPES[kind])

    return chosen


def _packed16(ins: Instruction, name: str):
    kind, count, function = PACKED[name]
    halves = Halves(ins, count)
    sources = [_source16(ins, position + 1, kind, halves) for position in range(count)]
    finish = ins.output_modifier(kind)
    put = ins.put_vector(0, "u32")

    def run(wave):
        value = function(*[source(wave) for source in sources])
        if finish:
            value = finish(value)
        put(wave, value.view(np.uint32))

    return run


def _word_of_pair(ins: Instruction, position: int, half: int, negate: int):
    operand = ins.operands[position]
    if operand.kind == "constant" and half and operand.body != "0":  # what it is of another nobody says
        raise UnsupportedError(f"the upper half of constant {operand.text} in {ins.text.line}")
    ins.note(operand, 2, read=True)
    words = ins.words(position, half)
    if negate:
        return lambda wave: (words(wave) ^ np.uint32(1 << 31)).view(np.float32)
    return lambda wave: words(wave).view(np.float32)


def _packed32(ins: Instruction, name: str):
    kind, count, function = PACKED[name]
    halves = Halves(ins, count)
    sides = [
        [_word_of_pair(ins, position + 1, *halves.sides(position)[side]) for position in range(count)]
        for side in (0, 1)
    ]
    finish = ins.output_modifier(kind)
    operand = ins.operands[0]
    ins.note(operand, 2, read=False)
    row = operand.row

    def run(wave):
        # Both results before either is written: the destination may be a source.
        low, high = (function(*[source(wave) for source in side]) for side in sides)
        if finish:
            low, high = finish(low), finish(high)
        np.copyto(wave.f32[row], low, where=wave.mask)
        np.copyto(wave.f32[row + 1], high, where=wave.mask)

    return run


def _packed_move(ins: Instruction, name: str):
    """v_pk_mov_b32: op_sel[0] chooses the low result's word in source 0, op_sel[1] the high one's in source 1."""
    low, high = (ins.op_sel or [0, 0])[:2]
    ins.op_sel = ins.op_sel_hi = None
    for position in (1, 2):
        ins.note(ins.operands[position], 2, read=True)
    a, b = ins.words(1, low), ins.words(2, high)
    operand = ins.operands[0]
    ins.note(operand, 2, read=False)
    row = operand.row

    def run(wave):
        first, second = a(wave).copy(), b(wave).copy()
        np.copyto(wave.u32[row], first, where=wave.mask)
        np.copyto(wave.u32[row + 1], second, where=wave.mask)

    return run


def _mixed_source(ins: Instruction, position: int, half: int):
    """A float32, or with `half` one half of a dword widened; sign modifiers act before."""
    if not half:
        return ins.source(position, "f32")
    operand = ins.operands[position]
    if operand.kind == "constant" and operand.body != "0":  # which type it has nobody says
        raise UnsupportedError(f"constant {operand.text} as a half in {ins.text.line}")
    read = ins.source(position, "f16")
    return lambda wave: convert.f16_to_f32(np.ascontiguousarray(read(wave)))


def _mixed(ins: Instruction, name: str):
    """v_fma_mix: op_sel_hi says which sources are halves, op_sel in which half each of those stands. The result is a
    float32, or rounded once more to the low or high half of its register, whose other half stays."""
    halves = ins.op_sel_hi or [0, 0, 0]
    ins.op_sel_hi = None
    sources = [_mixed_source(ins, position + 1, half) for position, half in enumerate(halves)]
    ins.op_sel = None  # it has no bit for the destination
    kind = name[-3:]
    if kind == "f32":
        put = ins.put_vector(0, kind)
        return lambda wave: put(wave, floats.fma32(*(source(wave) for source in sources)))
    operand, finish = ins.operands[0], ins.output_modifier(kind)
    ins.note(operand, 1, read=True)
    ins.note(operand, 1, read=False)
    put = half_writer(operand.row, int(name == "v_fma_mixhi_f16"), keep=True)

    def run(wave):
        value = convert.f32_to_f16(floats.fma32(*(source(wave) for source in sources)))
        put(wave, finish(value) if finish else value)

    return run


HANDLERS = {
    **{name: _packed32 if kind == "f32" else _packed16 for name, (kind, _, _) in PACKED.items()},
    "v_pk_mov_b32": _packed_move,
    **dict.fromkeys(["v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"], _mixed),
}


def build(ins: Instruction, name: str):
    """The closure for a packed instruction, or None if it is not one of this file's."""
    ins.kind = "valu"
    return HANDLERS[name](ins, name) if name in HANDLERS else None
