"""One decision in the making: what is free, who starts, grows and shrinks, and why the others wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from levada.core.decision import Bind, Decision, Reservation, decision
from levada.core.inventory import UNLIMITED
from levada.core.plane import DEVICE, INDEX, MILLI, NO_DEVICE, SLOT, server_index
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE, Bools, Ints
from levada.placement.indices import new_indices
from levada.policies.dragon_board import PLENTY, Board, Demand
from levada.policies.dragon_crew import Crew
from levada.policies.dragon_free import Free
from levada.policies.dragon_gang import Gang, Layout, Spot
from levada.tables.snapshot import Snapshot

_GANG_COLUMNS = (
    *("servers", "server_cpu", "server_memory"),
    *("cpu", "memory", "milli", "gpu_memory", "affinity", "anti_affinity", "exclusion"),
)


class Cycle:
    """The jobs in view by row, and what becomes of them."""

    def __init__(self, snap: Snapshot, boards: Free) -> None:
        self.snap = snap
        self.crew = Crew(snap)
        #: What may be given at once, and what will be free when those who leave are gone.
        self.now, self.soon = boards
        #: `now` without what is kept for somebody; made when something is.
        self.unclaimed: Board | None = None
        jobs = snap.jobs
        self.count: Ints = self.crew.workers.copy()
        self.type: Ints = np.where(self.count > 0, jobs.type, -1)
        self.reason: Ints = np.full(len(snap), int(Code.CAPACITY))
        self.evidence: Ints = np.zeros(len(snap), np.int64)
        self.gone: Bools = np.zeros(len(self.crew.job), bool)
        self.binds: list[Bind] = []
        self.reservations: list[Reservation] = []
        self.started: list[int] = []
        self.wake_at = math.inf
        self.min: list[int] = jobs.min.tolist()
        self.max: list[int] = jobs.max.tolist()
        self.step: list[int] = jobs.step.tolist()
        self._new: list[list[int]] = [[], [], [], [], [], []]
        self._given: dict[int, list[int]] = {}
        self._shapes = list(zip(*(getattr(jobs, name).tolist() for name in _GANG_COLUMNS), strict=True))
        self._gangs: dict[tuple[tuple[int, ...], tuple[int, ...], bool], Gang] = {}
        self._any_type: list[int] = jobs.any_type.tolist()
        self._types: dict[bytes, tuple[int, ...]] = {}
        self._exists = np.bincount(snap.inventory.type_of, minlength=len(snap.capacity)) > 0
        self._exists[CPU_TYPE] = True
        self.budget: list[int] = self._budget().tolist()
        self.coming = self._coming()

    def _budget(self) -> Ints:
        """Per type what jobs in view may take beyond what they have; below zero where they have too much."""
        snap, crew, inventory = self.snap, self.crew, self.snap.inventory
        used = np.zeros(len(snap.capacity), np.int64)
        on_device = crew.places[:, crew.places[DEVICE] >= 0]
        device, milli = on_device[DEVICE], on_device[MILLI]
        counted = inventory.usable[device] | ((milli == WHOLE) & inventory.present[device])
        np.add.at(used, inventory.type_of[device[counted]], milli[counted])
        bare = (self.snap.jobs.milli[crew.job] == 0) & (crew.index >= 0) & inventory.usable_nodes[crew.node]
        used[CPU_TYPE] = crew.cpu[bare].sum()
        return snap.capacity - used

    def _coming(self) -> Ints:
        """Per type what others leave behind soon."""
        more = np.zeros(len(self.budget), np.int64)
        if self.soon is not self.now:
            np.add.at(more, self.snap.inventory.type_of, self.soon.milli - self.now.milli)
            more[CPU_TYPE] = (np.maximum(self.soon.cpu, 0) - np.maximum(self.now.cpu, 0)).sum()
        return more

    @cached_property
    def empty(self) -> Board:
        """The cluster with nobody on it: what does not fit here will never fit."""
        inventory = self.snap.inventory
        memory = np.where(inventory.gpu_memory >= UNLIMITED, 0, inventory.gpu_memory)
        milli = np.where(inventory.usable, WHOLE, 0)
        return Board(inventory, inventory.cpu, inventory.memory, milli, memory)

    # --- questions ----------------------------------------------------------------------------------------------

    def gang(self, row: int) -> Gang:
        """The shape of a job; a job that runs stays on its type."""
        running_on = int(self.type[row])
        types = (running_on,) if running_on >= 0 else self._types_of(row)
        key = (self._shapes[row], types, self._any_type[row] > 0)
        known = self._gangs.get(key)
        if known is None:
            shape = self._shapes[row]
            known = self._gangs[key] = Gang(shape[0], shape[1], shape[2], Demand(*shape[3:]), types, key[-1])
        return known

    def _types_of(self, row: int) -> tuple[int, ...]:
        ranks = self.snap.preference[row]
        key = ranks.tobytes()
        if key not in self._types:
            order = np.argsort(ranks, kind="stable")
            allowed = self.snap.allowed[row] & self._exists[: len(ranks)]
            self._types[key] = tuple(order[allowed[order]].tolist())
        return self._types[key]

    def affordable(self, gang: Gang, gpu_type: int, more: int = 0) -> int:
        """How many workers of a job the caps allow, if *more* than now were left of that type."""
        unit = gang.worker.milli or gang.worker.cpu
        return max(0, self.budget[gpu_type] + more) // unit if unit else PLENTY

    def within_budget(self, gang: Gang, least: int, leaving: Ints | None = None) -> Gang:
        """*gang* with only those types whose caps allow its minimum: now, or soon, when these members are gone too."""
        more = [0] * len(self.budget)
        if leaving is not None:
            coming = self.coming.copy()
            workers = leaving[self.crew.index[leaving] >= 0]
            job = self.crew.job[workers]
            np.add.at(coming, self.snap.jobs.type[job], self.snap.jobs.unit[job])
            more = coming.tolist()
        kept = tuple(t for t in gang.types if self.affordable(gang, t, more[t]) >= least)
        return gang if kept == gang.types else gang._replace(types=kept)

    def allowed_size(self, row: int, workers: int) -> int:
        """The largest size of a job that is at most *workers*; 0 where that is below its minimum."""
        least = self.min[row]
        return workers - (workers - least) % self.step[row] if workers >= least else 0

    # --- changes ------------------------------------------------------------------------------------------------

    def start(self, row: int, layout: Layout) -> None:
        """The job starts so."""
        self.started.append(row)
        self.type[row] = layout.gpu_type
        self._seat(row, layout.spots, range(layout.workers))

    def grow(self, row: int, spots: list[Spot]) -> None:
        """The job gets these workers more."""
        members, given = self.crew.members(row), self._given.setdefault(row, [])
        used = self.crew.index[members.start : members.stop]
        if given:
            used = np.append(used, given)
        indices = new_indices(used, sum(spot.workers for spot in spots)).tolist()
        given += indices
        self._seat(row, tuple(spots), indices)

    def _seat(self, row: int, spots: tuple[Spot, ...], indices: Sequence[int]) -> None:
        gang, gpu_type = self.gang(row), int(self.type[row])
        worker = gang.worker
        each = max(worker.devices, 1)
        servers = workers = 0
        for spot in spots:
            beside = (spot.servers * gang.server_cpu, spot.servers * gang.server_memory)
            devices = self.now.take(spot.node, worker, gpu_type, spot.workers, cpu=beside[0], memory=beside[1])
            for board in (self.soon, self.unclaimed):
                if board is not None and board is not self.now:
                    board.take_same(spot.node, worker, gpu_type, spot.workers, devices, *beside)
            for replica in range(servers, servers + spot.servers):
                self._put(row, [server_index(replica)], spot.node, [NO_DEVICE], 0, 0)
            its = [i for i in indices[workers : workers + spot.workers] for _ in range(each)]
            memory = worker.gpu_memory if worker.is_part else 0
            milli = worker.milli if worker.is_part else WHOLE
            if worker.milli:
                self._put(row, its, spot.node, devices.tolist(), milli, memory)
            else:
                self._put(row, its, spot.node, [NO_DEVICE] * len(its), 0, 0)
            servers += spot.servers
            workers += spot.workers
        self.count[row] += workers
        self.budget[gpu_type] -= workers * (worker.milli or worker.cpu)

    def _put(self, row: int, indices: list[int], node: int, devices: list[int], milli: int, memory: int) -> None:
        many = len(indices)
        for column, values in zip(
            self._new, ([row] * many, indices, [node] * many, devices, [milli] * many, [memory] * many), strict=True
        ):
            column += values

    def remove(self, members: Ints) -> None:
        """These workers leave: their room is free soon, not now."""
        if not len(members):
            return
        self.gone[members] = True
        np.subtract.at(self.count, self.crew.job[members[self.crew.index[members] >= 0]], 1)
        self.crew.give_back(self.apart(), members)

    def apart(self) -> Board:
        """`soon` as a board of its own."""
        if self.soon is self.now:
            self.soon = self.now.copy()
        return self.soon

    def claim(self, layout: Layout, gang: Gang) -> list[tuple[Spot, Ints]]:
        """Keeps room for somebody who waits, first where others leave; its devices by spot."""
        if self.unclaimed is None:
            self.unclaimed = self.now.copy()
        soon = self.apart()
        free_now = self.now.milli == WHOLE
        found = []
        for spot in layout.spots:
            beside = {"cpu": spot.servers * gang.server_cpu, "memory": spot.servers * gang.server_memory}
            devices = soon.take(spot.node, gang.worker, layout.gpu_type, spot.workers, last=free_now, **beside)
            found.append((spot, devices))
        self.now.clip(soon, [spot.node for spot in layout.spots])
        return found

    def wake(self, at: float) -> None:
        """Time alone could change the answer at *at*."""
        if at > self.snap.now:
            self.wake_at = min(self.wake_at, at)

    # --- the result ---------------------------------------------------------------------------------------------

    def decision(self) -> Decision:
        """The decision; places of those jobs whose places change."""
        crew = self.crew
        changed = np.zeros(len(self.snap), bool)
        changed[crew.job[self.gone]] = True
        changed[self._new[SLOT]] = True
        changed &= self.count > 0
        stays = (changed[crew.job] & ~self.gone).nonzero()[0]
        new = np.array(self._new, np.int64).reshape(6, -1)
        places = np.concatenate([crew.places_of(stays), new[:, changed[new[SLOT]]]], axis=1)
        places = places[:, np.lexsort((places[DEVICE], places[INDEX], places[SLOT]))]
        runs = (self.count > 0) & (self.reason != int(Code.HELD_DOWN))
        reason = np.where(runs, int(Code.RUNS), self.reason)
        return decision(
            self.snap,
            self.type,
            self.count,
            reason,
            np.where(runs, 0, self.evidence),
            wake_at=self.wake_at,
            places=places,
            placed=changed.nonzero()[0],
            binds=tuple(self.binds),
            reservations=tuple(self.reservations),
        )
