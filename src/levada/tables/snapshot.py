"""What a policy sees: the jobs it may decide about, and what there is to give them.

A snapshot is a read-only view, valid for one decision; `detached` makes one that outlives the next event. Jobs that a
policy may not touch now (guarded, protected, with an operation under way) are not in it, nor is what they hold. Nor are
those that do not wait, where a policy said that it would only *fill* what is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from levada.core.cluster import Foreign
from levada.core.inventory import Inventory
from levada.core.layout import NOT_ALLOWED
from levada.core.names import Names
from levada.core.plane import Plane
from levada.core.queue import QueueTree
from levada.core.types import Bools, Floats, Ints
from levada.tables.jobtable import JobColumns, JobTable

#: The entities of a world in which jobs belong to nobody.
NOBODY = Names([""])
NO_ROWS = np.zeros(0, np.int64)


class JobRows(JobColumns):
    """Columns of the jobs in view, in the order of (submitted, number); each is gathered when first asked for."""

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
        """What one worker takes of its type: 1/1000ths of a GPU, or of a core for workers without one."""
        return np.where(self.milli > 0, self.milli, self.cpu)


class Snapshot:
    """One moment of the world."""

    def __init__(
        self,
        *,
        now: float,
        revision: int,
        table: JobTable,
        slots: Ints,
        inventory: Inventory,
        target: Plane,
        held: Plane,
        capacity: Ints,
        queues: QueueTree,
        serving: tuple[Foreign, ...] = (),
        foreign: Mapping[str, Foreign] | None = None,
        prices: Floats | None = None,
        entities: Names = NOBODY,
        preference: Any = None,
        fill: bool = False,
        firm: Ints = NO_ROWS,
    ) -> None:
        self.now = now
        #: Rows of jobs that may grow and shrink, but neither stop nor go to another type; see `policies.firm`.
        self.firm = firm
        #: Only jobs that wait are in view, and what is free: see `Decision.fills`.
        self.fill = fill
        self.revision = revision
        self.table = table
        self.jobs = JobRows(table, slots)
        self.inventory = inventory
        #: What jobs should have at present; a policy that decides by node starts from it.
        self.target = target
        #: What jobs are seen to use.
        self.held = held
        #: Per type what the jobs in view may have together, in the unit of `JobRows.unit`.
        self.capacity = capacity
        self.queues = queues
        #: Serving pods that wait for room, most important first.
        self.serving = serving
        #: What others use, by id.
        self.foreign: Mapping[str, Foreign] = foreign if foreign is not None else {}
        #: Names of the entities that jobs belong to, by number.
        self.entities = entities
        self._prices = prices
        self._preference = preference

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def prices(self) -> Floats:
        """$ per GPU and hour by type; nan where nobody said, for what has no price need not be free."""
        return self._prices if self._prices is not None else np.full(len(self.inventory.types), np.nan)

    @property
    def preference(self) -> Any:
        """Per job and type its rank, 0 = preferred; NOT_ALLOWED where it cannot run. Gathered when first asked for."""
        if self._preference is None:
            self._preference = self.table.preference.take(self.jobs.slots, axis=1).T
        return self._preference

    @property
    def liking(self) -> tuple[Any, Ints]:
        """As `preference` without gathering: rank by type and place, and the place of each job."""
        if self._preference is None:
            return self.table.preference, self.jobs.slots
        return np.ascontiguousarray(self._preference.T), np.arange(len(self))

    @property
    def allowed(self) -> Bools:
        """Per job and type whether it may run there."""
        return np.asarray(self.preference != NOT_ALLOWED)

    def restricted(
        self, rows: Ints, capacity: Ints, only_type: Ints | None = None, forbidden: Bools | None = None
    ) -> Snapshot:
        """The same moment with only these jobs (by row) and this capacity.

        *only_type* binds each to one type, *forbidden* (per job and type) keeps each from some.
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
            table=self.table,
            slots=self.jobs.slots[rows],
            inventory=self.inventory,
            target=self.target,
            held=self.held,
            capacity=capacity,
            queues=self.queues,
            serving=self.serving,
            foreign=self.foreign,
            prices=self.prices,
            entities=self.entities,
            preference=preference,
            fill=self.fill,
        )

    def detached(self) -> Snapshot:
        """A copy that later events do not change, for a policy that runs beside the engine."""
        return Snapshot(
            now=self.now,
            revision=self.revision,
            table=self.table.copy(),
            slots=self.jobs.slots.copy(),
            inventory=self.inventory.copy(),
            target=self.target.copy(),
            held=self.held.copy(),
            capacity=self.capacity.copy(),
            queues=self.queues,
            serving=self.serving,
            foreign=dict(self.foreign),
            prices=self.prices.copy(),
            entities=self.entities.copy(),
            preference=self.preference.copy(),
            fill=self.fill,
            firm=self.firm,
        )
