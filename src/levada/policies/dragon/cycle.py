"""A decision under construction: free capacity, changes, and reasons of the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from levada.core.assignment import DEVICE, INDEX, MILLI, NO_DEVICE, SLOT, server_index
from levada.core.decision import Bind, Decision, Reservation, decision
from levada.core.inventory import UNLIMITED
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE, Bools, Ints
from levada.placement.indices import new_indices
from levada.policies.dragon.capacity import PLENTY, Demand, FreeCapacity
from levada.policies.dragon.free import Free
from levada.policies.dragon.gang import GangLayout, GangRequest, Spot
from levada.policies.dragon.workers import JobWorkers
from levada.tables.snapshot import Snapshot

_GANG_COLUMNS = (
    *("servers", "server_cpu", "server_memory"),
    *("cpu", "memory", "milli", "gpu_memory", "affinity", "anti_affinity", "exclusion", "node_class"),
)


class Cycle:
    """The jobs in view by row, and their new sizes and placement."""

    def __init__(self, snap: Snapshot, free_capacity: Free) -> None:
        self.snap = snap
        self.processes = JobWorkers(snap)
        #: Capacity that is free now, and once everything on its way out has left.
        self.now, self.soon = free_capacity
        #: `now` before reservations; None until the first reservation.
        self.unclaimed: FreeCapacity | None = None
        jobs = snap.jobs
        self.count: Ints = self.processes.workers.copy()
        self.type: Ints = np.where(self.count > 0, jobs.type, -1)
        self.reason: Ints = np.full(len(snap), int(Code.CAPACITY))
        self.evidence: Ints = np.zeros(len(snap), np.int64)
        self.gone: Bools = np.zeros(len(self.processes.job), bool)
        self.binds: list[Bind] = []
        self.reservations: list[Reservation] = []
        self.started: list[int] = []
        self.wake_at = math.inf
        self.min: list[int] = jobs.min.tolist()
        self.max: list[int] = jobs.max.tolist()
        self.step: list[int] = jobs.step.tolist()
        self._new: list[list[int]] = [[], [], [], [], [], []]
        #: The worker indices added to running jobs, by row.
        self._added: dict[int, list[int]] = {}
        self._shapes = list(zip(*(getattr(jobs, name).tolist() for name in _GANG_COLUMNS), strict=True))
        self._gangs: dict[tuple[tuple[int, ...], tuple[int, ...], bool], GangRequest] = {}
        self._any_type: list[int] = jobs.any_type.tolist()
        self._types: dict[bytes, tuple[int, ...]] = {}
        self._exists = np.bincount(snap.inventory.type_of, minlength=len(snap.capacity)) > 0
        self._exists[CPU_TYPE] = True
        self.budget: list[int] = self._budget().tolist()
        self.coming = self._coming()

    def _budget(self) -> Ints:
        """Per type what jobs in view may take beyond their use; negative above the cap."""
        snap, processes, inventory = self.snap, self.processes, self.snap.inventory
        used = np.zeros(len(snap.capacity), np.int64)
        on_device = processes.places[:, processes.places[DEVICE] >= 0]
        device, milli = on_device[DEVICE], on_device[MILLI]
        counted = inventory.usable[device] | ((milli == WHOLE) & inventory.present[device])
        np.add.at(used, inventory.type_of[device[counted]], milli[counted])
        bare = (
            (self.snap.jobs.milli[processes.job] == 0) & (processes.index >= 0) & inventory.usable_nodes[processes.node]
        )
        used[CPU_TYPE] = processes.cpu[bare].sum()
        return snap.capacity - used

    def _coming(self) -> Ints:
        """Per type the capacity that leaving processes release."""
        more = np.zeros(len(self.budget), np.int64)
        if self.soon is not self.now:
            np.add.at(more, self.snap.inventory.type_of, self.soon.milli - self.now.milli)
            more[CPU_TYPE] = (np.maximum(self.soon.cpu, 0) - np.maximum(self.now.cpu, 0)).sum()
        return more

    @cached_property
    def empty(self) -> FreeCapacity:
        """The empty cluster: what does not fit here never fits."""
        inventory = self.snap.inventory
        memory = np.where(inventory.gpu_memory >= UNLIMITED, 0, inventory.gpu_memory)
        milli = np.where(inventory.usable, WHOLE, 0)
        return FreeCapacity(inventory, inventory.cpu, inventory.memory, milli, memory)

    # --- queries ------------------------------------------------------------------------------------------------

    def gang(self, row: int) -> GangRequest:
        """The request of a job; a running job stays on its type."""
        running_on = int(self.type[row])
        types = (running_on,) if running_on >= 0 else self._types_of(row)
        key = (self._shapes[row], types, self._any_type[row] > 0)
        known = self._gangs.get(key)
        if known is None:
            shape = self._shapes[row]
            known = self._gangs[key] = GangRequest(shape[0], shape[1], shape[2], Demand(*shape[3:]), types, key[-1])
        return known

    def _types_of(self, row: int) -> tuple[int, ...]:
        ranks = self.snap.preference[row]
        key = ranks.tobytes()
        if key not in self._types:
            order = np.argsort(ranks, kind="stable")
            allowed = self.snap.allowed[row] & self._exists[: len(ranks)]
            self._types[key] = tuple(order[allowed[order]].tolist())
        return self._types[key]

    def affordable(self, gang: GangRequest, gpu_type: int, more: int = 0) -> int:
        """The workers of a job that the caps allow with *more* capacity of the type."""
        unit = gang.worker.milli or gang.worker.cpu
        return max(0, self.budget[gpu_type] + more) // unit if unit else PLENTY

    def within_budget(self, gang: GangRequest, least: int, leaving: Ints | None = None) -> GangRequest:
        """*gang* with only the types whose caps allow its minimum.

        With *leaving*: once these members and those already on their way out have left.
        """
        more = [0] * len(self.budget)
        if leaving is not None:
            coming = self.coming.copy()
            workers = leaving[self.processes.index[leaving] >= 0]
            job = self.processes.job[workers]
            np.add.at(coming, self.snap.jobs.type[job], self.snap.jobs.unit[job])
            more = coming.tolist()
        types = tuple(t for t in gang.types if self.affordable(gang, t, more[t]) >= least)
        return gang if types == gang.types else gang._replace(types=types)

    def allowed_size(self, row: int, workers: int) -> int:
        """The largest allowed size of at most *workers*; 0 below the minimum."""
        least = self.min[row]
        return workers - (workers - least) % self.step[row] if workers >= least else 0

    # --- changes ------------------------------------------------------------------------------------------------

    def start(self, row: int, layout: GangLayout) -> None:
        """Start a job with this layout."""
        self.started.append(row)
        self.type[row] = layout.gpu_type
        self._place(row, layout.spots, range(layout.workers))

    def grow(self, row: int, spots: list[Spot]) -> None:
        """Add the workers of *spots* to a job."""
        members, added = self.processes.members(row), self._added.setdefault(row, [])
        used = self.processes.index[members.start : members.stop]
        if added:
            used = np.append(used, added)
        indices = new_indices(used, sum(spot.workers for spot in spots)).tolist()
        added += indices
        self._place(row, tuple(spots), indices)

    def _place(self, row: int, spots: tuple[Spot, ...], indices: Sequence[int]) -> None:
        gang, gpu_type = self.gang(row), int(self.type[row])
        worker = gang.worker
        devices_each = max(worker.devices, 1)
        servers = workers = 0
        for spot in spots:
            beside = (spot.servers * gang.server_cpu, spot.servers * gang.server_memory)
            devices = self.now.take(spot.node, worker, gpu_type, spot.workers, cpu=beside[0], memory=beside[1])
            for capacity in (self.soon, self.unclaimed):
                if capacity is not None and capacity is not self.now:
                    capacity.take_same(spot.node, worker, gpu_type, spot.workers, devices, *beside)
            for replica in range(servers, servers + spot.servers):
                self._add_rows(row, [server_index(replica)], spot.node, [NO_DEVICE], 0, 0)
            owners = [i for i in indices[workers : workers + spot.workers] for _ in range(devices_each)]
            memory = worker.gpu_memory if worker.is_part else 0
            milli = worker.milli if worker.is_part else WHOLE
            if worker.milli:
                self._add_rows(row, owners, spot.node, devices.tolist(), milli, memory)
            else:
                self._add_rows(row, owners, spot.node, [NO_DEVICE] * len(owners), 0, 0)
            servers += spot.servers
            workers += spot.workers
        self.count[row] += workers
        self.budget[gpu_type] -= workers * (worker.milli or worker.cpu)

    def _add_rows(self, row: int, indices: list[int], node: int, devices: list[int], milli: int, memory: int) -> None:
        many = len(indices)
        for column, values in zip(
            self._new, ([row] * many, indices, [node] * many, devices, [milli] * many, [memory] * many), strict=True
        ):
            column += values

    def remove(self, members: Ints) -> None:
        """Stop these members; their capacity is free soon, not now."""
        if not len(members):
            return
        self.gone[members] = True
        np.subtract.at(self.count, self.processes.job[members[self.processes.index[members] >= 0]], 1)
        self.processes.release(self.separate_soon(), members)

    def separate_soon(self) -> FreeCapacity:
        """`soon` as an object of its own."""
        if self.soon is self.now:
            self.soon = self.now.copy()
        return self.soon

    def claim(self, layout: GangLayout, gang: GangRequest) -> list[tuple[Spot, Ints]]:
        """Reserve room for a pending job or pod; its devices by spot.

        Devices of leaving members are used first.
        """
        if self.unclaimed is None:
            self.unclaimed = self.now.copy()
        soon = self.separate_soon()
        free_now = self.now.milli == WHOLE
        claimed = []
        for spot in layout.spots:
            beside = {"cpu": spot.servers * gang.server_cpu, "memory": spot.servers * gang.server_memory}
            devices = soon.take(spot.node, gang.worker, layout.gpu_type, spot.workers, last=free_now, **beside)
            claimed.append((spot, devices))
        self.now.clip(soon, [spot.node for spot in layout.spots])
        return claimed

    def wake(self, at: float) -> None:
        """Request a decision at *at*."""
        if at > self.snap.now:
            self.wake_at = min(self.wake_at, at)

    # --- the result ---------------------------------------------------------------------------------------------

    def decision(self) -> Decision:
        """The decision, with the places of the jobs whose placement changes."""
        processes = self.processes
        changed = np.zeros(len(self.snap), bool)
        changed[processes.job[self.gone]] = True
        changed[self._new[SLOT]] = True
        changed &= self.count > 0
        stays = (changed[processes.job] & ~self.gone).nonzero()[0]
        new = np.array(self._new, np.int64).reshape(6, -1)
        places = np.concatenate([processes.places_of(stays), new[:, changed[new[SLOT]]]], axis=1)
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
