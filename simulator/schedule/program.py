"""A kernel's instructions, decoded once: the closures that the engine runs."""

import contextlib
import gc

from simulator.binary.code_object import CodeObject, Kernel
from simulator.binary.disassembly import Text, disassemble, parse_line
from simulator.faults import UnsupportedError
from simulator.isa import matrix, packed, scalar, scaled, vector
from simulator.isa.operands import Instruction
from simulator.isa.wave import ACCUMULATION, VECTOR_BIT
from simulator.memory import atomics, lds, vmem, waits

from .polling import mark_looks

# The programs that were asked for last, oldest first, of so many instructions: all of a library's would take gigabytes.
_programs: dict[tuple[str, str], list[Instruction]] = {}
MOST_INSTRUCTIONS = 200_000
# Kernels are much alike: seven of ten instructions stand somewhere else too, with the same words.
_decoded: dict[tuple[str, str], Instruction] = {}
OF_THEIR_ADDRESS = ("s_branch", "s_cbranch_", "s_getpc_")


def _builders(mnemonic: str):
    if mnemonic == "s_waitcnt":
        return (waits.build,)
    if mnemonic.startswith(("s_load_", "s_memrealtime", "s_buffer_", "global_", "flat_", "buffer_")):
        return vmem.build, atomics.build
    if mnemonic.startswith("s_"):
        return (scalar.build,)
    if mnemonic.startswith("ds_"):
        return (lds.build,)
    return matrix.build, packed.build, scaled.build, vector.build


def decode(line: str, address: int, arch: str) -> Instruction:
    """One instruction's closure; anything not understood is an UnsupportedError."""
    decoded = _decoded.get((arch, line))
    if decoded is None:
        decoded = _decode(parse_line(line), address, arch)
        if decoded.mnemonic.startswith(OF_THEIR_ADDRESS):
            return decoded
        _decoded[arch, line] = decoded
    return decoded.at(address)


def _decode(text: Text, address: int, arch: str) -> Instruction:
    ins = Instruction(text, address, arch)
    try:
        for build in _builders(text.mnemonic):
            ins.run = build(ins, text.mnemonic)
            if ins.run is not None:
                break
        else:
            raise UnsupportedError(f"instruction {text.mnemonic}")
        left = [name for name in ins.modifiers]
        if left or (ins.op_sel_hi and text.mnemonic.startswith("v_pk_")):
            raise UnsupportedError(f"modifier {', '.join(left)} of {text.mnemonic}")
    except UnsupportedError as error:
        raise UnsupportedError(f"{error.args[0]}: `{text.line}`") from None
    except (KeyError, IndexError, ValueError) as error:
        raise UnsupportedError(f"operands of `{text.line}` ({error!r})") from error
    ins.touched = ins.reads | ins.writes
    vectors = ins.touched >> VECTOR_BIT
    ins.vector_registers = (vectors & ((1 << ACCUMULATION) - 1)).bit_length(), (vectors >> ACCUMULATION).bit_length()
    return ins


def _check_registers(ins: Instruction, kernel: Kernel) -> None:
    """Vector registers beyond the kernel's allocation would belong to another wave."""
    ordinary, accumulation = ins.vector_registers
    if ordinary > kernel.accum_offset or accumulation > kernel.vgprs - kernel.accum_offset:
        raise UnsupportedError(f"`{ins.text.line}` uses a vector register beyond the kernel's {kernel.vgprs}")


@contextlib.contextmanager
def without_collection():
    """For what makes instructions by the thousand: else half of its time is Python's search for cycles among them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@without_collection()
def reachable(code: CodeObject, kernel: Kernel, entry: int) -> list[Instruction]:
    """The kernel's instructions from its entry on, in address order, branch targets resolved to positions."""
    lines = disassemble(code)
    found: dict[int, Instruction] = {}
    open_addresses = [entry]
    while open_addresses:
        address = open_addresses.pop()
        while address not in found:
            if address not in lines:
                raise UnsupportedError(f"no instruction at {address:#x} in {kernel.name}")
            try:
                ins = decode(lines[address], address, code.arch)
                _check_registers(ins, kernel)
            except UnsupportedError as error:
                error.where = f" at {address:#x} in {kernel.name}"
                raise
            found[address] = ins
            target = getattr(ins, "target", None)
            if target is not None:
                open_addresses.append(target)
            if ins.mnemonic in ("s_endpgm", "s_branch"):
                break
            address += ins.text.size
    order = sorted(found)
    position = {address: index for index, address in enumerate(order)}
    for index, address in enumerate(order):
        ins = found[address]
        if getattr(ins, "target", None) is not None:
            ins.target_index = position[ins.target]
        follows = index + 1 < len(order) and order[index + 1] == address + ins.text.size
        if not follows and ins.mnemonic not in ("s_endpgm", "s_branch"):
            raise UnsupportedError(f"execution runs past `{ins.text.line}` at {address:#x} in {kernel.name}")
    return [found[address] for address in order]


def program(code: CodeObject, kernel: Kernel) -> tuple[list[Instruction], int]:
    """(instructions, index of the first one)."""
    # With kernarg preload the first 256 bytes load what the hardware has put into registers already.
    entry = kernel.entry + (256 if kernel.preload_dwords[1] else 0)
    key = code.digest, kernel.name
    instructions = _programs.pop(key, None)
    if instructions is None:
        instructions = reachable(code, kernel, entry)
        mark_looks(instructions)
        room = MOST_INSTRUCTIONS - len(instructions)
        while _programs and sum(map(len, _programs.values())) > room:
            del _programs[next(iter(_programs))]
    _programs[key] = instructions
    return instructions, next(i for i, ins in enumerate(instructions) if ins.address == entry)
