"""DRAGON as published: decisions that the original could take, minus its crashes.

Source: as `dragon`; the rules follow its code, not its paper. The original visits nodes, devices and workers in random
order; here they are visited by number, so each decision is a possible one of the original.


    want = the first serving pod, else the minimum of the first pending job (without servers) after `starvation_s`
    if want: shrink for it, oldest job first, all or nothing; if that fails, start nothing. Reset the clock either way
    start one job, or bind the pod, on capacity that was free before; reset the clock
    after `idle_s` without a reset: grow node by node, the oldest job first, and reset the clock


Needs only the jobs and the nodes. Deviation: with `clamp` (the default; the engine requires it) no job starts or grows
beyond its maximum; without it both happen, as in the original.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from levada.core.decision import Bind, Decision
from levada.core.reasons import Code
from levada.core.types import WHOLE, Ints
from levada.perf.model import ThroughputModel
from levada.policies.dragon.capacity import FreeCapacity
from levada.policies.dragon.cycle import Cycle
from levada.policies.dragon.free import Free, free
from levada.policies.dragon.gang import (
    NOWHERE,
    GangLayout,
    GangRequest,
    Spot,
    by_free_part,
    pod_request,
    room_beside,
)
from levada.policies.dragon.preemption import shortest, units_of
from levada.policies.dragon.state import DragonState, admission_order, reached
from levada.policies.options import number_above
from levada.policies.protocol import NO_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.tables.snapshot import Snapshot


class DragonCompat:
    """The original DRAGON, made deterministic."""

    name: ClassVar[str] = "dragon-compat"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = NO_GUARDS
    #: It places workers and makes room for serving pods itself.
    by_node: ClassVar[bool] = True
    elastic: ClassVar[bool] = True

    def __init__(self, *, starvation_s: Any = 30.0, idle_s: Any = 60.0, clamp: bool = True) -> None:
        self.starvation_s = number_above("starvation_s", starvation_s, 0)
        self.idle_s = number_above("idle_s", idle_s, 0)
        self.clamp = clamp

    def initial(self, seed: int) -> DragonState:
        """No decision has been made yet."""
        return DragonState()

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: DragonState) -> tuple[Decision, DragonState]:
        """One cycle: shrink for one request, start or bind one, grow."""
        now, submitted = snap.now, snap.jobs.submitted
        capacity = _original_view(snap)
        cycle = Cycle(snap, Free(capacity, capacity))
        order = admission_order(snap, state.admitted)
        row_of = {number: row for row, number in enumerate(snap.jobs.number.tolist())}
        running = [row_of[number] for number in order if number in row_of]
        waiting = (cycle.count == 0).nonzero()[0].tolist()
        clock = now if state.last_action is None else state.last_action

        want: tuple[GangRequest, int] | None = None
        if snap.serving:
            want = pod_request(snap.inventory, snap.serving[0]), 1
        elif waiting and reached(now, submitted[waiting[0]], self.starvation_s):
            want = cycle.gang(waiting[0])._replace(servers=0), cycle.min[waiting[0]]
        victims: Ints | None = np.zeros(0, np.int64)
        if want is not None:
            victims = _shrink(cycle, running, *want)
            clock = now
        if victims is None or snap.serving:
            # No job overtakes a starving head of the queue, or a serving pod.
            cycle.reason[waiting if snap.serving else waiting[1:]] = int(Code.RESERVED)
        if victims is not None:
            if snap.serving and want is not None:
                _bind(cycle, want[0])
            elif self._start_one(cycle, waiting):
                clock = now
            cycle.remove(victims)
        if reached(now, clock, self.idle_s):
            self._grow(cycle, running)
            clock = now
        else:
            cycle.wake(clock + self.idle_s)
        if waiting and want is None:
            cycle.wake(float(submitted[waiting[0]]) + self.starvation_s)
        admitted = (*order, *snap.jobs.number[cycle.started].tolist())
        return cycle.decision(), DragonState(last_action=clock, admitted=admitted)

    def _start_one(self, cycle: Cycle, waiting: list[int]) -> bool:
        """Start the first job in order whose servers and minimum fit."""
        desired = cycle.snap.jobs.desired.tolist()
        tried: dict[tuple[GangRequest, int, int], GangLayout] = {}
        for i, row in enumerate(waiting):
            gang, want, least = cycle.gang(row), desired[row], cycle.min[row]
            if self.clamp:
                want = max(least, min(want, cycle.max[row]))
            key = (gang, want, least)
            if key not in tried:
                tried[key] = place(cycle.now, gang, want, least)
            layout = tried[key]
            workers = layout.workers
            if self.clamp and workers:
                workers = cycle.allowed_size(row, min(workers, cycle.affordable(gang, layout.gpu_type)))
            if workers >= least:
                cycle.start(row, layout.cut(workers))
                self._explain(cycle, waiting[i + 1 :])
                return True
        return False

    def _explain(self, cycle: Cycle, waiting: list[int]) -> None:
        """The reasons of jobs after the one that starts: no room beside it, or next."""
        known: dict[tuple[GangRequest, int], tuple[int, int]] = {}
        for row in waiting:
            key = (cycle.gang(row), cycle.min[row])
            if key not in known:
                known[key] = self._reason(cycle, *key)
            cycle.reason[row], cycle.evidence[row] = known[key]

    def _reason(self, cycle: Cycle, gang: GangRequest, least: int) -> tuple[int, int]:
        capacity, worker = cycle.now, gang.worker
        layout = place(capacity, gang, least, least)
        if layout.workers and (not self.clamp or cycle.affordable(gang, layout.gpu_type) >= least):
            return int(Code.NEW), 0
        room = max((int(np.minimum(capacity.room(worker, t), least).sum()) for t in gang.types), default=0)
        idle = max((int(capacity.idle[t]) for t in gang.types), default=0)
        if worker.devices and room < least and idle >= least * worker.devices:
            return int(Code.FRAGMENTED), room
        return int(Code.CAPACITY), 0

    def _grow(self, cycle: Cycle, running: list[int]) -> None:
        """Node by node to the oldest job until it is full, then to the next."""
        capacity, i = cycle.now, 0
        before = cycle.count.copy()
        for node in range(len(capacity.first)):
            while i < len(running):
                row = running[i]
                gang, gpu_type = cycle.gang(row), int(cycle.type[row])
                # The original does not count the workers added in this call, so it exceeds the maximum.
                room = cycle.max[row] - int(cycle.count[row] if self.clamp else before[row])
                if self.clamp:
                    room -= room % cycle.step[row]
                fits = min(max(room, 0), capacity.room_at(node, gang.worker, gpu_type))
                if self.clamp:
                    fits = min(fits, cycle.affordable(gang, gpu_type))
                    fits -= fits % cycle.step[row]
                if fits:
                    cycle.grow(row, [Spot(node, 0, fits)])
                if fits < room:
                    break
                i += 1


def place(capacity: FreeCapacity, gang: GangRequest, want: int, least: int) -> GangLayout:
    """The original's layout of a job on the first type where *least* workers fit."""
    for gpu_type in by_free_part(capacity, gang) if len(capacity.first) else ():
        room = capacity.room(gang.worker, gpu_type, gang.servers, gang.server_cpu, gang.server_memory)
        room = np.minimum(room, want)
        servers = np.minimum(capacity.room(gang.server, gpu_type), gang.servers)
        score = np.maximum(servers, room)
        all_fit = (room == want) & (servers == gang.servers)
        start = int(all_fit.argmax() if all_fit.any() else score.argmax())
        if score[start] > 0:
            layout = GangLayout(gpu_type, tuple(_walk(capacity, gang, want, gpu_type, start)))
            if layout.workers >= least:
                return layout
    return NOWHERE


