"""Jobs, cluster, queues, and held and target devices together, as columns.

The engine owns one `ClusterState`; `levada allocate` and tests create others. It adds and removes jobs, changes device
assignments together with their sums, and makes snapshots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from levada.core.assignment import DEVICE, FREE, INDEX, MILLI, NODE, SLOT, Assignment
from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.foreign_use import ForeignUse
from levada.core.grant import Grant, WorkerPlace
from levada.core.inventory import Inventory
from levada.core.layout import INT_COLUMNS, NOT_ALLOWED
from levada.core.names import Names
from levada.core.queue import Queue, QueueTree
from levada.core.types import CPU_TYPE, Floats, Ints
from levada.kernels import assignment, survey
from levada.tables import placement_rows
from levada.tables.job_table import JobTable
from levada.tables.new_jobs import NewJobs
from levada.tables.snapshot import NO_ROWS, Snapshot, SnapshotTables

#: The list of types of jobs without a GPU.
_CORES = ("\0cpu",)
_MILLI = INT_COLUMNS.index("milli")


def _pick(texts: tuple[Any, ...], row: int) -> Any:
    """The text of a row; a tuple of one applies to all rows."""
    return texts[row] if len(texts) > 1 else texts[0]


class ClusterState:
    """Jobs, cluster, queues and device assignments."""

    def __init__(self, cluster: Cluster = Cluster(), queues: Iterable[Queue] = ()) -> None:  # noqa: B008 frozen default
        self.inventory = Inventory(cluster)
        self.table = JobTable(types=len(self.inventory.types))
        self.queues = QueueTree(tuple(queues))
        self.workloads = Names([""])
        self.entities = Names([""])
        self.queue_names = Names()
        self.tags = Names([""])
        self.ids: dict[int, str] = {}
        self.numbers: dict[str, int] = {}
        self.next_number = 0
        self.target = self._empty_plane()
        self.held = self._empty_plane()
        self.foreign = ForeignUse()
        #: $ per GPU and hour, by type.
        self.prices: dict[str, float] = {}
        self._ranks_of: dict[tuple[str, ...], Ints] = {}

    def _empty_plane(self) -> Assignment:
        return Assignment(len(self.inventory.node_of), len(self.inventory.nodes))

    # --- jobs ---------------------------------------------------------------------------------------------------

    def add_jobs(self, batch: JobBatch) -> Ints:
        """Add pending jobs with the next numbers, except for ids that are active already; returns their slots."""
        new_rows = [row for row, name in enumerate(batch.id) if name not in self.numbers]
        if len(new_rows) > 1:
            first = {batch.id[row]: row for row in reversed(new_rows)}
            new_rows = sorted(first.values())
        if not new_rows:
            return np.zeros(0, np.int64)
        table, new = self.table, NewJobs.of(batch.columns, len(batch))
        lists = [
            _pick(batch.gpu_types, row) if new.ints.item(_MILLI, new.first + row) > 0 else _CORES for row in new_rows
        ]
        for names in lists:
            # The types of a cached list are known.
            for name in names if names is not _CORES and names not in self._ranks_of else ():
                self.inventory.types.add(name)
        table.add_types(len(self.inventory.types))
        facts = []
        for number, (row, names) in enumerate(zip(new_rows, lists, strict=True), self.next_number):
            self.ids[number], self.numbers[batch.id[row]] = batch.id[row], number
            queue = _pick(batch.queue, row)
            facts.append(
                (
                    number,
                    self.workloads.add(_pick(batch.workload, row)),
                    self.entities.add(_pick(batch.entity, row)),
                    self.queue_names.add(queue),
                    self.queue_number(queue),
                    not names,
                )
            )
        self.next_number += len(new_rows)
        ranks = [self._ranks(names) for names in lists]
        rows = np.array([new.first + row for row in new_rows])
        preference = ranks[0] if len(ranks) == 1 else np.concatenate(ranks)
        slots = table.add(new.ints, new.floats, rows, np.array(facts, np.int64), preference)
        for row, (affinity, anti_affinity, exclusion) in batch.tags.items():
            tagged = slots[np.array(new_rows) == row]
            table.affinity[tagged] = self.tags.add(affinity)
            table.anti_affinity[tagged] = self.tags.add(anti_affinity)
            table.exclusion[tagged] = self.tags.add(exclusion)
        if batch.node_class != ("",):
            table.node_class[slots] = [self.inventory.add_class(_pick(batch.node_class, row)) for row in new_rows]
        return slots

    def _ranks(self, names: tuple[str, ...]) -> Ints:
        """Preferences of a job with this list of types, of shape (1, types); cached."""
        types = self.inventory.types
        ranks = self._ranks_of.get(names)
        if ranks is None or ranks.shape[1] != len(types):
            ranks = self._ranks_of[names] = np.full((1, len(types)), NOT_ALLOWED, np.int16)
            if names == _CORES:
                ranks[0, CPU_TYPE] = 0
            elif names:
                for rank, name in reversed(list(enumerate(names))):
                    ranks[0, types.find(name)] = rank
            else:
                ranks[0, 1:] = np.arange(len(types) - 1)
        return ranks

    def queue_number(self, name: str) -> int:
        """The number of a queue; that of the default queue for an unknown name."""
        number = self.queues.names.find(name)
        return number if number >= 0 else self.queues.names.find("default")

    def _assign_queues(self, slots: Ints | int) -> None:
        numbers = [self.queue_number(name) for name in self.queue_names]
        if len(numbers) == 1:
            self.table.queue[slots] = numbers[0]
        else:
            self.table.queue[slots] = np.array(numbers, np.int64)[self.table.queue_name[slots]]

    def set_queues(self, queues: Iterable[Queue]) -> None:
        """Replace the queues and reassign all jobs by the names of their queues."""
        self.queues = QueueTree(tuple(queues))
        self._assign_queues(self.table.order)

    def set_prices(self, prices: Mapping[str, float]) -> None:
        """Replace the prices; raises ValueError for a negative or infinite one."""
        for gpu_type, price in prices.items():
            if not 0 <= price < math.inf:
                raise ValueError(f"price of {gpu_type} must be 0 or more and finite, not {price}")
        self.prices = dict(prices)

    def remove_jobs(self, slots: Ints) -> None:
        """Remove ended jobs, which must not hold anything."""
        for number in self.table.number.take(slots).tolist():
            self.numbers.pop(self.ids.pop(number), None)
        self.table.leave(slots)

    def slot(self, job_id: str) -> int:
        """The slot of an active job, or -1."""
        return self.table.slot_of(self.numbers.get(job_id, -1))

    # --- the cluster --------------------------------------------------------------------------------------------

    def put_nodes(self, nodes: tuple[Node, ...]) -> Ints:
        """Add or replace nodes. Missing devices leave the targets; held ones become absent.

        Returns the new number of every old device, -1 for removed ones.
        """
        moved = self.inventory.put(nodes, self.held.owner != FREE)
        devices, count = len(self.inventory.node_of), len(self.inventory.nodes)
        absent = np.append(self.inventory.absent, False)  # the last entry is for removed devices, number -1
        self.target = self.target.remapped(np.where(absent[moved], -1, moved), devices, count)
        self.held = self.held.remapped(moved, devices, count)
        for plane in (self.target, self.held):
            plane.nodes[:] = self.use_of(plane)
        self.table.add_types(len(self.inventory.types))
        return moved

    def holders_on(self, node: int) -> list[str]:
        """Ids of the jobs that hold resources of a node."""
        slots = np.unique(self.held.owner[self.inventory.devices_of(node)])
        rows = self.held.rows
        slots = np.union1d(slots[slots >= 0], rows[SLOT][rows[NODE] == node])
        return sorted(self.ids[number] for number in self.table.number[slots].tolist() if number >= 0)

    def meant_for(self, nodes: Iterable[int]) -> Ints:
        """Slots of running jobs with a target on these nodes."""
        on_nodes = np.isin(self.inventory.node_of, list(nodes))
        rows = self.target.rows
        slots = np.union1d(self.target.owner[on_nodes], rows[SLOT][np.isin(rows[NODE], list(nodes))])
        slots = slots[slots >= 0]
        return slots[self.table.held[slots] > 0]

    # --- device assignments -------------------------------------------------------------------------------------

    def put_workers(self, plane: Assignment, slot: int, rows: Ints) -> None:
        """Add places of one job to *plane*: rows as in `Assignment.rows`, with one row per whole device."""
        places = rows.copy()
        places[SLOT] = slot
        placement_rows.put(self.table, self.inventory, plane, places)

    def clear_workers(self, plane: Assignment, slots: Ints | int) -> None:
        """Remove all places of these jobs from *plane*."""
        placement_rows.clear(self.table, self.inventory, plane, slots)

    def replace_workers(self, plane: Assignment, slots: Ints, rows: Ints) -> None:
        """Replace all places of these jobs on *plane* by *rows*."""
        self.clear_workers(plane, slots)
        placement_rows.put(self.table, self.inventory, plane, rows)

    def add_places(self, plane: Assignment, rows: Ints) -> None:
        """Add places of several jobs to *plane*: rows as in `put_workers`, with slots."""
        placement_rows.put(self.table, self.inventory, plane, rows)

    def use_of(self, plane: Assignment) -> Ints:
        """CPU and memory per node of all places on *plane*, recomputed."""
        inventory = self.inventory
        return assignment.node_use(
            plane.devices, plane.rows, inventory.node_of, np.ones(len(inventory.nodes), bool), self.table.ints
        )

    def places(self, plane: Assignment, slot: int) -> Ints:
        """All places of a job on *plane*, with one row per whole device, by (index, device)."""
        whole = placement_rows.whole_devices(self.inventory, plane, plane.devices_of(slot))
        rows = np.concatenate([whole, plane.rows_of(slot)], axis=1)
        return rows[:, np.lexsort((rows[DEVICE], rows[INDEX]))]

    def grant(self, plane: Assignment, slot: int) -> Grant:
        """The grant of a job on *plane*."""
        rows = self.places(plane, slot)
        gpu_type = int(self.table.type[slot] if plane is self.target else self.table.held_type[slot])
        places = []
        for index in np.unique(rows[INDEX]):
            worker = rows[:, rows[INDEX] == index]
            devices = tuple(self.inventory.device_id(int(d)) for d in worker[DEVICE] if d >= 0)
            places.append(
                WorkerPlace(
                    index=int(index) if index >= 0 else int(-1 - index),
                    node=self.inventory.nodes[int(worker[NODE][0])],
                    devices=devices,
                    group="worker" if index >= 0 else "server",
                    milli=int(worker[MILLI][0]) if devices else 0,
                )
            )
        return Grant(
            gpu_type=self.inventory.types[gpu_type] if gpu_type >= 0 else "",
            workers=sum(place.group == "worker" for place in places),
            places=tuple(places),
        )

    # --- views --------------------------------------------------------------------------------------------------

    def capacity_for(self, slots: Ints, node_class: int = 0) -> Ints:
        """Units per type that the jobs in *slots* may have together: free ones and those in their targets.

        Their devices count even on cordoned nodes, because the jobs may stay there. Free units count only on nodes that
        are open to *node_class*.
        """
        target, allocatable = self.target, self.inventory.allocatable_for(node_class)
        return survey.capacity(
            slots,
            self.table.ints,
            len(self.inventory.types),
            target.devices,
            target.nodes,
            target.rows,
            allocatable.devices,
            allocatable.nodes,
        )

    def snapshot(
        self,
        now: float,
        slots: Ints | None = None,
        *,
        revision: int = 0,
        fill: bool = False,
        firm: Ints = NO_ROWS,
        table: JobTable | None = None,
    ) -> Snapshot:
        """A snapshot of the jobs in *slots* (default: all), which must be in the order of the table.

        *fill*: all of them are pending; *firm*: rows of jobs that must neither stop nor change their type; *table*: to
        show other requests than those of the job table.
        """
        chosen = self.table.order if slots is None else slots
        return Snapshot(
            now=now,
            revision=revision,
            tables=SnapshotTables(
                table=self.table if table is None else table,
                inventory=self.inventory,
                target=self.target,
                held=self.held,
                queues=self.queues,
                serving=self.foreign.waiting(),
                foreign=self.foreign,
                prices=self._prices() if self.prices else None,
                entities=self.entities,
            ),
            slots=chosen,
            capacity=self.capacity_for(chosen),
            fill=fill,
            firm=firm,
        )

    def _prices(self) -> Floats:
        return np.array([self.prices.get(name, math.nan) for name in self.inventory.types])

    def copy(self) -> ClusterState:
        """An independent copy, in O(active jobs + devices)."""
        twin = ClusterState.__new__(ClusterState)
        twin.inventory, twin.table, twin.queues = self.inventory.copy(), self.table.copy(), self.queues
        twin.workloads, twin.entities, twin.tags = self.workloads.copy(), self.entities.copy(), self.tags.copy()
        twin.queue_names, twin.prices, twin._ranks_of = self.queue_names.copy(), dict(self.prices), {}
        twin.ids, twin.numbers, twin.next_number = dict(self.ids), dict(self.numbers), self.next_number
        twin.target, twin.held, twin.foreign = self.target.copy(), self.held.copy(), self.foreign.copy()
        return twin
