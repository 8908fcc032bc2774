"""How workgroups that are in flight together share what their chiplet's L2 fetches, measured on their first accesses.

A sample of a few workgroups cannot tell. So the beginnings of all workgroups that one chiplet holds at once are run:
each wave ends after its first accesses to global memory. What they touched, and how often, is in the footprints.

It ends before an atomic, too: a counter of who comes last must be as it was when the launch itself runs.
"""

import copy
import itertools

from .counters import CHIPLETS, class_of

ACCESSES = 24  # of each wave to global memory: a few slabs of a GEMM's main loop


def in_flight(grid: int, units: int, resident: int, has_work=lambda group: True, chiplets: int = 1) -> list[int]:
    """The first workgroups of chiplet 0 with work, as many as its units hold: workgroups go to the chiplets in turn.
    Of the next chiplet, if the first one's have none. `chiplets`: of so many, where their work differs."""
    held = max(1, units // CHIPLETS * resident)
    groups = (filter(has_work, range(chiplet, grid, CHIPLETS)) for chiplet in range(CHIPLETS))
    some = filter(None, (list(itertools.islice(each, held)) for each in groups))
    return [group for each in itertools.islice(some, chiplets) for group in each]


def cut(ins, ends):
    """A copy of an instruction before which a wave ends where `ends(wave)`."""
    copied, inner = copy.copy(ins), ins.run

    def run(wave):
        if ends(wave):
            wave.ended = True
            return -1
        return inner(wave)

    copied.run = run
    return copied


class Beginnings:
    """Takes a Profile's place in a launch, and ends waves early. Waves that wait for one that ended end as well."""

    def __init__(self, accesses: int = ACCESSES):
        self.accesses = accesses

    def start(self, launch) -> list:
        self._done: dict[tuple[int, int], int] = {}
        self._closing: set[int] = set()
        return [self._cut(ins) for ins in launch.program]

    def _cut(self, ins):
        kind = class_of(ins.mnemonic)
        if ins.mnemonic == "s_sleep":
            return cut(ins, self._asleep)
        if kind == "vmem_atomic":
            return cut(ins, self._closes)
        return cut(ins, self._access) if kind in ("vmem_load", "vmem_store") else ins

    def _closes(self, wave) -> bool:
        self._closing.add(wave.workgroup.index)
        return True

    def _access(self, wave) -> bool:
        group = wave.workgroup.index
        count = self._done[group, wave.index] = self._done.get((group, wave.index), 0) + 1
        if count > self.accesses:
            self._closing.add(group)
        return count > self.accesses

    def _asleep(self, wave) -> bool:
        return wave.workgroup.index in self._closing
