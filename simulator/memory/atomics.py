"""Atomics on global memory: additions of integers, floats and packed halves.

Each lane's addition is rounded once, to nearest even, denormals kept (LLVM: memory-atomic-fadd-f32-denormal-support).
Lanes of one instruction that share an address take turns in their order; the hardware's order is not published.
"""

import numpy as np

from simulator.isa import conversions as convert
from simulator.isa import floats
from simulator.isa.operands import Instruction

from .transfers import Move, load_words, store_words
from .vmem import Addressing, aligned, issue, take_cache_bits

U32 = np.uint32


def _of_floats(kind):
    """An addition of dwords that hold floats of a type, one or two."""
    return lambda old, given: floats.add(old.view(kind), given.view(kind)).view(U32)


def _of_bfloats(old, given):
    # As float32, which holds every bfloat16, in the upper half.
    high = floats.add(*((each & U32(0xFFFF0000)).view(np.float32) for each in (old, given)))
    low = floats.add(*((each << U32(16)).view(np.float32) for each in (old, given)))
    return convert.f32_to_bf16(low) | convert.f32_to_bf16(high) << U32(16)


# name: the sum of two arrays of one dword
SUMS = {
    "add": np.add,
    "add_f32": _of_floats(np.float32),
    "pk_add_f16": _of_floats(np.float16),
    "pk_add_bf16": _of_bfloats,
}


def build(ins: Instruction, mnemonic: str):
    """The closure for an atomic, or None."""
    space, _, name = mnemonic.partition("_atomic_")
    if space not in ("global", "flat") or name not in SUMS:
        return None
    ins.kind = "vmem"
    flat, add = space == "flat", SUMS[name]
    cache_bits = take_cache_bits(ins)
    returns, everywhere = cache_bits["sc0"], cache_bits["sc1"]
    at = 1 if returns else 0
    where = Addressing(ins, at, flat)
    data, move = ins.operands[at + 1], Move(4)
    ins.note(data, 1, read=True)
    if returns:
        ins.note(ins.operands[0], 1, read=False)
    destination, source, bits = ins.operands[0].row, data.row, ins.writes

    def run(wave):
        lanes = wave.active_lanes()
        addresses = where.addresses(wave, lanes)
        if addresses.size:
            aligned(wave, addresses, move.size, lanes)
            wave.workgroup.launch.counters.global_access(wave.workgroup.index, addresses, move.size, write=True)
            given = load_words(wave, source, move, lanes)
            old = np.zeros(len(lanes), U32)
            launch = wave.workgroup.launch
            for region, positions, offsets in launch.memory.groups(addresses, move.size, lanes, write=True):
                if region.fine_grained:
                    region.atomic(wave, offsets, move.size, everywhere)
                if launch.coherence:
                    launch.coherence.atomic(wave, region, offsets, move.size)
                view = region.views[move.size]
                # Slices of one element: an addition looks at the dword's bits.
                for position, offset in zip(np.arange(len(lanes))[positions].tolist(), offsets.tolist()):
                    old[position] = view[offset]
                    view[offset] = add(old[position : position + 1], given[position : position + 1])[0]
            launch.progress += 1
            if returns:
                store_words(wave, destination, move, old, lanes)
        issue(wave, bits, flat=flat)

    return run
