"""VOP1, VOP2, VOP3 and VOPC: vector arithmetic, mostly from vector_tables.py; here what needs more than a function."""

import numpy as np

from simulator.faults import UnsupportedError

from . import conversions as convert
from . import doubles, floats
from .operands import Instruction
from .registers import DTYPES
from .vector_tables import I64, ONLY_GFX950, OPERATIONS, RELATIONS, SATURATING, U32, saturated
from .wave import LANES, VCC, lanes_of, mask_of


def base_name(mnemonic: str) -> str:
    for suffix in ("_e32", "_e64", "_dpp", "_sdwa"):
        mnemonic = mnemonic.removesuffix(suffix)
    return mnemonic


def closure(function, sources, put):
    """wave -> None, applying `function` to the sources; written out by arity for speed."""
    if len(sources) == 1:
        (a,) = sources
        return lambda wave: put(wave, function(a(wave)))
    if len(sources) == 2:
        a, b = sources
        return lambda wave: put(wave, function(a(wave), b(wave)))
    a, b, c = sources
    return lambda wave: put(wave, function(a(wave), b(wave), c(wave)))


def _from_table(ins: Instruction, name: str):
    result, kinds, function = OPERATIONS[name]
    # Where SDWA cuts the result to a part, nobody says at which ends clamp stops: refused by put_vector.
    if name in SATURATING and not ins.sdwa and ins.flag("clamp"):
        function = saturated(function, DTYPES[result])
    sources = [ins.source(position + 1, kind) for position, kind in enumerate(kinds)]
    return closure(function, sources, ins.put_vector(0, result))


def _compare(ins: Instruction, name: str):
    writes_exec = name.startswith("v_cmpx_")
    _, _, relation, kind = name.split("_")
    holds = RELATIONS[relation]
    if relation == "class":
        if kind != "f32":
            raise UnsupportedError(name)
        a, b = ins.source(1, kind), ins.source(2, "u32")
    else:
        a, b = ins.source(1, kind), ins.source(2, kind)
    put = ins.put_lanes(0)

    def run(wave):
        lanes = holds(a(wave), b(wave))
        put(wave, lanes)
        if writes_exec:
            wave.set_exec(wave.exec & mask_of(lanes))

    return run


def _multiply_add(ins: Instruction, name: str):
    """v_fmac: the destination is the addend. v_fmaak_f32 and v_fmamk_f32 carry a literal."""
    kind = name[-3:]
    accumulates = name.startswith("v_fmac")
    if accumulates:
        ins.operands.append(ins.operands[0])
    sources = [ins.source(position, kind) for position in (1, 2, 3)]
    if accumulates:
        ins.operands.pop()
    return closure(floats.fma32 if kind == "f32" else doubles.fma64, sources, ins.put_vector(0, kind))


def _select(ins: Instruction, name: str):
    kind = "u32" if name.endswith("b32") else "u16"
    # With a sign modifier its sources are floats.
    modified = any(each.negative or each.absolute for each in ins.operands[1:3])
    source_kind = "f32" if modified and kind == "u32" else kind
    a, b = ins.source(1, source_kind), ins.source(2, source_kind)
    condition = ins.scalar(3, 64)
    put = ins.put_vector(0, kind)

    def run(wave):
        value = np.where(lanes_of(condition(wave)), b(wave), a(wave))
        put(wave, value.view(U32) if source_kind == "f32" else value)

    return run


CARRY = {
    "v_add_co_u32": (lambda a, b, c: a + b, False),
    "v_sub_co_u32": (lambda a, b, c: a - b, False),
    "v_subrev_co_u32": (lambda a, b, c: b - a, False),
    "v_addc_co_u32": (lambda a, b, c: a + b + c, True),
    "v_subb_co_u32": (lambda a, b, c: a - b - c, True),
    "v_subbrev_co_u32": (lambda a, b, c: b - a - c, True),
}


