"""Snapshots: the input of a policy, with the jobs in view and the capacity.

A snapshot is a read-only view that is valid for one decision; `detached` returns a copy that later events do not
change. Jobs that the policy must not change now (guarded, protected, with an operation in progress) are not in it, nor
are their devices. If the policy only *fills* free devices, it contains only pending jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from levada.core.assignment import Assignment
from levada.core.cluster import Foreign
from levada.core.inventory import Inventory
from levada.core.layout import NOT_ALLOWED
from levada.core.names import Names
from levada.core.queue import QueueTree
from levada.core.types import Bools, Floats, Ints
from levada.tables.job_table import JobColumns, JobTable

NO_ROWS = np.zeros(0, np.int64)


class JobRows(JobColumns):
    """Columns of the jobs in view, by (submitted, number); gathered on first access."""

    def __init__(self, table: JobTable, slots: Ints) -> None:
        self._table = table
        self.slots = slots

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        column = getattr(self._table, name).take(self.slots)
        column.flags.writeable = False
        self.__dict__[name] = column
        return column

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def unit(self) -> Ints:
        """Units of its type per worker: 1/1000ths of a GPU, or of a core for workers without a GPU."""
        return np.where(self.milli > 0, self.milli, self.cpu)


class SnapshotTables(NamedTuple):
    """The tables that a snapshot reads: all jobs, the cluster and its queues."""

    table: JobTable
    inventory: Inventory
    #: Current targets, from which policies start that decide by node.
    target: Assignment
    #: Held devices.
    held: Assignment
    queues: QueueTree
    #: Waiting serving pods, highest priority first.
    serving: tuple[Foreign, ...]
    #: Foreign use, by id.
    foreign: Mapping[str, Foreign]
    #: $ per GPU and hour by type; None if no price is known.
    prices: Floats | None
    #: Names of the owners of jobs, by number.
    entities: Names

    def copy(self) -> SnapshotTables:
        """A copy that later events do not change."""
        return SnapshotTables(
            table=self.table.copy(),
            inventory=self.inventory.copy(),
            target=self.target.copy(),
            held=self.held.copy(),
            queues=self.queues,
            serving=self.serving,
            foreign=dict(self.foreign),
            prices=None if self.prices is None else self.prices.copy(),
            entities=self.entities.copy(),
        )


class Snapshot:
    """Jobs in view, cluster, capacity and settings at one time."""

    def __init__(
        self,
        *,
        now: float,
        revision: int,
        tables: SnapshotTables,
        slots: Ints,
        capacity: Ints,
        preference: Any = None,
        fill: bool = False,
        firm: Ints = NO_ROWS,
    ) -> None:
        self.now = now
        #: Rows of jobs that may grow and shrink, but neither stop nor change their type; see `policies.pinned`.
        self.firm = firm
        #: Only pending jobs and free devices are in view; see `Decision.fills`.
        self.fill = fill
        self.revision = revision
        self._tables = tables
        self.table, self.inventory, self.queues = tables.table, tables.inventory, tables.queues
        self.target, self.held = tables.target, tables.held
        self.serving, self.foreign = tables.serving, tables.foreign
        self.entities = tables.entities
        self.jobs = JobRows(tables.table, slots)
        #: Units per type that the jobs in view may have together, in the unit of `JobRows.unit`.
        self.capacity = capacity
        self._preference = preference

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def prices(self) -> Floats:
        """$ per GPU and hour by type; nan if unknown."""
        prices = self._tables.prices
        return prices if prices is not None else np.full(len(self.inventory.types), np.nan)

    @property
    def preference(self) -> Any:
        """Rank of each type by job, 0 = preferred, or NOT_ALLOWED; gathered on first access."""
        if self._preference is None:
            self._preference = self.table.preference.take(self.jobs.slots, axis=1).T
        return self._preference

    @property
    def liking(self) -> tuple[Any, Ints]:
        """Like `preference`, without gathering: ranks by type and index, and the index of each job."""
        if self._preference is None:
            return self.table.preference, self.jobs.slots
        return np.ascontiguousarray(self._preference.T), np.arange(len(self))

    @property
    def allowed(self) -> Bools:
        """Whether a job may use a type, by job and type."""
        return np.asarray(self.preference != NOT_ALLOWED)

    def restricted(
        self, rows: Ints, capacity: Ints, only_type: Ints | None = None, forbidden: Bools | None = None
    ) -> Snapshot:
        """This snapshot with only these rows and this capacity.

        *only_type* restricts each job to one type, *forbidden* (by job and type) excludes types.
        """
        preference = self.preference[rows]
        if forbidden is not None:
            preference = np.where(forbidden, NOT_ALLOWED, preference)
        if only_type is not None:
            fixed = np.full_like(preference, NOT_ALLOWED)
            has_type = (only_type >= 0).nonzero()[0]
            fixed[has_type, only_type[has_type]] = preference[has_type, only_type[has_type]]
            preference = fixed
        return Snapshot(
            now=self.now,
            revision=self.revision,
            tables=self._tables,
            slots=self.jobs.slots[rows],
            capacity=capacity,
            preference=preference,
            fill=self.fill,
        )

    def detached(self) -> Snapshot:
        """A copy that later events do not change, for a policy in another thread than the engine."""
        return Snapshot(
            now=self.now,
            revision=self.revision,
            tables=self._tables.copy(),
            slots=self.jobs.slots.copy(),
            capacity=self.capacity.copy(),
            preference=self.preference.copy(),
            fill=self.fill,
            firm=self.firm,
        )