def _walk(capacity: FreeCapacity, gang: GangRequest, want: int, gpu_type: int, start: int) -> list[Spot]:
    """Visit the start node, then the others by number; servers before workers."""
    spots: list[Spot] = []
    servers_left, workers_left = gang.servers, want
    some_fit = (capacity.room(gang.server, gpu_type) > 0) | (capacity.room(gang.worker, gpu_type) > 0)
    for node in [start, *(node for node in some_fit.nonzero()[0].tolist() if node != start)]:
        servers = min(servers_left, capacity.room_at(node, gang.server, gpu_type))
        servers_left -= servers
        workers = 0
        if not servers_left:
            workers = min(workers_left, room_beside(capacity, gang, Spot(node, servers, 0), gpu_type))
            workers_left -= workers
        if servers or workers:
            spots.append(Spot(node, servers, workers))
        if not workers_left:
            break
    return [] if servers_left else spots


def _original_view(snap: Snapshot) -> FreeCapacity:
    """The original's view: leaving processes count, tags and fresh devices do not."""
    capacity = free(snap).now.copy()
    capacity.checks_fresh = capacity.best_fit = False
    capacity.stays_open = capacity.milli < WHOLE
    for column in (capacity.affinity, capacity.anti_affinity, capacity.exclusion):
        column[:] = 0
    return capacity


def _bind(cycle: Cycle, gang: GangRequest) -> None:
    layout = place(cycle.now, gang, 1, 1)
    if not layout.workers:
        return
    node = layout.spots[0].node
    devices = cycle.now.take(node, gang.worker, layout.gpu_type, 1)
    device = int(devices[0]) if len(devices) == 1 else -1
    cycle.binds.append(Bind(pod=cycle.snap.serving[0].id, node=node, device=device))


def _shrink(cycle: Cycle, running: list[int], gang: GangRequest, workers: int) -> Ints | None:
    """The workers that the original would stop; None if even all are not enough.

    Job by job, oldest first, down to the minimum; within a job, workers away from its servers first. The original
    checks after each worker whether it is enough, so the result is the shortest sufficient prefix of that order.
    """
    processes = cycle.processes
    rank = np.full(len(cycle.snap), len(running))
    rank[running] = np.arange(len(running))
    # The home node is that of the first server; with several servers the original takes any of their nodes.
    home = (
        processes.node[np.minimum(processes.bounds[:-1], max(len(processes.node) - 1, 0))]
        if len(processes.node)
        else processes.node
    )
    members = (processes.removable & (rank[processes.job] < len(running))).nonzero()[0]
    job, node = processes.job[members], processes.node[members]
    members = members[np.lexsort((processes.index[members], node, node == home[job], rank[job]))]
    # The original has no steps; here the workers of one step leave together.
    units = units_of(cycle, members)

    def leaving(length: int) -> Ints:
        return np.concatenate(units[:length]) if length else np.zeros(0, np.int64)

    def fits(length: int) -> bool:
        capacity = cycle.now.copy()
        processes.release(capacity, leaving(length))
        return any(int(np.minimum(capacity.room(gang.worker, t), workers).sum()) >= workers for t in gang.types)

    if not fits(len(units)):
        return None
    return leaving(shortest(len(units), fits))
