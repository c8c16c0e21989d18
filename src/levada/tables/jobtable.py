"""Active jobs as columns: two blocks of numbers and the preference of each job for each GPU type.

A job lives in a slot; slots are used again after its end, so the table is as long as the jobs that are active at once.
`order` lists the slots by (submitted, number). Names of columns are views into the blocks: `table.min[slot]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from levada.core.job import Preemptible
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS, NOT_ALLOWED
from levada.core.reasons import Code
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.kernels import assignment

#: A job that resizes in place goes on without any worker that is lost, the first one too.
ANY_LOSS = 2
#: A job has said that it saves when it is asked to stop.
SAVES_ON_STOP = 2


class JobColumns:
    """The columns of a job, by name."""

    # what the user asked for
    number: Ints  #: unique, grows with each job; -1 in a free slot
    min: Ints  #: the range that policies see: the job's own, or narrowed to `fixed`
    max: Ints
    step: Ints
    desired: Ints
    own_min: Ints  #: the job's own range, within which it survives a loss
    own_max: Ints
    fixed: Ints  #: the size its user fixed it at, inside its own range; 0 = none
    below_fixed: Ints  #: after a loss it may be smaller than that, until it has it again
    milli: Ints
    gpu_memory: Ints
    cpu: Ints
    memory: Ints
    servers: Ints
    server_cpu: Ints
    server_memory: Ints
    priority: Ints
    queue: Ints
    queue_name: Ints  #: the queue its user named; it is in the default one while there is no such queue
    workload: Ints
    entity: Ints
    preemptible: Ints
    resizes_in_place: Ints  #: as the backend says: 0 = by restart, 1, or ANY_LOSS
    retries: Ints
    any_type: Ints
    affinity: Ints  #: numbers of tags; 0 = none
    anti_affinity: Ints
    exclusion: Ints
    has_rows: Ints  #: it has rows in planes: it takes parts, cores alone or parameter servers, or is packed
    # target: what it should have
    type: Ints  #: -1 = none
    count: Ints
    # held: what it uses, or has been told to use
    held_type: Ints  #: -1 = none
    held: Ints
    observed: Ints  #: workers seen running
    # its story
    phase: Ints
    generation: Ints
    op: Ints  #: the operation it needs or has under way, an `OpKind`
    issued: Ints  #: whether that operation is out
    intent: Ints  #: what follows when it has stopped, an `Intent`
    reason: Ints
    evidence: Ints
    stopped_by: Ints  #: why it stopped where no decision did it, until it runs again: see `core.reasons.packed`
    saved: Ints  #: it may be stopped without losing work: 1 = it has a checkpoint of this run, or SAVES_ON_STOP
    accepts_loss: Ints  #: its user wants another size now, though unsaved work is lost; until its next operation
    aside: Ints  #: it is set aside: no decision is about it; 1 = until it is resumed or updated, 2 = for good
    failures: Ints  #: operations that failed in a row
    unsure: Ints  #: an operation got lost: it may hold what it held before, what it was to hold, or both
    restarts: Ints  #: how often all its workers were started again, for whatever reason
    retried: Ints  #: how many of its retries are used: restarts after a failure of its own
    resizes: Ints
    moves: Ints
    waits_for: Ints  #: jobs it comes after that have not succeeded yet; -1 = one of them never will
    changed: Ints  #: revision of its last change; decisions made before it do not count
    feasible: Ints  #: some state of the cluster could hold it
    batch: Ints  #: batch size that the policy wants, 0 = its own
    rank: Ints  #: its place in the policy's order at the last decision about it
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
    since: Floats  #: up to when it has been accounted for
    waiting_s: Floats
    running_s: Floats
    gpu_seconds: Floats
    run_waiting_s: Floats
    run_running_s: Floats
    run_gpu_seconds: Floats
    reported: Floats  #: its last report of progress, start or resize
    retry_at: Floats
    issued_at: Floats  #: when its last operation went out
    op_deadline: Floats


#: The rank of a job that nobody has thought of yet.
_LAST = 1 << 30

# `layout` numbers the columns; the class above gives them types and says what they hold.
_DECLARED = {kind: tuple(n for n, k in JobColumns.__annotations__.items() if k == kind) for kind in ("Ints", "Floats")}
assert _DECLARED == {"Ints": INT_COLUMNS, "Floats": FLOAT_COLUMNS}


#: What a new job has, besides zeros, where nobody says otherwise.
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


#: What only the world knows of a new job, column by column.
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
        # Slots in their order; and numbers, which only grow, so that they stay sorted by themselves, with their slots.
        self.order: Ints
        self._numbers: Ints
        self._slots: Ints
        # These three with some room behind.
        self._lines: Ints = np.zeros((3, _SPARE), np.int64)
        self._name_lines(0)
        # The same for who asks about one job.
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
        """How many slots there are."""
        return self.ints.shape[1]

    def __len__(self) -> int:
        return len(self.order)

    def add(self, ints: Ints, floats: Floats, rows: Ints, facts: Ints, ranks: Ints) -> Ints:
        """The slots of new jobs: *rows* of these two blocks, with their `FACTS` and their preferences by type."""
        while len(self._free) < len(rows):
            self._grow()
        slots = np.array([self._free.pop() for _ in range(len(rows))], np.int64)
        before, living = len(self.order), len(self.order) + len(rows)
        if living > self._lines.shape[1]:
            self._lines = np.concatenate([self._lines, np.empty((3, living + _SPARE), np.int64)], axis=1)
        in_order = assignment.enter(
            self.ints, self.floats, self.preference, self._lines, before, slots, ints, floats, rows, facts, ranks
        )
        if not in_order:
            self._lines = self._lines.copy()
            order = self._lines[_ORDER, :living]
            order[:] = order[np.lexsort((self.number[order], self.submitted[order]))]
        self._slot_of.update(zip(facts[:, 0].tolist(), slots.tolist(), strict=True))
        self._name_lines(living)
        return slots

    def _name_lines(self, living: int) -> None:
        """Whoever has an earlier one of these keeps it: beyond its end more is written, but no line is changed."""
        self.order, self._numbers, self._slots = (
            self._lines[_ORDER, :living],
            self._lines[_NUMBERS, :living],
            self._lines[_SLOTS, :living],
        )

    def leave(self, slots: Ints) -> None:
        """Frees slots of jobs that are over."""
        self._lines = assignment.without(self._lines, len(self.order), slots, self.capacity)
        self._name_lines(len(self.order) - len(slots))
        # Nearly always it is one, for which numpy takes longer.
        for slot in reversed(slots.tolist()):
            del self._slot_of[self.number.item(slot)]
            self.number[slot] = -1
            self._free.append(slot)

    def list_anew(self, free: Iterable[int] | None = None) -> None:
        """Finds who lives where by the columns alone, after they were written to; *free* is used from its end."""
        slots = (self.number >= 0).nonzero()[0]
        by_number = slots[self.number[slots].argsort()]
        self._lines = np.zeros((3, len(slots) + _SPARE), np.int64)
        self._name_lines(len(slots))
        self.order[:] = slots[np.lexsort((self.number[slots], self.submitted[slots]))]
        self._numbers[:], self._slots[:] = self.number[by_number], by_number
        self._slot_of = dict(zip(self._numbers.tolist(), by_number.tolist(), strict=True))
        self._free = (self.number < 0).nonzero()[0][::-1].tolist() if free is None else list(free)

    def adopt(self, other: JobTable, slot: int, preference: Ints) -> int:
        """Takes a job over from another table as it is there, with these preferences by type; its slot here."""
        if not self._free:
            self._grow()
        mine = self._free[-1]
        self.ints[:, mine], self.floats[:, mine] = other.ints[:, slot], other.floats[:, slot]
        self.preference[:, mine] = preference
        self.list_anew(self._free[:-1])
        return mine

    @property
    def free_slots(self) -> tuple[int, ...]:
        """Slots without a job, the next to be used last."""
        return tuple(self._free)

    def slot_of(self, number: int) -> int:
        """The slot of one job by its number; -1 as below."""
        return self._slot_of.get(number, -1)

    def find(self, numbers: Ints) -> Ints:
        """The slots of jobs by number; -1 where a job is over or was never known."""
        if len(numbers) == 1:
            # Events mostly speak of one job.
            return np.array([self.slot_of(int(numbers[0]))], np.int64)
        if not len(self._numbers):
            return np.full(len(numbers), -1, np.int64)
        at = np.minimum(self._numbers.searchsorted(numbers), len(self._numbers) - 1)
        return np.where(self._numbers.take(at) == numbers, self._slots.take(at), -1)

    @property
    def index(self) -> tuple[Ints, Ints]:
        """The numbers of the active jobs, ascending, and the slot of each."""
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
        """Makes room for more GPU types; jobs that take any type like new ones least."""
        known = self.preference.shape[0]
        for new in range(known, types):
            row = np.where(self.any_type > 0, new, NOT_ALLOWED).astype(np.int16)
            self.preference = np.concatenate([self.preference, row[None, :]])

    def units(self) -> Ints:
        """Per slot what one worker takes of its type: 1/1000ths of a GPU, or of a core for workers without one."""
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
    """Which jobs take more than whole GPUs, so that they always have rows in planes."""
    return np.asarray((milli == 0) | (milli % WHOLE != 0) | (servers > 0))
