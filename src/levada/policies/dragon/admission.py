"""Pending jobs: start them, let others shrink for them, or explain their wait."""

from __future__ import annotations

import numpy as np

from levada.core.reasons import Code
from levada.core.types import WHOLE, Ints
from levada.policies.dragon.cycle import Cycle
from levada.policies.dragon.gang import NOWHERE, GangLayout, GangRequest, lay_out
from levada.policies.dragon.growth import add
from levada.policies.dragon.preemption import SpareWorkers, victims_for
from levada.policies.dragon.state import reached

NO_MEMBERS: Ints = np.zeros(0, np.int64)


class Admission:
    """The second phase of a decision; the first phase is `serving`.

    Free capacity only shrinks during it, so a request that fails once fails again.
    """

    def __init__(self, cycle: Cycle, rank: Ints, starvation_s: float) -> None:
        self.cycle = cycle
        self.rank = rank
        self.starvation_s = starvation_s
        #: Room is reserved for a starving job.
        self.makes_room = False
        #: The number of the first starving job that shrinking cannot help; -1 for none.
        self.unhelpable = -1
        self._spare: SpareWorkers | None = None
        self._waiting: list[int] = []
        #: Requests without room now, with wanted size and minimum, and requests without room soon.
        self._full: set[tuple[GangRequest, int, int]] = set()
        self._full_soon: set[tuple[GangRequest, int]] = set()
        #: Requests, with their minimum, that shrinking cannot help.
        self._unhelpable: set[tuple[GangRequest, int]] = set()
        self._reasons: dict[tuple[GangRequest, int], tuple[int, int]] = {}

    def run(self, waiting: list[int], *, may_shrink: bool) -> None:
        """Start jobs in order; make room for the first one that starves.

        A job starts where its parameter servers and its minimum fit.
        """
        cycle, now = self.cycle, self.cycle.snap.now
        submitted = cycle.snap.jobs.submitted.tolist()
        desired = cycle.snap.jobs.desired.tolist()
        for row in ((cycle.count > 0) & (cycle.count < cycle.snap.jobs.min)).nonzero()[0].tolist():
            # The job lost workers through a failure; below its minimum it counts as pending.
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

    def _start(self, row: int, gang: GangRequest, want: int) -> GangLayout | None:
        """Start a job and return None; if that is impossible, its best layout."""
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

    def _make_room(self, row: int, gang: GangRequest, least: int, may_shrink: bool) -> bool:
        """Reserve room for a starving job, shrinking others; False if nothing helps."""
        cycle = self.cycle
        if (gang, least) in self._unhelpable:
            return False
        layout = NOWHERE
        if cycle.soon is not cycle.now and (gang, least) not in self._full_soon:
            layout = lay_out(cycle.soon, cycle.within_budget(gang, least, NO_MEMBERS), least, least)
        if layout.workers < least:
            self._full_soon.add((gang, least))
            if not may_shrink:
                return False
            victims = victims_for(self.spare, gang, least)
            if victims is None:
                self._unhelpable.add((gang, least))
                if self.unhelpable < 0 and lay_out(cycle.empty, gang, least, least).workers >= least:
                    self.unhelpable = int(cycle.snap.jobs.number[row])
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
    def spare(self) -> SpareWorkers:
        """Workers that could leave, computed at the first access."""
        if self._spare is None:
            self._spare = SpareWorkers(self.cycle, self.rank)
        return self._spare

    def shrinking_could_help(self) -> bool:
        """Whether shrinking could start a pending job, so that growth would be undone."""
        if self.makes_room:
            return True
        for row in self._waiting:
            key = (self.cycle.gang(row), self.cycle.min[row])
            if key not in self._unhelpable:
                if self.spare.could_help(*key):
                    return True
                self._unhelpable.add(key)
        return False

    def _explain(self, row: int, gang: GangRequest, least: int, layout: GangLayout) -> None:
        cycle = self.cycle
        key = (gang, least)
        if key not in self._reasons:
            self._reasons[key] = self._reason(gang, least, layout)
        cycle.reason[row], cycle.evidence[row] = self._reasons[key]

    def _reason(self, gang: GangRequest, least: int, layout: GangLayout) -> tuple[int, int]:
        cycle = self.cycle
        if not gang.types:
            return int(Code.UNKNOWN_TYPE), 0
        at_most = lay_out(cycle.empty, gang, least, least).workers
        if at_most < least:
            # Devices that are out of service may return.
            inventory = cycle.snap.inventory
            whole = inventory.usable.all() and inventory.usable_nodes.all()
            return (Code.TOO_LARGE, at_most) if whole else (Code.CAPACITY, 0)
        if cycle.unclaimed is not None and lay_out(cycle.unclaimed, gang, least, least).workers >= least:
            return int(Code.RESERVED), 0
        devices = gang.worker.devices
        if devices and max(int(cycle.now.idle[t]) for t in gang.types) >= least * devices:
            return int(Code.INELIGIBLE_NODES if gang.worker.node_class else Code.FRAGMENTED), layout.workers
        return int(Code.CAPACITY), 0
