"""A snapshot as the numbers that share policies reckon with: rates, GPUs per job, GPUs per type, work left."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels import rates, view
from levada.perf.model import ThroughputModel
from levada.tables.snapshot import Snapshot

#: A job of unknown length is taken to need so long on its fastest type, from now on.
UNKNOWN_LENGTH_S = 3600.0


def jobs_of(snap: Snapshot, supply: Ints, most: Ints) -> tuple[Ints, Floats, Bools]:
    """The jobs in two blocks: rows as in `kernels.view`; and by job and type whether it may run there.

    These policies take sizes as given, but for what no type could hold: *most* of each.
    """
    table, slots = snap.table, snap.jobs.slots
    return view.jobs(table.ints, table.floats, slots, *snap.liking, supply[view.EXISTS], most)


class Instance:
    """One moment, as arrays over the jobs in view (rows) and the GPU types of the inventory (columns)."""

    def __init__(self, snap: Snapshot, perf: ThroughputModel, *, published: bool = False) -> None:
        """*published*: types are listed by name, as Gavel's scheduler does it."""
        self.snap = snap
        self.published = published
        self.perf = perf
        #: What there is of each type: rows as in `kernels.view`.
        self.supply: Ints = snap.inventory.openings.supply
        #: The jobs in two blocks: rows as in `kernels.view`.
        self.jobs, self.reals, self.allowed = jobs_of(snap, self.supply, snap.capacity)
        self.number: Ints = self.jobs[view.NUMBER]
        #: Workers of each job.
        self.size: Ints = self.jobs[view.SIZE]
        #: Steps/s of the whole job; 0 = cannot run there.
        self.rate: Floats = perf.rates_by_type(self.number, self.size, len(snap.capacity))
        #: The highest of these, and each over that.
        self.best, self.relative = rates.hold(self.rate, self.allowed, self.jobs[view.MILLI])

    def __len__(self) -> int:
        return len(self.number)

    # --- what only shares ask for -----------------------------------------------------------------------------------

    @cached_property
    def _amounts(self) -> tuple[Floats, Floats, Ints]:
        return view.amounts(self.jobs, self.snap.table.ints, self.snap.jobs.slots, self.snap.capacity)

    @property
    def scale(self) -> Floats:
        """GPUs of each job (cores for a job without any)."""
        return self._amounts[0]

    @property
    def capacity(self) -> Floats:
        """GPUs of each type; cores are for jobs without a GPU, and may be without limit."""
        return self._amounts[1]

    @property
    def alike(self) -> Ints:
        """What jobs must share to be equal, besides numbers: entity, workload, and whether they are plain."""
        return self._amounts[2]

    @property
    def entity(self) -> Ints:
        """To whom each job belongs."""
        return self.alike[0]

    @cached_property
    def plain(self) -> Bools:
        """Its workers are one whole GPU each, and nothing else: only such jobs share devices."""
        return np.asarray(self.alike[2] > 0)

    @property
    def weight(self) -> Floats:
        """What each job is worth."""
        return self.reals[view.WEIGHT]

    @cached_property
    def submitted(self) -> Floats:
        """When each job came."""
        return self.snap.jobs.submitted

    @cached_property
    def elapsed(self) -> Floats:
        """Seconds since it came."""
        return self.snap.now - self.submitted

    @cached_property
    def steps_done(self) -> Floats:
        """Steps that each job has made."""
        return self.snap.jobs.steps_done

    @cached_property
    def deadline(self) -> Floats:
        """When each job should be over; inf = any time."""
        return self.snap.jobs.deadline

    @cached_property
    def prices(self) -> Floats:
        """$ per GPU and hour, 1 where nobody said."""
        return np.where(np.isnan(self.snap.prices), 1.0, self.snap.prices)

    @cached_property
    def steps_left(self) -> Floats:
        """Steps that are left; a guess where nobody knows."""
        left = self.snap.jobs.steps - self.steps_done
        return np.where(np.isnan(left), self.best * UNKNOWN_LENGTH_S, np.maximum(left, 0.0))

    def may_share(self, a: int, b: int) -> bool:
        """Whether two jobs could share devices: as many workers, of one whole GPU each."""
        return bool(self.plain[a] and self.plain[b] and self.size[a] == self.size[b])

    @property
    def names(self) -> tuple[str, ...]:
        """The GPU types' names, by column."""
        return tuple(self.snap.inventory.types)

    def columns(self) -> list[int]:
        """Columns of the types that have capacity, in the order of the cluster; by name where *published*."""
        there: list[int] = np.flatnonzero(self.capacity > 0).tolist()
        return self.by_name() if self.published else there

    def by_name(self) -> list[int]:
        """The same in the order of their names: what Gavel's published code does depends on it."""
        return sorted(np.flatnonzero(self.capacity > 0).tolist(), key=self.names.__getitem__)
