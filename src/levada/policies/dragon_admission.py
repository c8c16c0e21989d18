"""Jobs that wait: who starts, for whom others shrink, and why the rest goes on waiting."""

from __future__ import annotations

import numpy as np

from levada.core.reasons import Code
from levada.core.types import WHOLE, Ints
from levada.policies.dragon_cycle import Cycle
from levada.policies.dragon_gang import NOWHERE, Gang, Layout, lay_out
from levada.policies.dragon_growth import add
from levada.policies.dragon_state import reached
from levada.policies.dragon_victims import Spare, victims_for

NOBODY: Ints = np.zeros(0, np.int64)


class Admission:
    """The second phase of a decision. Boards only lose room in it, so what has failed once fails again."""

    def __init__(self, cycle: Cycle, rank: Ints, starvation_s: float) -> None:
        self.cycle = cycle
        self.rank = rank
        self.starvation_s = starvation_s
        #: Room is kept for a job that has starved.
        self.makes_room = False
        #: The number of the first job that has starved and that no shrinking can help; -1 for none.
        self.in_vain = -1
        self._spare: Spare | None = None
        self._waiting: list[int] = []
        #: What has found no room now, with the size it asked for, and what finds none soon.
        self._full: set[tuple[Gang, int, int]] = set()
        self._full_soon: set[tuple[Gang, int]] = set()
        #: Shapes, with their minimum, that no shrinking can help.
        self._hopeless: set[tuple[Gang, int]] = set()
        self._why: dict[tuple[Gang, int], tuple[int, int]] = {}

    def run(self, waiting: list[int], *, may_shrink: bool) -> None:
        """Starts jobs in order, each where its servers and its minimum fit; makes room for the first that starves."""
        cycle, now = self.cycle, self.cycle.snap.now
        submitted = cycle.snap.jobs.submitted.tolist()
        desired = cycle.snap.jobs.desired.tolist()
        for row in ((cycle.count > 0) & (cycle.count < cycle.snap.jobs.min)).nonzero()[0].tolist():
            # Lost workers, through no decision of ours: up to its minimum it is as good as waiting.
            add(cycle, row, cycle.min[row] - int(cycle.count[row]), set())
        for row in waiting:
            gang, least = cycle.gang(row), cycle.min[row]
            want = max(least, min(cycle.max[row], desired[row]))
            layout = self._start(row, gang, want)
            if layout is None:
                continue
            self._waiting.append(row)
            if not reached(now, submitted[row], self.starvation_s):
                cycle.wake(submitted[row] + self.starvation_s)
            elif self._make_room(row, gang, least, may_shrink and not self.makes_room):
                continue
            self._explain(row, gang, least, layout)

    def _start(self, row: int, gang: Gang, want: int) -> Layout | None:
        """Starts a job; if that is impossible, how far it would get."""
        cycle, least = self.cycle, self.cycle.min[row]
        key = (gang, want, least)
        if key in self._full:
            return NOWHERE
        layout = lay_out(cycle.now, cycle.within_budget(gang, least), want, least)
        most = min(layout.workers, cycle.affordable(gang, layout.gpu_type)) if layout.workers else 0
        size = cycle.allowed_size(row, most)
        if size:
            cycle.start(row, layout.cut(size))
            return None
        self._full.add(key)
        return layout

    def _make_room(self, row: int, gang: Gang, least: int, may_shrink: bool) -> bool:
        """Keeps room for a job that starves, and lets others shrink for it; False where nothing helps."""
        cycle = self.cycle
        if (gang, least) in self._hopeless:
            return False
        layout = NOWHERE
        if cycle.soon is not cycle.now and (gang, least) not in self._full_soon:
            layout = lay_out(cycle.soon, cycle.within_budget(gang, least, NOBODY), least, least)
        if layout.workers < least:
            self._full_soon.add((gang, least))
            if not may_shrink:
                return False
            victims = victims_for(self.spare, gang, least)
            if victims is None:
                self._hopeless.add((gang, least))
                if self.in_vain < 0 and lay_out(cycle.empty, gang, least, least).workers >= least:
                    self.in_vain = int(cycle.snap.jobs.number[row])
                return False
            cycle.remove(victims)
            self._full_soon.clear()
            layout = lay_out(cycle.soon, gang, least, least)
        self.makes_room = True
        free_before = cycle.now.milli == WHOLE
        claimed = cycle.claim(layout, gang)
        cycle.reason[row] = int(Code.WAITS_FOR_DEVICES)
        cycle.evidence[row] = sum(int((~free_before[devices]).sum()) for _, devices in claimed)
        return True

    @property
    def spare(self) -> Spare:
        """Workers that could leave, as things stood when first asked for."""
        if self._spare is None:
            self._spare = Spare(self.cycle, self.rank)
        return self._spare

    def someone_could_be_helped(self) -> bool:
        """Whether shrinking could start a job that waits: growth now would only be undone."""
        if self.makes_room:
            return True
        for row in self._waiting:
            key = (self.cycle.gang(row), self.cycle.min[row])
            if key not in self._hopeless:
                if self.spare.could_help(*key):
                    return True
                self._hopeless.add(key)
        return False

    def _explain(self, row: int, gang: Gang, least: int, layout: Layout) -> None:
        cycle = self.cycle
        key = (gang, least)
        if key not in self._why:
            self._why[key] = self._reason(gang, least, layout)
        cycle.reason[row], cycle.evidence[row] = self._why[key]

    def _reason(self, gang: Gang, least: int, layout: Layout) -> tuple[int, int]:
        cycle = self.cycle
        if not gang.types:
            return int(Code.UNKNOWN_TYPE), 0
        at_most = lay_out(cycle.empty, gang, least, least).workers
        if at_most < least:
            # What is out of service may come back.
            inventory = cycle.snap.inventory
            whole = inventory.usable.all() and inventory.usable_nodes.all()
            return (Code.TOO_LARGE, at_most) if whole else (Code.CAPACITY, 0)
        if cycle.unclaimed is not None and lay_out(cycle.unclaimed, gang, least, least).workers >= least:
            return int(Code.RESERVED), 0
        each = gang.worker.devices
        if each and max(int(cycle.now.idle[t]) for t in gang.types) >= least * each:
            return int(Code.FRAGMENTED), layout.workers
        return int(Code.CAPACITY), 0
