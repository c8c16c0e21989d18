"""Active jobs as columns: integers, floats, and preferences for GPU types.

A job has a slot. Slots are reused after the end of a job, so the length of the table is the most jobs that were active
at once. `order` lists the slots by (submitted, number). Columns are views into the blocks: `table.min[slot]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from levada.core.job import Preemptible
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS, NOT_ALLOWED
from levada.core.reasons import Code
from levada.core.types import FEW, WHOLE, Bools, Floats, Ints
from levada.kernels import assignment

#: Value of `resizes_in_place`: the job tolerates the loss of any worker, including worker 0.
ANY_LOSS = 2
#: Value of `saved`: the job saves a checkpoint when it is asked to stop.
SAVES_ON_STOP = 2


class JobColumns:
    """The columns of a job, by name."""

    # request of the user
    number: Ints  #: unique, increases with each job; -1 in a free slot
    min: Ints  #: the range that policies see: the original range, or `fixed`
    max: Ints
    step: Ints
    desired: Ints
    own_min: Ints  #: the original range, within which the job tolerates a loss of workers
    own_max: Ints
    fixed: Ints  #: size fixed by the user, within the original range; 0 = none
    below_fixed: Ints  #: may be smaller than `fixed`, e.g. after a loss, until it can grow back
    milli: Ints
    gpu_memory: Ints
    cpu: Ints
    memory: Ints
    servers: Ints
    server_cpu: Ints
    server_memory: Ints
    priority: Ints
    queue: Ints
    queue_name: Ints  #: the queue named by the user; while it does not exist, the job is in the default queue
    workload: Ints
    entity: Ints
    preemptible: Ints
    resizes_in_place: Ints  #: according to the backend: 0 = by restart, 1 = in place, or ANY_LOSS
    retries: Ints
    any_type: Ints
    affinity: Ints  #: numbers of tags; 0 = none
    anti_affinity: Ints
    exclusion: Ints
    node_class: Ints  #: number of the class of nodes that it may use; 0 = any node
    has_rows: Ints  #: has rows in assignments: GPU fractions, CPU-only workers or parameter servers, or is packed
    # target
    type: Ints  #: -1 = none
    count: Ints
    # held: used, or claimed by an issued operation
    held_type: Ints  #: -1 = none
    held: Ints
    observed: Ints  #: workers observed to run
    # state
    phase: Ints
    generation: Ints
    op: Ints  #: the operation that is needed or in progress, an `OpKind`
    issued: Ints  #: whether that operation is issued
    intent: Ints  #: what happens once it has stopped, an `Intent`
    reason: Ints
    evidence: Ints
    stopped_by: Ints  #: packed reason of the last stop that was not by a decision, until it runs again
    saved: Ints  #: may be stopped without loss of work: 1 = has a checkpoint of this run, or SAVES_ON_STOP
    accepts_loss: Ints  #: its user forces a resize although unsaved work is lost; until its next operation
    aside: Ints  #: excluded from decisions: 1 = until it is resumed or updated, 2 = permanently
    failures: Ints  #: failed operations in a row
    unsure: Ints  #: the outcome of an operation is unknown: it may hold old devices, new ones, or both
    restarts: Ints  #: restarts of all its workers, for any reason
    retried: Ints  #: used retries: restarts after its own failures
    resizes: Ints
    moves: Ints
    waits_for: Ints  #: dependencies that have not succeeded yet; -1 = one of them failed
    changed: Ints  #: revision of its last change; decisions on older snapshots do not apply
    feasible: Ints  #: an empty cluster could hold its minimum
    batch: Ints  #: batch size set by the policy; 0 = the job's own
    rank: Ints  #: its position in the policy's order at its last decision
    ran: Ints  #: the last generation confirmed running, until its end is known; 0 = none
    submitted: Floats
    weight: Floats
    steps: Floats  #: total; nan = unknown
    steps_done: Floats
    deadline: Floats  #: inf = none
    time_limit: Floats  #: of running time; inf = none
    first_started: Floats  #: inf = never
    started: Floats  #: of this run
    resized: Floats  #: its last start, resize or move
    since: Floats  #: time of the last accounting
    waiting_s: Floats
    running_s: Floats
    gpu_seconds: Floats
    run_waiting_s: Floats
    run_running_s: Floats
    run_gpu_seconds: Floats
    reported: Floats  #: its last report of progress, start or resize
    retry_at: Floats
    issued_at: Floats  #: when its last operation was issued
    op_deadline: Floats


#: The rank of a job without a decision.
_LAST = 1 << 30

# `layout` numbers the columns; the class above declares and documents them.
_DECLARED = {kind: tuple(n for n, k in JobColumns.__annotations__.items() if k == kind) for kind in ("Ints", "Floats")}
assert _DECLARED == {"Ints": INT_COLUMNS, "Floats": FLOAT_COLUMNS}


#: Default values of new jobs, where not 0.
DEFAULTS: Mapping[str, float] = {
    "min": 1,
    "max": 1,
    "step": 1,
    "milli": WHOLE,
    "preemptible": Preemptible.ALWAYS,
    "resizes_in_place": 1,
    "type": -1,
    "held_type": -1,
    "feasible": 1,
    "reason": Code.NEW,
    "rank": _LAST,
    "weight": 1.0,
    "steps": math.nan,
    "deadline": math.inf,
    "time_limit": math.inf,
    "first_started": math.inf,
    "op_deadline": math.inf,
}
NEW_INTS = np.array([DEFAULTS.get(name, 0) for name in INT_COLUMNS], np.int64)[:, None]
NEW_FLOATS = np.array([DEFAULTS.get(name, 0) for name in FLOAT_COLUMNS], np.float64)[:, None]


#: Columns of a new job that `ClusterState` assigns.
FACTS = ("number", "workload", "entity", "queue_name", "queue", "any_type")
_ORDER, _NUMBERS, _SLOTS = range(3)
_SPARE = 64


class JobTable(JobColumns):
    """Columns of the active jobs."""

    def __init__(self, types: int = 1, capacity: int = 64) -> None:
        self.ints = np.zeros((len(INT_COLUMNS), capacity), np.int64)
        self.floats = np.zeros((len(FLOAT_COLUMNS), capacity), np.float64)
        #: rank of each type for the job, 0 = preferred; NOT_ALLOWED elsewhere. Shape (types, capacity).
        self.preference = np.full((types, capacity), NOT_ALLOWED, np.int16)
        # Slots in order; job numbers, which are sorted because they only increase, and their slots.
        self.order: Ints
        self._numbers: Ints
        self._slots: Ints
        # Storage of these three, with spare capacity.
        self._lines: Ints = np.zeros((3, _SPARE), np.int64)
        self._name_lines(0)
        # Slots by number, for lookups of single jobs.
        self._slot_of: dict[int, int] = {}
        self._free: list[int] = list(range(capacity - 1, -1, -1))
        self._name_columns()
        self.number[:] = -1

    def _name_columns(self) -> None:
        for i, name in enumerate(INT_COLUMNS):
            setattr(self, name, self.ints[i])
        for i, name in enumerate(FLOAT_COLUMNS):
            setattr(self, name, self.floats[i])

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return self.ints.shape[1]

    def __len__(self) -> int:
        return len(self.order)

    def add(self, ints: Ints, floats: Floats, rows: Ints, facts: Ints, ranks: Ints) -> Ints:
        """Add jobs from *rows* of the two blocks, with their `FACTS` and preferences; returns their slots."""
        while len(self._free) < len(rows):
            self._grow()
        slots = np.array([self._free.pop() for _ in range(len(rows))], np.int64)
        before, active = len(self.order), len(self.order) + len(rows)
        if active > self._lines.shape[1]:
            self._lines = np.concatenate([self._lines, np.empty((3, active + _SPARE), np.int64)], axis=1)
        in_order = assignment.insert_jobs(
            self.ints, self.floats, self.preference, self._lines, before, slots, ints, floats, rows, facts, ranks
        )
        if not in_order:
            self._lines = self._lines.copy()
            order = self._lines[_ORDER, :active]
            order[:] = order[np.lexsort((self.number[order], self.submitted[order]))]
        self._slot_of.update(zip(facts[:, 0].tolist(), slots.tolist(), strict=True))
        self._name_lines(active)
        return slots

    def _name_lines(self, active: int) -> None:
        """Update the views. Earlier views stay valid: values are only appended behind their end."""
        self.order, self._numbers, self._slots = (
            self._lines[_ORDER, :active],
            self._lines[_NUMBERS, :active],
            self._lines[_SLOTS, :active],
        )

    def leave(self, slots: Ints) -> None:
        """Free the slots of ended jobs."""
        self._lines = assignment.remove_slots(self._lines, len(self.order), slots, self.capacity)
        self._name_lines(len(self.order) - len(slots))
        # A loop is faster than numpy for a single slot, the usual case.
        for slot in reversed(slots.tolist()):
            del self._slot_of[self.number.item(slot)]
            self.number[slot] = -1
            self._free.append(slot)

    def rebuild_index(self, free: Iterable[int] | None = None) -> None:
        """Recompute the order and index from the columns; *free* slots are used from the end."""
        slots = (self.number >= 0).nonzero()[0]
        by_number = slots[self.number[slots].argsort()]
        self._lines = np.zeros((3, len(slots) + _SPARE), np.int64)
        self._name_lines(len(slots))
        self.order[:] = slots[np.lexsort((self.number[slots], self.submitted[slots]))]
        self._numbers[:], self._slots[:] = self.number[by_number], by_number
        self._slot_of = dict(zip(self._numbers.tolist(), by_number.tolist(), strict=True))
        self._free = (self.number < 0).nonzero()[0][::-1].tolist() if free is None else list(free)

    def adopt(self, other: JobTable, slot: int, preference: Ints) -> int:
        """Copy a job from another table, with these preferences by type; returns its new slot."""
        if not self._free:
            self._grow()
        new_slot = self._free[-1]
        self.ints[:, new_slot], self.floats[:, new_slot] = other.ints[:, slot], other.floats[:, slot]
        self.preference[:, new_slot] = preference
        self.rebuild_index(self._free[:-1])
        return new_slot

    @property
    def free_slots(self) -> tuple[int, ...]:
        """Slots without a job; the last one is used next."""
        return tuple(self._free)

    def slot_of(self, number: int) -> int:
        """The slot of a job by number; -1 for ended and unknown jobs."""
        return self._slot_of.get(number, -1)

    def find(self, numbers: Ints) -> Ints:
        """The slots of jobs by number; -1 for ended and unknown jobs."""
        if len(numbers) < FEW:
            # Most events are about few jobs, for which numpy is slower.
            return np.array([self._slot_of.get(number, -1) for number in numbers.tolist()], np.int64)
        if not len(self._numbers):
            return np.full(len(numbers), -1, np.int64)
        at = np.minimum(self._numbers.searchsorted(numbers), len(self._numbers) - 1)
        return np.where(self._numbers.take(at) == numbers, self._slots.take(at), -1)

    @property
    def index(self) -> tuple[Ints, Ints]:
        """The numbers of active jobs, ascending, and their slots."""
        return self._numbers, self._slots

    def _grow(self) -> None:
        old = self.capacity
        self.ints = np.concatenate([self.ints, np.zeros_like(self.ints)], axis=1)
        self.floats = np.concatenate([self.floats, np.zeros_like(self.floats)], axis=1)
        self.preference = np.concatenate([self.preference, np.full_like(self.preference, NOT_ALLOWED)], axis=1)
        self._free = list(range(2 * old - 1, old - 1, -1)) + self._free
        self._name_columns()
        self.number[old:] = -1

    def add_types(self, types: int) -> None:
        """Add GPU types; jobs that allow any type prefer new types least."""
        known = self.preference.shape[0]
        for new in range(known, types):
            row = np.where(self.any_type > 0, new, NOT_ALLOWED).astype(np.int16)
            self.preference = np.concatenate([self.preference, row[None, :]])

    def units(self) -> Ints:
        """Units of its type per worker, per slot: 1/1000ths of a GPU, or of a core for workers without a GPU."""
        return np.where(self.milli > 0, self.milli, self.cpu)

    def copy(self) -> JobTable:
        """An independent copy."""
        twin = JobTable.__new__(JobTable)
        twin.ints, twin.floats, twin.preference = self.ints.copy(), self.floats.copy(), self.preference.copy()
        twin._lines, twin._slot_of, twin._free = self._lines.copy(), self._slot_of.copy(), self._free.copy()
        twin._name_lines(len(self.order))
        twin._name_columns()
        return twin


def needs_rows(milli: Ints, servers: Ints) -> Bools:
    """Which jobs need more than whole GPUs and therefore always have rows in assignments."""
    return np.asarray((milli == 0) | (milli % WHOLE != 0) | (servers > 0))
