"""All columns together: jobs, cluster, queues, and the two planes (held and target).

The engine owns one; `levada allocate` and tests fill one by hand. Here is how jobs enter and leave it, how a plane is
changed so that its sums stay right, and how a snapshot is taken. When anything happens is the engine's affair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.grant import Grant, WorkerPlace
from levada.core.inventory import Inventory
from levada.core.layout import INT_COLUMNS, NOT_ALLOWED
from levada.core.names import Names
from levada.core.plane import DEVICE, FREE, INDEX, MILLI, NODE, SLOT, Plane
from levada.core.queue import Queue, QueueTree
from levada.core.types import CPU_TYPE, Floats, Ints
from levada.kernels import assignment, survey
from levada.tables import places
from levada.tables.jobtable import JobTable
from levada.tables.newcomers import Newcomers
from levada.tables.snapshot import NO_ROWS, Snapshot

#: Stands for the list of types of jobs without a GPU.
_CORES = ("\0cpu",)
_MILLI = INT_COLUMNS.index("milli")


def _pick(texts: tuple[Any, ...], row: int) -> Any:
    """The text of a row; one that is the same for all is given once."""
    return texts[row] if len(texts) > 1 else texts[0]


class World:
    """The state of everything, as columns."""

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
        self.foreign: dict[str, Foreign] = {}
        #: $ per GPU and hour, by type.
        self.prices: dict[str, float] = {}
        self._ranks_of: dict[tuple[str, ...], Ints] = {}

    def _empty_plane(self) -> Plane:
        return Plane(len(self.inventory.node_of), len(self.inventory.nodes))

    # --- jobs ---------------------------------------------------------------------------------------------------

    def add_jobs(self, batch: JobBatch) -> Ints:
        """The slots of new jobs, pending, with the next numbers. An id that is active already is not added again."""
        fresh = [row for row, name in enumerate(batch.id) if name not in self.numbers]
        if len(fresh) > 1:
            first = {batch.id[row]: row for row in reversed(fresh)}
            fresh = sorted(first.values())
        if not fresh:
            return np.zeros(0, np.int64)
        table, new = self.table, Newcomers.of(batch.columns, len(batch))
        lists = [_pick(batch.gpu_types, row) if new.ints.item(_MILLI, new.first + row) > 0 else _CORES for row in fresh]
        for names in lists:
            # The types of a list that was met before are known.
            for name in names if names is not _CORES and names not in self._ranks_of else ():
                self.inventory.types.add(name)
        table.add_types(len(self.inventory.types))
        facts = []
        for number, (row, names) in enumerate(zip(fresh, lists, strict=True), self.next_number):
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
        self.next_number += len(fresh)
        ranks = [self._ranks(names) for names in lists]
        rows = np.array([new.first + row for row in fresh])
        liking = ranks[0] if len(ranks) == 1 else np.concatenate(ranks)
        slots = table.add(new.ints, new.floats, rows, np.array(facts, np.int64), liking)
        for row, (affinity, anti_affinity, exclusion) in batch.tags.items():
            tagged = slots[np.array(fresh) == row]
            table.affinity[tagged] = self.tags.add(affinity)
            table.anti_affinity[tagged] = self.tags.add(anti_affinity)
            table.exclusion[tagged] = self.tags.add(exclusion)
        return slots

    def _ranks(self, names: tuple[str, ...]) -> Ints:
        """(1, types): the preferences of a job with this list of types; they are reckoned once."""
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
        """The number of a queue; a job that names an unknown one is in the default queue."""
        number = self.queues.names.find(name)
        return number if number >= 0 else self.queues.names.find("default")

    def _find_queues(self, slots: Ints | int) -> None:
        number = [self.queue_number(name) for name in self.queue_names]
        if len(number) == 1:
            self.table.queue[slots] = number[0]
        else:
            self.table.queue[slots] = np.array(number, np.int64)[self.table.queue_name[slots]]

    def set_queues(self, queues: Iterable[Queue]) -> None:
        """These queues instead of those before; each job is in the one its user named, if there is one now."""
        self.queues = QueueTree(tuple(queues))
        self._find_queues(self.table.order)

    def set_prices(self, prices: Mapping[str, float]) -> None:
        """These prices instead of those before; raises ValueError for one that cannot be."""
        for gpu_type, price in prices.items():
            if not 0 <= price < math.inf:
                raise ValueError(f"{gpu_type} cannot cost {price}")
        self.prices = dict(prices)

    def remove_jobs(self, slots: Ints) -> None:
        """Forgets jobs that are over and hold nothing."""
        for number in self.table.number.take(slots).tolist():
            self.numbers.pop(self.ids.pop(number), None)
        self.table.leave(slots)

    def slot(self, job_id: str) -> int:
        """The slot of an active job, or -1."""
        return self.table.slot_of(self.numbers.get(job_id, -1))

    # --- the cluster --------------------------------------------------------------------------------------------

    def put_nodes(self, nodes: tuple[Node, ...]) -> Ints:
        """Adds or replaces nodes. Nobody should have a device that is gone; who holds one holds it on, absent.

        Returns the new number of every device that there was, -1 where it is forgotten.
        """
        moved = self.inventory.put(nodes, self.held.owner != FREE)
        devices, count = len(self.inventory.node_of), len(self.inventory.nodes)
        absent = np.append(self.inventory.absent, False)  # the last place is for those that are forgotten
        self.target = self.target.remapped(np.where(absent[moved], -1, moved), devices, count)
        self.held = self.held.remapped(moved, devices, count)
        for plane in (self.target, self.held):
            plane.nodes[:] = self.use_of(plane)
        self.table.add_types(len(self.inventory.types))
        return moved

    def holders_on(self, node: int) -> list[str]:
        """Ids of the jobs that hold something of a node."""
        slots = np.unique(self.held.owner[self.inventory.devices_of(node)])
        rows = self.held.rows
        slots = np.union1d(slots[slots >= 0], rows[SLOT][rows[NODE] == node])
        return sorted(self.ids[number] for number in self.table.number[slots].tolist() if number >= 0)

    def meant_for(self, nodes: Iterable[int]) -> Ints:
        """Slots of the jobs that hold something and shall have something of these nodes."""
        there = np.isin(self.inventory.node_of, list(nodes))
        rows = self.target.rows
        slots = np.union1d(self.target.owner[there], rows[SLOT][np.isin(rows[NODE], list(nodes))])
        slots = slots[slots >= 0]
        return slots[self.table.held[slots] > 0]

    # --- planes -------------------------------------------------------------------------------------------------

    def put_workers(self, plane: Plane, slot: int, rows: Ints) -> None:
        """Adds places of one job to *plane*; columns as in `Plane.rows`, whole devices by one row each."""
        mine = rows.copy()
        mine[SLOT] = slot
        places.put(self.table, self.inventory, plane, mine)

    def clear_workers(self, plane: Plane, slots: Ints | int) -> None:
        """Takes all places of these jobs off *plane*."""
        places.clear(self.table, self.inventory, plane, slots)

    def replace_workers(self, plane: Plane, slots: Ints, rows: Ints) -> None:
        """On *plane* these jobs have the places in *rows* and no others."""
        self.clear_workers(plane, slots)
        places.put(self.table, self.inventory, plane, rows)

    def add_places(self, plane: Plane, rows: Ints) -> None:
        """Adds places of several jobs to *plane*; columns as in `Plane.rows`, SLOT among them."""
        places.put(self.table, self.inventory, plane, rows)

    def use_of(self, plane: Plane) -> Ints:
        """The cores and memory that all places on *plane* add up to per node, counted anew."""
        inventory = self.inventory
        return assignment.node_use(plane.devices, plane.rows, inventory.node_of, len(inventory.nodes), self.table.ints)

    def places(self, plane: Plane, slot: int) -> Ints:
        """All places of one job on *plane*, with a row for each whole device too, by (index, device)."""
        whole = places.whole_devices(self.inventory, plane, plane.devices_of(slot))
        rows = np.concatenate([whole, plane.rows_of(slot)], axis=1)
        return rows[:, np.lexsort((rows[DEVICE], rows[INDEX]))]

    def grant(self, plane: Plane, slot: int) -> Grant:
        """What a job has on *plane*, as an object."""
        rows = self.places(plane, slot)
        gpu_type = int(self.table.type[slot] if plane is self.target else self.table.held_type[slot])
        found = []
        for index in np.unique(rows[INDEX]):
            mine = rows[:, rows[INDEX] == index]
            devices = tuple(self.inventory.device_id(int(d)) for d in mine[DEVICE] if d >= 0)
            found.append(
                WorkerPlace(
                    index=int(index) if index >= 0 else int(-1 - index),
                    node=self.inventory.nodes[int(mine[NODE][0])],
                    devices=devices,
                    group="worker" if index >= 0 else "server",
                    milli=int(mine[MILLI][0]) if devices else 0,
                )
            )
        return Grant(
            gpu_type=self.inventory.types[gpu_type] if gpu_type >= 0 else "",
            workers=sum(place.group == "worker" for place in found),
            places=tuple(found),
        )

    # --- views --------------------------------------------------------------------------------------------------

    def capacity_for(self, slots: Ints) -> Ints:
        """Per type what the jobs in *slots* may have together: free, or theirs already.

        A device that one of them holds counts even where new grants may not go, for it may stay there.
        """
        target, openings = self.target, self.inventory.openings
        return survey.capacity(
            slots,
            self.table.ints,
            len(self.inventory.types),
            target.devices,
            target.nodes,
            target.rows,
            openings.devices,
            openings.nodes,
        )

    def snapshot(
        self,
        now: float,
        slots: Ints | None = None,
        *,
        revision: int = 0,
        fill: bool = False,
        firm: Ints = NO_ROWS,
    ) -> Snapshot:
        """This moment, with the jobs in *slots* (all unless given; in the table's order) in view.

        *fill*: these are pending jobs; *firm*: rows of jobs that must neither stop nor go to another type.
        """
        chosen = self.table.order if slots is None else slots
        waiting = [pod for pod in self.foreign.values() if pod.serving and pod.node is None] if self.foreign else []
        waiting.sort(key=lambda pod: (-pod.priority, pod.created, pod.id))
        return Snapshot(
            now=now,
            revision=revision,
            table=self.table,
            slots=chosen,
            inventory=self.inventory,
            target=self.target,
            held=self.held,
            capacity=self.capacity_for(chosen),
            queues=self.queues,
            serving=tuple(waiting),
            foreign=self.foreign,
            prices=self._prices() if self.prices else None,
            entities=self.entities,
            fill=fill,
            firm=firm,
        )

    def _prices(self) -> Floats:
        return np.array([self.prices.get(name, math.nan) for name in self.inventory.types])

    def copy(self) -> World:
        """An independent copy, in O(active jobs + devices)."""
        twin = World.__new__(World)
        twin.inventory, twin.table, twin.queues = self.inventory.copy(), self.table.copy(), self.queues
        twin.workloads, twin.entities, twin.tags = self.workloads.copy(), self.entities.copy(), self.tags.copy()
        twin.queue_names, twin.prices, twin._ranks_of = self.queue_names.copy(), dict(self.prices), {}
        twin.ids, twin.numbers, twin.next_number = dict(self.ids), dict(self.numbers), self.next_number
        twin.target, twin.held, twin.foreign = self.target.copy(), self.held.copy(), dict(self.foreign)
        return twin
