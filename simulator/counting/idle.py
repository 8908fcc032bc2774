"""Which workgroups of a launch have work. Grids may be larger than what there is to do, and some return at once: a
sample must not take one of those for the mean, nor count them as busy.

A workgroup is idle if all its waves end without an access to global memory, but for scalar loads (of arguments, and of
tables that say what there is to do). One that sleeps is not: it waits for somebody. So each is run until its first
access, which is not done. A workgroup that finds out by a vector load that it has no work counts as busy; but not
where the kernel has matrix instructions: there loads may be of such tables, and work begins with the first of those.

Grids of up to WHOLE workgroups are looked at one by one. Of larger ones SPREAD are, one at random in each of as many
equal parts, and what the caller asks for. Where the outcome changes a few times only, idle workgroups are taken to be
neighbours, and the places are found by bisection. Otherwise each that was looked at stands for those up to the next.
"""

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from .counters import class_of
from .sharing import cut

WHOLE, SPREAD = 1024, 512
FEW = 8  # changes that are looked for; more are no boundaries
WRITES = ("vmem_store", "vmem_atomic")


class FirstAccesses:
    """Takes a Profile's place in a launch. `busy` are the workgroups that came to an access; all their waves end."""

    def start(self, launch) -> list:
        self.busy: set[int] = set()
        multiplies = any(ins.kind == "mfma" for ins in launch.program)
        return [self._cut(ins, multiplies) for ins in launch.program]

    def _cut(self, ins, multiplies: bool):
        kind = class_of(ins.mnemonic)
        works = ins.kind == "mfma" if multiplies else kind == "vmem_load"
        if works or kind in WRITES or ins.mnemonic == "s_sleep":
            return cut(ins, self._works)
        # The others of a workgroup that works need not go on.
        return cut(ins, self._ends) if kind in ("branch", "barrier") else ins

    def _works(self, wave) -> bool:
        self.busy.add(wave.workgroup.index)
        return True

    def _ends(self, wave) -> bool:
        return wave.workgroup.index in self.busy


@dataclass(frozen=True)
class Work:
    """What was found of a grid: the workgroups that were looked at, in order, and whether each has work."""

    grid: int
    looked: np.ndarray
    works: np.ndarray

    @property
    def idle(self) -> int:
        """Workgroups without work; 0 where none has any, as all are alike then."""
        spans = np.diff(self.looked, append=self.grid)
        idle = int(spans[~self.works].sum())
        return idle if self.works.any() else 0

    def has(self, group: int) -> bool:
        return not self.idle or bool(self.works[max(0, np.searchsorted(self.looked, group, "right") - 1)])

    def instead(self, groups: Iterable[int]) -> list[int]:
        """The groups of a sample; for each one without work the next one that has some, and is not in it yet."""
        groups, busy = list(groups), self.looked[self.works]
        found = {group for group in groups if self.has(group)}
        for group in groups:
            if group not in found:
                after = np.roll(busy, -int(np.searchsorted(busy, group))).tolist()
                found.update(itertools.islice((each for each in after if each not in found), 1))
        return sorted(found)


def survey(grid: int, run: Callable[[list[int]], set[int]], asked: Iterable[int] = ()) -> Work:
    """`run(groups)`: those of them that have work. `asked` are looked at in any case."""
    known: dict[int, bool] = {}

    def look(groups: list[int]) -> None:
        busy = run(groups)
        known.update((group, group in busy) for group in groups)

    if grid <= WHOLE:
        look(list(range(grid)))
    else:
        chosen, edges = random.Random(0), np.linspace(0, grid, SPREAD + 1).astype(int).tolist()
        spread = {chosen.randrange(low, high) for low, high in itertools.pairwise(edges)}
        look(sorted(spread | {0, grid // 2, grid - 1} | set(asked)))
        while gaps := _changes(known):
            if len(gaps) > FEW:
                break
            look([(low + high) // 2 for low, high in gaps])
    looked = np.array(sorted(known), np.int64)
    return Work(grid, looked, np.array([known[each] for each in looked.tolist()]))


def _changes(known: dict[int, bool]) -> list[tuple[int, int]]:
    """Neighbours that differ, with others between them."""
    order = sorted(known)
    return [(low, high) for low, high in itertools.pairwise(order) if known[low] != known[high] and high - low > 1]
