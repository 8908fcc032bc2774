"""How workgroups that are in flight together share what their chiplet's L2 fetches, measured on their first accesses.

A sample of a few workgroups cannot tell. So the beginnings of all workgroups that one chiplet holds at once are run:
each wave ends after its first accesses to global memory. What they touched, and how often, is in the footprints.
"""

import copy

from .counters import CHIPLETS, class_of

ACCESSES = 24  # of each wave to global memory: a few slabs of a GEMM's main loop


def in_flight(grid: int, units: int, resident: int) -> list[int]:
    """The first workgroups of chiplet 0, as many as its units hold: workgroups go to the chiplets in turn."""
    return list(range(0, grid, CHIPLETS))[: max(1, units // CHIPLETS * resident)]


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
            limit = self._asleep
        elif kind in ("vmem_load", "vmem_store", "vmem_atomic"):
            limit = self._access
        else:
            return ins
        cut, inner = copy.copy(ins), ins.run

        def run(wave):
            if limit(wave):
                wave.ended = True
                return -1
            return inner(wave)

        cut.run = run
        return cut

    def _access(self, wave) -> bool:
        group = wave.workgroup.index
        count = self._done[group, wave.index] = self._done.get((group, wave.index), 0) + 1
        if count > self.accesses:
            self._closing.add(group)
        return count > self.accesses

    def _asleep(self, wave) -> bool:
        return wave.workgroup.index in self._closing
