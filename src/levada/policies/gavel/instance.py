"""A snapshot as arrays for share policies: rates, sizes, capacity, remaining work."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels import rates, view
from levada.perf.model import ThroughputModel
from levada.tables.snapshot import Snapshot

#: Assumed remaining time, on its fastest type, of a job of unknown length.
UNKNOWN_LENGTH_S = 3600.0


def jobs_of(snap: Snapshot, supply: Ints, most: Ints) -> tuple[Ints, Floats, Bools]:
    """The jobs as blocks of `kernels.view`, and per job and type whether it may run.

    Share policies do not choose sizes, but a size is capped at *most* of each type.
    """
    table, slots = snap.table, snap.jobs.slots
    return view.jobs(table.ints, table.floats, slots, *snap.liking, supply[view.EXISTS], most)


class Instance:
    """A snapshot as arrays over the jobs in view (rows) and GPU types (columns)."""

    def __init__(self, snap: Snapshot, perf: ThroughputModel, *, published: bool = False) -> None:
        """*published*: list types by name, as Gavel's scheduler does."""
        self.snap = snap
        self.published = published
        self.perf = perf
        #: The supply of each type: rows as in `kernels.view`.
        self.supply: Ints = snap.inventory.allocatable.supply
        #: The jobs in two blocks: rows as in `kernels.view`.
        self.jobs, self.reals, self.allowed = jobs_of(snap, self.supply, snap.capacity)
        self.number: Ints = self.jobs[view.NUMBER]
        #: Workers of each job.
        self.size: Ints = self.jobs[view.SIZE]
        #: Steps/s of the whole job; 0 = cannot run there.
        self.rate: Floats = perf.rates_by_type(self.number, self.size, len(snap.capacity))
        #: The best rate of each job, and all rates relative to it.
        self.best, self.relative = rates.mask_rates(self.rate, self.allowed, self.jobs[view.MILLI])

    def __len__(self) -> int:
        return len(self.number)

    # --- computed on demand, for share policies -----------------------------------------------------------------------

    @cached_property
    def _amounts(self) -> tuple[Floats, Floats, Ints]:
        return view.amounts(self.jobs, self.snap.table.ints, self.snap.jobs.slots, self.snap.capacity)

    @property
    def scale(self) -> Floats:
        """GPUs of each job (cores for a CPU job)."""
        return self._amounts[0]

    @property
    def capacity(self) -> Floats:
        """GPUs of each type; cores are for CPU jobs and may be unlimited."""
        return self._amounts[1]

    @property
    def alike(self) -> Ints:
        """Other criteria of a job class: entity, workload, and whether jobs are plain."""
        return self._amounts[2]

    @property
    def entity(self) -> Ints:
        """The entity of each job."""
        return self.alike[0]

    @cached_property
    def plain(self) -> Bools:
        """Whether workers have one whole GPU each; only such jobs share devices."""
        return np.asarray(self.alike[2] > 0)

    @property
    def weight(self) -> Floats:
        """The weight of each job."""
        return self.reals[view.WEIGHT]

    @cached_property
    def submitted(self) -> Floats:
        """The submission time of each job."""
        return self.snap.jobs.submitted

    @cached_property
    def elapsed(self) -> Floats:
        """Seconds since submission."""
        return self.snap.now - self.submitted

    @cached_property
    def steps_done(self) -> Floats:
        """Completed steps of each job."""
        return self.snap.jobs.steps_done

    @cached_property
    def deadline(self) -> Floats:
        """The deadline of each job; inf = none."""
        return self.snap.jobs.deadline

    @cached_property
    def prices(self) -> Floats:
        """$ per GPU and hour; 1 if not set."""
        return np.where(np.isnan(self.snap.prices), 1.0, self.snap.prices)

    @cached_property
    def steps_left(self) -> Floats:
        """Remaining steps; an estimate where the total is unknown."""
        left = self.snap.jobs.steps - self.steps_done
        return np.where(np.isnan(left), self.best * UNKNOWN_LENGTH_S, np.maximum(left, 0.0))

    def may_share(self, a: int, b: int) -> bool:
        """Whether two jobs could share devices: both plain, with equally many workers."""
        return bool(self.plain[a] and self.plain[b] and self.size[a] == self.size[b])

    @property
    def names(self) -> tuple[str, ...]:
        """The GPU types' names, by column."""
        return tuple(self.snap.inventory.types)

    def columns(self) -> list[int]:
        """Columns of types with capacity, in cluster order; by name if *published*."""
        present: list[int] = np.flatnonzero(self.capacity > 0).tolist()
        return self.by_name() if self.published else present

    def by_name(self) -> list[int]:
        """The same columns by type name, the order of Gavel's published code."""
        return sorted(np.flatnonzero(self.capacity > 0).tolist(), key=self.names.__getitem__)