def _carry(ins: Instruction, name: str):
    """dst, carry out, a, b[, carry in]; computed in 64 bits, whose upper half tells the carry or borrow."""
    compute, takes_carry = CARRY[name]
    if ins.sdwa or ins.dpp:
        raise UnsupportedError(f"{ins.mnemonic}: DPP and SDWA of carry instructions")
    a, b = ins.source(2, "u32"), ins.source(3, "u32")
    carry_in = ins.scalar(4, 64) if takes_carry else None
    put, put_carry = ins.put_vector(0, "u32"), ins.put_lanes(1)

    def run(wave):
        carry = lanes_of(carry_in(wave)).astype(I64) if carry_in else 0
        value = compute(a(wave).astype(I64), b(wave).astype(I64), carry)
        put(wave, value.astype(U32))
        put_carry(wave, value >> 32 != 0)

    return run


def _mad_64(ins: Instruction, name: str):
    """v_mad_u64_u32 and v_mad_i64_i32: dst pair, bit 64 of the sum, a, b, c pair."""
    kind, wide = ("i32", np.int64) if name == "v_mad_i64_i32" else ("u32", np.uint64)
    a, b, c = ins.source(2, kind), ins.source(3, kind), ins.source(4, f"{kind[0]}64")
    put, put_bit = ins.put_vector(0, f"{kind[0]}64"), ins.put_lanes(1)

    def run(wave):
        product, added = a(wave).astype(wide) * b(wave), c(wave)
        total = product + added
        put(wave, total)
        if kind == "u32":
            put_bit(wave, total < product)
        else:  # the sign of the sum, were it not cut to 64 bits
            put_bit(wave, (total ^ ((product ^ total) & (added ^ total))) < 0)

    return run


def _division_scale(ins: Instruction, name: str):
    sources = [ins.source(position, "f32") for position in (2, 3, 4)]
    put, put_flag = ins.put_vector(0, "f32"), ins.put_lanes(1)

    def run(wave):
        with np.errstate(all="ignore"):
            value, flag = floats.division_scale(*(source(wave) for source in sources))
        put(wave, value)
        put_flag(wave, flag)

    return run


def _division_fmas(ins: Instruction, name: str):
    a, b, c = (ins.source(position, "f32") for position in (1, 2, 3))
    put = ins.put_vector(0, "f32")
    ins.reads |= 3 << VCC

    def run(wave):
        put(wave, floats.division_fmas(a(wave), b(wave), c(wave), lanes_of(wave.pair(VCC))))

    return run


def _pack_bytes(ins: Instruction, name: str):
    """v_cvt_pk_fp8_f32: two bytes into the half that op_sel names."""
    kind = convert.FP8[ins.arch]
    half = ins.op_sel[-1] if ins.op_sel else 0
    ins.op_sel = [0, 0, half] if ins.op_sel else None
    a, b = ins.source(1, "f32"), ins.source(2, "f32")
    ins.op_sel = None
    operand = ins.operands[0]
    ins.note(operand, 1, read=True)
    ins.note(operand, 1, read=False)
    row = operand.row

    def run(wave):
        clamp = wave.fp16_overflow_clamps
        low, high = (convert.f32_to_byte(np.ascontiguousarray(v(wave)), kind, clamp) for v in (a, b))
        np.copyto(wave.u16[row][half::2], (low | high << U32(8)).astype(np.uint16), where=wave.mask)

    return run


def _unpack_bytes(ins: Instruction, name: str):
    """v_cvt_f32_fp8 and v_cvt_pk_f32_fp8: the byte, or the two, by SDWA or op_sel."""
    table = convert.DECODE[convert.FP8[ins.arch]]
    part = ins.sdwa.sources[0] if ins.sdwa else None
    shift = part.shift if part else 0
    if ins.op_sel:
        shift = 16 * ins.op_sel[0] + (8 * ins.op_sel[1] if len(ins.op_sel) > 1 else 0)
    if (ins.sdwa and ins.sdwa.destination) or ins.dpp:
        raise UnsupportedError(ins.text.line)
    ins.sdwa = ins.op_sel = None
    a, shift = ins.source(1, "u32"), U32(shift)
    if name == "v_cvt_f32_fp8":
        put = ins.put_vector(0, "f32")
        return lambda wave: put(wave, table[a(wave) >> shift & U32(0xFF)])
    operand = ins.operands[0]
    ins.note(operand, 2, read=False)
    row = operand.row

    def run(wave):
        codes = a(wave) >> shift  # before the destination, which may be the source, is written
        for i, each in enumerate((codes & U32(0xFF), codes >> U32(8) & U32(0xFF))):
            np.copyto(wave.f32[row + i], table[each], where=wave.mask)

    return run


