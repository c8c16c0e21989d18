"""Everything the engine remembers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from levada.core.codes import Codes
from levada.core.commands import Command
from levada.core.decision import Reservation
from levada.core.types import Bools, Floats, Ints, distinct
from levada.engine.options import Options
from levada.kernels import jobs, survey
from levada.perf import Beliefs, Observations, RestartKind
from levada.policies.protocol import AnyPolicy
from levada.policies.queued import Queued
from levada.tables.world import World


class Intent(Codes):
    """What becomes of a job when it has stopped."""

    WAIT: Final = 0
    SUSPEND: Final = 1
    CANCEL: Final = 2
    FAIL: Final = 3
    #: A time limit ends a job as its user wished it: it fails, with that reason.
    TIME_LIMIT: Final = 4
    #: The job is done; a start or resize that was issued before this was known is stopped first.
    SUCCEED: Final = 5


#: Batches of observations that may wait for the next decision; more are learned at once, so that memory is bounded.
_MOST_LESSONS = 1024

MakePolicy: TypeAlias = Callable[[str, Mapping[str, Any]], AnyPolicy]


class State:
    """The world, the policy with its state, and what is under way."""

    def __init__(
        self,
        world: World,
        policy: Queued[Any],
        make_policy: MakePolicy,
        perf: Beliefs,
        options: Options,
        seed: int,
    ) -> None:
        self.world = world
        self.policy = policy
        #: What the policy was made by, and with: a class in a file calls itself otherwise.
        self.policy_named = policy.name
        self.policy_options: Mapping[str, Any] = {}
        self.make_policy = make_policy
        self.policy_state: Any = policy.initial(seed)
        self.perf = perf
        self.options = options
        self.seed = seed
        self.now = -math.inf
        #: Counts events; a job's `changed` is the revision of its last change.
        self.revision = 0
        #: Something happened that a decision should hear of.
        self.dirty = False
        #: Jobs came or went since the last decision, and until when the policy said that this is no news by itself.
        self.turnover = False
        self.heed_at = -math.inf
        #: Until then it need only be shown jobs that wait.
        self.fills = False
        #: Operations were done, or given up, since the last decision.
        self.acked = False
        #: Some job was not in view of the last decision, or what it said of one did not count, for an operation on it.
        self.left_out = False
        #: The revision that the policy is thinking about, if it is.
        self.deciding: int | None = None
        #: The policy itself was asked, not the plain FIFO that takes over from one whose decisions were rejected.
        self.asked_policy = True
        #: Numbers of the jobs that it was shown; replaced, never written to.
        self.in_view: Ints = np.zeros(0, np.int64)
        self.last_decided = -math.inf
        #: The revision at which devices were last numbered anew.
        self.renumbered = -1
        self.rejections = 0
        self.last_rejection = ""
        self.stale_results = 0
        #: Events that made no sense and changed nothing.
        self.refused = 0
        self.next_try = -math.inf
        #: When time alone could change the answer, as the policy said.
        self.policy_wake = math.inf
        self.guard_wake = math.inf
        #: No deadline, pause or time limit of a job ends before this; `alarms.ring` looks what has come.
        self.next_alarm = math.inf
        #: Some operation may be able to go out that could not before.
        self.may_issue = False
        #: Some operation could not go out when that was last tried.
        self.unsent = False
        self.last_rung = -math.inf
        #: Targets changed since cycles of waits were last looked for; a release alone makes none.
        self.may_cycle = False
        #: What was seen of jobs' speed and restarts, and jobs that are over, since beliefs were last asked for.
        self.lessons: list[Observations] = []
        self.pauses: list[tuple[RestartKind, Ints, Floats]] = []
        self.over: list[Ints] = []
        #: What the shell was last told.
        self.told_wake = math.inf
        self.reservations: dict[str, Reservation] = {}
        #: Jobs that come after a job, by its number.
        self.dependents: dict[int, list[int]] = {}
        #: How often a job left by itself soon after its start, in a row, by its number.
        self.leaves: dict[int, int] = {}
        #: Rows that operations under way have claimed, by job number; whole devices are marked in the held plane.
        self.claimed_rows: dict[int, Ints] = {}
        #: How many workers of a shape an empty cluster could hold, per type; forgotten when the cluster changes.
        self.most_workers: dict[tuple[int, ...], Ints] = {}
        #: Wishes of jobs that it could hold, where no queue has limits; forgotten likewise.
        self.fits: set[bytes] = set()
        self.submitted = 0
        self.ended = 0
        self.commands: list[Command] = []

    # --- small verbs that all events use --------------------------------------------------------------------------

    def settle(self, slots: Ints) -> None:
        """These jobs changed as they were meant to, which is no news for policies that do not ask for it."""
        self.world.table.changed[slots] = self.revision
        self.acked = True

    def touch(self, slots: Ints) -> None:
        """These jobs changed: decisions made before do not count for them, and a new one is due."""
        self.world.table.changed[slots] = self.revision
        self.dirty = True

    def could_fill(self) -> bool:
        """Whether some job waits for what is free: at a glance, so that it may turn out to be of no use to it."""
        table = self.world.table
        return survey.could_fill(table.ints, table.order, self.world.target.owner)

    def freed(self) -> None:
        """Something is free again: operations that wait for it may be able to go out."""
        self.may_issue |= self.unsent

    def account(self, slots: Ints) -> None:
        """Brings the times of these jobs up to now; call it before what they are seen to do changes."""
        table = self.world.table
        jobs.accrue_all(table.ints, table.floats, slots, self.now)

    def alarm(self, at: float) -> None:
        """Something is due at that time, unless it is settled before."""
        self.next_alarm = min(self.next_alarm, at)

    def pause(self, slot: int, seconds: float) -> None:
        """No decision is about the job, and no operation on it goes out, for so long."""
        self.world.table.retry_at[slot] = self.now + seconds
        self.alarm(self.now + seconds)

    def give_another_chance(self) -> None:
        """Circumstances changed: a policy whose decisions were rejected may be trusted again."""
        self.rejections = 0
        self.next_try = -math.inf
        self.dirty = True

    def note(self, seen: Observations) -> None:
        """Remembers what was seen of jobs' speed until beliefs are asked for."""
        self.lessons.append(seen)
        if len(self.lessons) >= _MOST_LESSONS:
            self.learn()

    def learn(self) -> None:
        """Lets beliefs catch up with what was seen. Many lessons at once cost about as much as one."""
        self._teach(self.perf)
        self.lessons, self.pauses, self.over = [], [], []

    def beliefs(self) -> Beliefs:
        """The throughput model after all lessons, for readers: nothing of the state changes."""
        if not (self.lessons or self.pauses or self.over):
            return self.perf
        beliefs = self.copy_of_perf(self.world)
        self._teach(beliefs)
        return beliefs

    def _teach(self, perf: Beliefs) -> None:
        """Tells *perf* what was seen since beliefs were last asked for."""
        if self.lessons:
            names = Observations.__struct_fields__
            columns = {name: np.concatenate([getattr(lesson, name) for lesson in self.lessons]) for name in names}
            perf.observe(Observations(**columns))
        if perf.learns:
            for kind, workloads, seconds in self.pauses:
                for workload, pause in zip(workloads.tolist(), seconds.tolist(), strict=True):
                    perf.observe_restart(workload, kind, pause)
        if self.over:
            perf.unbind(np.concatenate(self.over))

    def copy_of_perf(self, world: World) -> Beliefs:
        """An independent copy of the throughput model, for a state with *world*."""
        perf = self.perf.copy()
        perf.attach(world.workloads, world.inventory.types)
        return perf

    def say(self, slots: Ints, code: int, evidence: int | Ints = 0) -> None:
        """Gives these jobs a reason."""
        self.world.table.reason[slots] = code
        self.world.table.evidence[slots] = evidence

    def flags(self, slots: Ints) -> Bools:
        """True at these slots."""
        marks = np.zeros(self.world.table.capacity, bool)
        marks[slots] = True
        return marks

    def protected(self) -> Bools:
        """Per slot whether a decision may not stop, shrink or move what it has."""
        return jobs.protected_slots(self.world.table.ints)

    def restart_loses_work(self) -> Bools:
        """Per slot whether any change is a restart from nothing that this run has done."""
        table = self.world.table
        return (table.resizes_in_place == 0) & (table.saved == 0)

    def backoff(self, number: int, failures: int) -> float:
        """Seconds until the next try: doubling, with a jitter that is the same for the same job and try."""
        pause = min(self.options.backoff_s * 2.0 ** min(failures - 1, 30), self.options.backoff_max_s)
        jitter = ((number * 2654435761 + failures * 40503) & 0xFFFF) / 0xFFFF
        return pause * (0.75 + 0.5 * jitter)

    def current(self, numbers: Ints, generations: Ints) -> tuple[Ints, Ints]:
        """Slots that a report speaks of now, and their rows in it: unknown jobs and old generations drop out."""
        slots = self.world.table.find(numbers)
        known = (slots >= 0).nonzero()[0]
        fresh = known[self.world.table.generation[slots[known]] == generations[known]]
        # One report per job: a batch may say the same twice.
        if len(fresh) > 1:
            _, first = np.unique(slots[fresh], return_index=True)
            fresh = fresh[np.sort(first)]
        return slots[fresh], fresh

    def active_slots(self, numbers: Ints) -> Ints:
        """Slots of the jobs that are not over, each once."""
        slots = self.world.table.find(numbers)
        if len(slots) == 1:
            return slots if slots[0] >= 0 else slots[:0]
        return distinct(slots[slots >= 0])

    def wants_stop(self, slots: Ints, intent: int) -> None:
        """These jobs shall hold nothing, and *intent* follows when they do."""
        table = self.world.table
        self.world.clear_workers(self.world.target, slots)
        table.count[slots] = 0
        table.type[slots] = -1
        table.intent[slots] = intent
        self.touch(slots)

    def living(self) -> Ints:
        """Slots of all jobs that are not over, by (submitted, number)."""
        return self.world.table.order

    def where(self, marks: Bools) -> Ints:
        """The living slots among the marked ones, by (submitted, number).

        For marks that few slots have: whole columns are compared, which is much faster than `column[living()]`.
        """
        table = self.world.table
        slots = marks.nonzero()[0]
        slots = slots[table.number[slots] >= 0]  # a free slot keeps what the last job left in it
        return slots[np.lexsort((table.number[slots], table.submitted[slots]))] if len(slots) > 1 else slots

    def become(self, other: State) -> None:
        """Takes over all that *other* has, which must not be used after this."""
        self.__dict__.update(other.__dict__)
