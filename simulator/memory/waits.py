"""s_waitcnt: which outstanding operations are certain to be done.

Vector memory operations finish in the order of issue. Under lgkmcnt, LDS operations finish in order among each other,
scalar loads in any order, so these are certain only at lgkmcnt(0).
"""

from simulator.isa.operands import Instruction

NO_WAIT_VM, NO_WAIT_LGKM = 63, 15


def _finish(wave, done: list[tuple]) -> None:
    for _, _, deferred in done:
        if deferred is not None:
            deferred()
    pending = 0
    for _, bits, _ in wave.vm:
        pending |= bits
    for _, bits, _ in wave.lgkm:
        pending |= bits
    wave.pending = pending


def lds_outstanding(wave) -> bool:
    return any(entry[0] == "lds" for entry in wave.lgkm)


def wait_vm(wave, count: int) -> None:
    if len(wave.vm) > count:
        cut = len(wave.vm) - count
        done, wave.vm = wave.vm[:cut], wave.vm[cut:]
        _finish(wave, done)


def wait_lgkm(wave, count: int) -> None:
    if len(wave.lgkm) <= count:
        return
    if count == 0:
        done, wave.lgkm = wave.lgkm, []
    else:
        in_order = [at for at, entry in enumerate(wave.lgkm) if entry[0] == "lds"]
        finished = set(in_order[: max(0, len(in_order) - count)])
        done = [wave.lgkm[at] for at in finished]
        wave.lgkm = [entry for at, entry in enumerate(wave.lgkm) if at not in finished]
    _finish(wave, done)
    races = wave.workgroup.lds.races
    if races and not lds_outstanding(wave):
        races.waited(wave.index)


def allowed(ins: Instruction) -> tuple[int, int]:
    """How many operations may be outstanding: (vmcnt, lgkmcnt)."""
    immediate = ins.text.words[0] & 0xFFFF
    return immediate & 15 | immediate >> 14 << 4, immediate >> 8 & 15


def build(ins: Instruction, mnemonic: str):
    ins.kind = "wait"
    vm, lgkm = allowed(ins)

    def run(wave):
        if vm != NO_WAIT_VM:
            wait_vm(wave, vm)
        if lgkm != NO_WAIT_LGKM:
            wait_lgkm(wave, lgkm)

    return run