def _lane_access(ins: Instruction, name: str):
    if name == "v_writelane_b32":
        value, lane = ins.scalar(1), ins.scalar(2)
        operand = ins.operands[0]
        ins.note(operand, 1, read=True)
        ins.note(operand, 1, read=False)
        row = operand.row

        def write(wave):
            wave.u32[row][lane(wave) & 63] = value(wave)

        return write
    a, put = ins.source(1, "u32"), ins.put_scalar(0)
    if name == "v_readlane_b32":
        lane = ins.scalar(2)
        return lambda wave: put(wave, int(a(wave)[lane(wave) & 63]))

    def first(wave):
        # With no lane active, lane 0.
        lane = (wave.exec & -wave.exec).bit_length() - 1 if wave.exec else 0
        put(wave, int(a(wave)[lane]))

    return first


def _swap(ins: Instruction, name: str):
    for operand in ins.operands:
        ins.note(operand, 1, read=True)
        ins.note(operand, 1, read=False)
    a, b = (operand.row for operand in ins.operands)

    def run(wave):
        old = wave.u32[a].copy()
        np.copyto(wave.u32[a], wave.u32[b], where=wave.mask)
        np.copyto(wave.u32[b], old, where=wave.mask)

    return run


def _bit_operation(ins: Instruction, name: str):
    """gfx950's v_bitop3: any function of three bits, by its truth table."""
    kind, dtype = ("u16", np.uint16) if name.endswith("b16") else ("u32", U32)
    table = ins.number("bitop3")
    sources = [ins.source(position, kind) for position in (1, 2, 3)]
    put = ins.put_vector(0, kind)

    def run(wave):
        values = [source(wave) for source in sources]
        result = np.zeros(LANES, dtype)
        for index in range(8):
            if table >> index & 1:
                a, b, c = (value if index >> 2 - i & 1 else ~value for i, value in enumerate(values))
                result |= a & b & c
        put(wave, result)

    return run


SPECIAL = {
    **dict.fromkeys(CARRY, _carry),
    **dict.fromkeys(["v_mad_u64_u32", "v_mad_i64_i32"], _mad_64),
    **dict.fromkeys(["v_fmac_f32", "v_fmac_f64", "v_fmaak_f32", "v_fmamk_f32"], _multiply_add),
    **dict.fromkeys(["v_readlane_b32", "v_readfirstlane_b32", "v_writelane_b32"], _lane_access),
    "v_cvt_pk_fp8_f32": _pack_bytes,
    **dict.fromkeys(["v_cvt_f32_fp8", "v_cvt_pk_f32_fp8"], _unpack_bytes),
    "v_cndmask_b32": _select,
    "v_swap_b32": _swap,
    "v_div_scale_f32": _division_scale,
    "v_div_fmas_f32": _division_fmas,
    **dict.fromkeys(["v_bitop3_b16", "v_bitop3_b32"], _bit_operation),
}  # fmt: skip


def build(ins: Instruction, mnemonic: str):
    """The closure for a vector instruction, or None if it is not one of this file's."""
    ins.kind = "valu"
    name = base_name(mnemonic)
    if name in ONLY_GFX950 and ins.arch != "gfx950":
        raise UnsupportedError(f"{name} on {ins.arch}")
    if name == "v_nop":
        return lambda wave: None
    if name in SPECIAL:
        return SPECIAL[name](ins, name)
    if name in OPERATIONS:
        return _from_table(ins, name)
    if name.startswith(("v_cmp_", "v_cmpx_")) and name.split("_")[2] in ("f", "t", "tru"):
        raise UnsupportedError(name)
    if name.startswith(("v_cmp_", "v_cmpx_")):
        return _compare(ins, name)
    return None
