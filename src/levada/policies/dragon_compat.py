"""DRAGON as it was: the decisions that the original could have taken, without its crashes.

Source: as `dragon`; the rules are those of its code, not of its paper. Nodes, devices and workers, which it took in
random order, are taken by number here, so each decision is one of those that the original could have come to.

    want = the first serving pod, else the minimum of the first waiting job (servers not counted) after `starvation_s`
    if want: shrink for it, oldest job first, all or nothing; if that fails nothing starts. Either way the clock is set
    start one job, or bind the pod, on what was free before; the clock is set
    after `idle_s` without the clock being set: grow node by node, the oldest job first, and set the clock

Needs nothing but the jobs and the nodes. Deviation: with `clamp` (the default, and what an engine needs) no job starts
or grows beyond its maximum; without it, both happen as they did.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from levada.core.decision import Bind, Decision
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE, Ints
from levada.perf.model import ThroughputModel
from levada.policies.dragon_board import Board, Demand
from levada.policies.dragon_cycle import Cycle
from levada.policies.dragon_free import Free, free
from levada.policies.dragon_gang import NOWHERE, Gang, Layout, Spot, by_free_part
from levada.policies.dragon_state import DragonState, admission_order, reached
from levada.policies.dragon_victims import shortest, units_of
from levada.policies.options import number_above
from levada.policies.protocol import NO_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.tables.snapshot import Snapshot


class DragonCompat:
    """The original DRAGON, made deterministic."""

    name: ClassVar[str] = "dragon-compat"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = NO_GUARDS
    #: It says where workers go, and makes room for serving pods itself.
    by_node: ClassVar[bool] = True
    elastic: ClassVar[bool] = True

    def __init__(self, *, starvation_s: Any = 30.0, idle_s: Any = 60.0, clamp: bool = True) -> None:
        self.starvation_s = number_above("starvation_s", starvation_s, 0)
        self.idle_s = number_above("idle_s", idle_s, 0)
        self.clamp = clamp

    def initial(self, seed: int) -> DragonState:
        """Nothing has happened yet."""
        return DragonState()

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: DragonState) -> tuple[Decision, DragonState]:
        """One cycle: shrink for somebody, start or bind one, grow."""
        now, submitted = snap.now, snap.jobs.submitted
        board = _as_it_was_seen(snap)
        cycle = Cycle(snap, Free(board, board))
        order = admission_order(snap, state.admitted)
        row_of = {number: row for row, number in enumerate(snap.jobs.number.tolist())}
        running = [row_of[number] for number in order if number in row_of]
        waiting = (cycle.count == 0).nonzero()[0].tolist()
        clock = now if state.last_action is None else state.last_action

        want: tuple[Gang, int] | None = None
        if snap.serving:
            want = _pod_gang(snap), 1
        elif waiting and reached(now, submitted[waiting[0]], self.starvation_s):
            want = cycle.gang(waiting[0])._replace(servers=0), cycle.min[waiting[0]]
        victims: Ints | None = np.zeros(0, np.int64)
        if want is not None:
            victims = _shrink(cycle, running, *want)
            clock = now
        if victims is None or snap.serving:
            # Nobody passes a head that starves, or a serving pod.
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
        """Starts the first job in order whose servers and minimum fit."""
        desired = cycle.snap.jobs.desired.tolist()
        tried: dict[tuple[Gang, int, int], Layout] = {}
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
        """Why these wait, whom nobody looked at: no room beside the job that starts, or only that one does."""
        known: dict[tuple[Gang, int], tuple[int, int]] = {}
        for row in waiting:
            key = (cycle.gang(row), cycle.min[row])
            if key not in known:
                known[key] = self._reason(cycle, *key)
            cycle.reason[row], cycle.evidence[row] = known[key]

    def _reason(self, cycle: Cycle, gang: Gang, least: int) -> tuple[int, int]:
        board, worker = cycle.now, gang.worker
        layout = place(board, gang, least, least)
        if layout.workers and (not self.clamp or cycle.affordable(gang, layout.gpu_type) >= least):
            return int(Code.NEW), 0
        room = max((int(np.minimum(board.room(worker, t), least).sum()) for t in gang.types), default=0)
        idle = max((int(board.idle[t]) for t in gang.types), default=0)
        if worker.devices and room < least and idle >= least * worker.devices:
            return int(Code.FRAGMENTED), room
        return int(Code.CAPACITY), 0

    def _grow(self, cycle: Cycle, running: list[int]) -> None:
        """Node by node to the oldest job, going on to the next one only when it wants no more."""
        board, i = cycle.now, 0
        before = cycle.count.copy()
        for node in range(len(board.first)):
            while i < len(running):
                row = running[i]
                gang, gpu_type = cycle.gang(row), int(cycle.type[row])
                # The original did not count what this very call had added, and so grew beyond the maximum.
                room = cycle.max[row] - int(cycle.count[row] if self.clamp else before[row])
                if self.clamp:
                    room -= room % cycle.step[row]
                fits = min(max(room, 0), board.room_at(node, gang.worker, gpu_type))
                if self.clamp:
                    fits = min(fits, cycle.affordable(gang, gpu_type))
                    fits -= fits % cycle.step[row]
                if fits:
                    cycle.grow(row, [Spot(node, 0, fits)])
                if fits < room:
                    break
                i += 1


def place(board: Board, gang: Gang, want: int, least: int) -> Layout:
    """Where the original would put a job, on the first of its types where *least* workers fit."""
    for gpu_type in by_free_part(board, gang) if len(board.first) else ():
        room = board.room(gang.worker, gpu_type, gang.servers, gang.server_cpu, gang.server_memory)
        room = np.minimum(room, want)
        servers = np.minimum(board.room(Demand(gang.server_cpu, gang.server_memory), gpu_type), gang.servers)
        score = np.maximum(servers, room)
        all_fit = (room == want) & (servers == gang.servers)
        start = int(all_fit.argmax() if all_fit.any() else score.argmax())
        if score[start] > 0:
            layout = Layout(gpu_type, tuple(_walk(board, gang, want, gpu_type, start)))
            if layout.workers >= least:
                return layout
    return NOWHERE


def _walk(board: Board, gang: Gang, want: int, gpu_type: int, start: int) -> list[Spot]:
    """From the start node over the others by number, never going back; servers before workers."""
    spots: list[Spot] = []
    servers_left, workers_left = gang.servers, want
    server = Demand(gang.server_cpu, gang.server_memory)
    some_fit = (board.room(server, gpu_type) > 0) | (board.room(gang.worker, gpu_type) > 0)
    for node in [start, *(node for node in some_fit.nonzero()[0].tolist() if node != start)]:
        servers = min(servers_left, board.room_at(node, server, gpu_type))
        servers_left -= servers
        workers = 0
        if not servers_left:
            workers = min(workers_left, _beside(board, gang, node, servers, gpu_type))
            workers_left -= workers
        if servers or workers:
            spots.append(Spot(node, servers, workers))
        if not workers_left:
            break
    return [] if servers_left else spots


def _beside(board: Board, gang: Gang, node: int, servers: int, gpu_type: int) -> int:
    worker = gang.worker
    room = board.room_at(node, worker, gpu_type)
    if worker.cpu:
        room = min(room, (int(board.cpu[node]) - servers * gang.server_cpu) // worker.cpu)
    if worker.memory:
        room = min(room, (int(board.memory[node]) - servers * gang.server_memory) // worker.memory)
    return max(room, 0)


def _as_it_was_seen(snap: Snapshot) -> Board:
    """What is free; whoever is on the way out still counts, tags do not, and fresh devices are not looked at."""
    board = free(snap).now.copy()
    board.checks_fresh = board.best_fit = False
    board.stays_open = board.milli < WHOLE
    for column in (board.affinity, board.anti_affinity, board.exclusion):
        column[:] = 0
    return board


def _pod_gang(snap: Snapshot) -> Gang:
    pod = snap.serving[0]
    known = snap.inventory.types
    if pod.milli == 0:
        types: tuple[int, ...] = (CPU_TYPE,)
    elif pod.gpu_type is not None:
        types = (known.find(pod.gpu_type),) if pod.gpu_type in known else ()
    else:
        types = tuple(range(1, len(known)))
    return Gang(0, 0, 0, Demand(pod.cpu, pod.memory, pod.milli, pod.gpu_memory if pod.milli % WHOLE else 0), types)


def _bind(cycle: Cycle, gang: Gang) -> None:
    layout = place(cycle.now, gang, 1, 1)
    if not layout.workers:
        return
    node = layout.spots[0].node
    devices = cycle.now.take(node, gang.worker, layout.gpu_type, 1)
    device = int(devices[0]) if len(devices) == 1 else -1
    cycle.binds.append(Bind(pod=cycle.snap.serving[0].id, node=node, device=device))


def _shrink(cycle: Cycle, running: list[int], gang: Gang, workers: int) -> Ints | None:
    """Whom the original would have stopped so that the workers fit; None where even all would not do.

    Job by job, oldest first, down to the minimum; in a job first those away from its servers. It asks before each
    whether it is enough, so the answer is the shortest beginning of that order.
    """
    crew = cycle.crew
    rank = np.full(len(cycle.snap), len(running))
    rank[running] = np.arange(len(running))
    # The first server's node is home; with several servers the original took any one of their nodes.
    home = crew.node[np.minimum(crew.bounds[:-1], max(len(crew.node) - 1, 0))] if len(crew.node) else crew.node
    members = (crew.removable & (rank[crew.job] < len(running))).nonzero()[0]
    job, node = crew.job[members], crew.node[members]
    members = members[np.lexsort((crew.index[members], node, node == home[job], rank[job]))]
    # The original knew no steps: of a job that has some they leave together.
    units = units_of(cycle, members)

    def leaving(length: int) -> Ints:
        return np.concatenate(units[:length]) if length else np.zeros(0, np.int64)

    def fits(length: int) -> bool:
        board = cycle.now.copy()
        crew.give_back(board, leaving(length))
        return any(int(np.minimum(board.room(gang.worker, t), workers).sum()) >= workers for t in gang.types)

    if not fits(len(units)):
        return None
    return leaving(shortest(len(units), fits))
