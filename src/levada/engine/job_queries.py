"""Read-only views of jobs: all as columns, or one as a struct of plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from levada.core.job import Phase
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.types import Ints
from levada.engine.state import State
from levada.tables.job_table import JobColumns, JobTable


def read_only(array: Any) -> Any:
    """A view of *array* that raises on writes; shares its memory."""
    view = array.view()
    view.flags.writeable = False
    return view


class JobState(msgspec.Struct, frozen=True):
    """An active job between two events; fields are columns of `JobColumns`."""

    number: int
    min: int
    max: int
    step: int
    own_min: int
    own_max: int
    fixed: int
    below_fixed: int
    milli: int
    priority: int
    queue_name: int
    preemptible: int
    resizes_in_place: int
    retries: int
    count: int
    held_type: int
    held: int
    observed: int
    phase: int
    generation: int
    reason: int
    evidence: int
    saved: int
    restarts: int
    retried: int
    resizes: int
    moves: int
    changed: int
    feasible: int
    submitted: float
    steps: float
    steps_done: float
    deadline: float
    time_limit: float
    first_started: float
    resized: float
    since: float
    waiting_s: float
    running_s: float
    gpu_seconds: float
    run_running_s: float
    reported: float

    @property
    def has_reported(self) -> bool:
        """Whether the job has reported progress, ever or since its last start."""
        return self.steps_done > 0 or self.reported > self.resized


_INTS = [INT_COLUMNS.index(name) for name, kind in JobState.__annotations__.items() if kind == "int"]
_FLOATS = [FLOAT_COLUMNS.index(name) for name, kind in JobState.__annotations__.items() if kind == "float"]


class JobsView(JobColumns):
    """The columns of all active jobs by slot, read-only and without a copy; valid until the next event."""

    def __init__(self, table: JobTable) -> None:
        self._table, self._block = table, table.ints
        for name in (*INT_COLUMNS, *FLOAT_COLUMNS):
            setattr(self, name, read_only(getattr(table, name)))

    def __len__(self) -> int:
        return len(self._table)

    @property
    def capacity(self) -> int:
        """The number of slots, used or not."""
        return self._block.shape[1]

    def is_of(self, table: JobTable) -> bool:
        """Whether the view is still of *table*, which moves to larger blocks as it grows."""
        return self._block is table.ints

    @property
    def order(self) -> Ints:
        """Slots of the active jobs by (submitted, number)."""
        order: Ints = read_only(self._table.order)
        return order

    def find(self, numbers: Ints) -> Ints:
        """Slots of jobs by number; -1 for ended and unknown jobs."""
        return self._table.find(numbers)

    def among(self, names: Sequence[str]) -> Ints:
        """A copy of these integer columns, one row each."""
        return self._table.ints[[INT_COLUMNS.index(name) for name in names]]


def job_state(table: JobTable, slot: int) -> JobState:
    """The job in *slot*."""
    return JobState(*table.ints[_INTS, slot].tolist(), *table.floats[_FLOATS, slot].tolist())


def positions(state: State) -> dict[int, int]:
    """The position of each pending job in the policy's order, from 1, by number."""
    table, slots = state.world.table, _pending(state)
    slots = slots[np.lexsort((table.number[slots], table.submitted[slots], table.rank[slots]))]
    return {number: position for position, number in enumerate(table.number[slots].tolist(), 1)}


def position(state: State, slot: int) -> int | None:
    """The position of one job, in O(pending jobs); None if it is not waiting for devices."""
    table, slots = state.world.table, _pending(state)
    if slot not in slots:
        return None
    rank, submitted, number = table.rank[slots], table.submitted[slots], table.number[slots]
    same_time = (submitted == table.submitted[slot]) & (number <= table.number[slot])
    same_rank = (rank == table.rank[slot]) & ((submitted < table.submitted[slot]) | same_time)
    return int(((rank < table.rank[slot]) | same_rank).sum())


def _pending(state: State) -> Ints:
    """Slots of the jobs that wait only for devices, in no order."""
    table, slots = state.world.table, state.living()
    waits = (table.phase[slots] == Phase.PENDING) & (table.count[slots] == 0) & (table.aside[slots] == 0)
    return slots[waits & (table.feasible[slots] > 0) & (table.waits_for[slots] == 0)]
