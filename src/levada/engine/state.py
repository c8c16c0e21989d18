"""The state of an engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from levada.tables.cluster_state import ClusterState


class Intent(Codes):
    """What happens to a job once it has stopped."""

    WAIT: Final = 0
    SUSPEND: Final = 1
    CANCEL: Final = 2
    FAIL: Final = 3
    #: Fail with the reason `time-limit`.
    TIME_LIMIT: Final = 4
    #: The job has finished; workers of an operation issued before that was known are stopped first.
    SUCCEED: Final = 5


#: Batches of observations that may wait for the next decision; bounds the memory.
_MOST_LESSONS = 1024

MakePolicy: TypeAlias = Callable[[str, Mapping[str, Any]], AnyPolicy]


class State:
    """Cluster, jobs, policy state and pending work of an engine."""

    def __init__(
        self,
        world: ClusterState,
        policy: Queued[Any],
        make_policy: MakePolicy,
        perf: Beliefs,
        options: Options,
        seed: int,
    ) -> None:
        self.world = world
        self.policy = policy
        #: Name and options that the policy was created with; its `name` may differ.
        self.policy_named = policy.name
        self.policy_options: Mapping[str, Any] = {}
        self.make_policy = make_policy
        self.policy_state: Any = policy.initial(seed)
        self.perf = perf
        self.options = options
        self.seed = seed
        self.now = -math.inf
        self._init_decisions()
        self._init_timers()
        self._init_jobs()
        self.submitted = 0
        self.ended = 0
        self.commands: list[Command] = []

    def _init_decisions(self) -> None:
        """Set the fields about what needs a decision, the pending one and rejected ones."""
        #: Counts events; a job's `changed` is the revision of its last change.
        self.revision = 0
        #: Something changed that needs a decision.
        self.dirty = False
        #: Jobs came or ended since the last decision.
        self.turnover = False
        #: The policy ignores turnover until this time, except to fill free devices.
        self.heed_at = -math.inf
        #: Until `heed_at`, decisions need only pending jobs.
        self.fills = False
        #: Operations completed or failed since the last decision.
        self.acked = False
        #: The last decision left out a job because of an operation on it.
        self.left_out = False
        #: The revision of the snapshot that the policy is deciding about, if any.
        self.deciding: int | None = None
        #: The pending decision is by the policy, not by the FIFO fill that replaces it after too many rejections.
        self.asked_policy = True
        #: The pending decision is about pending jobs only.
        self.fill_only = False
        #: How often the policy decided again because grants did not fit on eligible nodes, and the most workers of each
        #: job, by number, that did; replaced, never written to. See `eligibility`.
        self.redecisions = 0
        self.most_placed: Mapping[int, int] = {}
        #: Numbers of the jobs in the snapshot; replaced, never written to.
        self.in_view: Ints = np.zeros(0, np.int64)
        self.last_decided = -math.inf
        #: The revision at which devices were last renumbered.
        self.renumbered = -1
        self.rejections = 0
        self.last_rejection = ""
        self.stale_results = 0
        #: Number of invalid events.
        self.refused = 0
        self.next_try = -math.inf

    def _init_timers(self) -> None:
        """Set the fields about the next wake-up and about operations that are not issued yet."""
        #: Since when the backend is unreachable; None if it is not.
        self.away_since: float | None = None
        #: When the policy wants the next decision even without an event.
        self.policy_wake = math.inf
        self.guard_wake = math.inf
        #: No operation deadline, backoff or time limit of a job ends before this time.
        self.next_alarm = math.inf
        #: An operation may have become issuable.
        self.may_issue = False
        #: An operation was not issuable at the last attempt.
        self.unsent = False
        self.last_rung = -math.inf
        #: Targets changed since the last search for cycles of waiting jobs; a release alone makes no cycle.
        self.may_cycle = False
        #: The time of the last `Wake`.
        self.told_wake = math.inf

    def _init_jobs(self) -> None:
        """Set the fields that are keyed by job, and the caches."""
        #: Observed rates, durations of restarts, and ended jobs that the throughput model has not seen yet.
        self.lessons: list[Observations] = []
        self.pauses: list[tuple[RestartKind, Ints, Floats]] = []
        self.over: list[Ints] = []
        self.reservations: dict[str, Reservation] = {}
        #: Ids of serving pods whose reservations expired; replaced, never written to.
        self.unclaimed: Sequence[str] = ()
        #: Numbers of the jobs that depend on a job, by its number.
        self.dependents: dict[int, list[int]] = {}
        #: Consecutive early voluntary exits, by job number.
        self.leaves: dict[int, int] = {}
        #: Jobs that can never start, by number: id and phase of the failed dependency.
        self.unmet: dict[int, tuple[str, int]] = {}
        #: Rows that issued operations have claimed, by job number; whole devices are marked in `held`.
        self.claimed_rows: dict[int, Ints] = {}
        #: Cache: most workers of a shape on an empty cluster, per type; cleared when the cluster changes.
        self.most_workers: dict[tuple[int, ...], Ints] = {}
        #: Cache: feasible requests, if no queue has limits; cleared when the cluster changes.
        self.fits: set[bytes] = set()

    # --- changes ----------------------------------------------------------------------------------------------------

    def settle(self, slots: Ints) -> None:
        """Mark jobs as changed by a result of an operation, which needs a decision only for some policies."""
        self.world.table.changed[slots] = self.revision
        self.acked = True

    def touch(self, slots: Ints) -> None:
        """Mark jobs as changed: a pending decision does not apply to them, and a new one is due."""
        self.world.table.changed[slots] = self.revision
        self.dirty = True

    def could_fill(self) -> bool:
        """Whether devices are free while jobs are pending; a cheap check, which may be wrongly positive."""
        table = self.world.table
        return survey.can_fill(table.ints, table.order, self.world.target.owner)

    def freed(self) -> None:
        """Note that devices were released: operations may have become issuable."""
        self.may_issue |= self.unsent

    def account(self, slots: Ints) -> None:
        """Add the time since the last call to the accounts of these jobs; call it before their columns change."""
        table = self.world.table
        jobs.accrue_all(table.ints, table.floats, slots, self.now)

    def set_timer(self, at: float) -> None:
        """Schedule a check of all timers."""
        self.next_alarm = min(self.next_alarm, at)

    def pause(self, slot: int, seconds: float) -> None:
        """Exclude the job from decisions and operations for *seconds*."""
        self.world.table.retry_at[slot] = self.now + seconds
        self.set_timer(self.now + seconds)

    def reset_rejections(self) -> None:
        """Forget rejected decisions after a change of settings or of the cluster."""
        self.rejections = 0
        self.next_try = -math.inf
        self.dirty = True

    def note(self, observations: Observations) -> None:
        """Queue observations for the throughput model."""
        self.lessons.append(observations)
        if len(self.lessons) >= _MOST_LESSONS:
            self.learn()

    def learn(self) -> None:
        """Pass queued observations to the throughput model. A batch costs about as much as one observation."""
        self._teach(self.perf)
        self.lessons, self.pauses, self.over = [], [], []

    def beliefs(self) -> Beliefs:
        """The throughput model after all queued observations; does not change the state."""
        if not (self.lessons or self.pauses or self.over):
            return self.perf
        beliefs = self.copy_of_perf(self.world)
        self._teach(beliefs)
        return beliefs

    def _teach(self, perf: Beliefs) -> None:
        """Pass queued observations to *perf*."""
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

    def copy_of_perf(self, world: ClusterState) -> Beliefs:
        """An independent copy of the throughput model, for a state with *world*."""
        perf = self.perf.copy()
        perf.attach(world.workloads, world.inventory.types)
        return perf

    def set_reason(self, slots: Ints, code: int, evidence: int | Ints = 0) -> None:
        """Set the reason of these jobs."""
        self.world.table.reason[slots] = code
        self.world.table.evidence[slots] = evidence

    def flags(self, slots: Ints) -> Bools:
        """A mask over all slots, True at these."""
        marks = np.zeros(self.world.table.capacity, bool)
        marks[slots] = True
        return marks

    def protected(self) -> Bools:
        """Whether a decision must not stop, shrink or move the job, per slot."""
        return jobs.protected_slots(self.world.table.ints)

    def restart_loses_work(self) -> Bools:
        """Whether any change of the job is a restart that loses the work of this run, per slot."""
        table = self.world.table
        return (table.resizes_in_place == 0) & (table.saved == 0)

    def backoff(self, number: int, failures: int) -> float:
        """Seconds until the next attempt: exponential, with a jitter that depends only on job and attempt."""
        pause = min(self.options.backoff_s * 2.0 ** min(failures - 1, 30), self.options.backoff_max_s)
        jitter = ((number * 2654435761 + failures * 40503) & 0xFFFF) / 0xFFFF
        return pause * (0.75 + 0.5 * jitter)

    def current(self, numbers: Ints, generations: Ints) -> tuple[Ints, Ints]:
        """Slots and rows of a report, without unknown jobs and old generations."""
        slots = self.world.table.find(numbers)
        known = (slots >= 0).nonzero()[0]
        fresh = known[self.world.table.generation[slots[known]] == generations[known]]
        # A batch may name a job twice; its first row counts.
        if len(fresh) > 1:
            _, first = np.unique(slots[fresh], return_index=True)
            fresh = fresh[np.sort(first)]
        return slots[fresh], fresh

    def active_slots(self, numbers: Ints) -> Ints:
        """Distinct slots of those jobs that are active."""
        slots = self.world.table.find(numbers)
        if len(slots) == 1:
            return slots if slots[0] >= 0 else slots[:0]
        return distinct(slots[slots >= 0])

    def clear_targets(self, slots: Ints, intent: int) -> None:
        """Clear the targets of these jobs; *intent* is carried out once they have stopped."""
        table = self.world.table
        self.world.clear_workers(self.world.target, slots)
        table.count[slots] = 0
        table.type[slots] = -1
        table.intent[slots] = intent
        self.touch(slots)

    def living(self) -> Ints:
        """Slots of all active jobs, by (submitted, number)."""
        return self.world.table.order

    def where(self, marks: Bools) -> Ints:
        """Active slots in the mask, by (submitted, number).

        For sparse masks: comparing whole columns is much faster than indexing them with `living()`.
        """
        table = self.world.table
        slots = marks.nonzero()[0]
        slots = slots[table.number[slots] >= 0]  # free slots contain values of the last job
        return slots[np.lexsort((table.number[slots], table.submitted[slots]))] if len(slots) > 1 else slots

    def decision_due(self) -> float:
        """When the next decision is due; infinity if nothing needs one, or the backend is unreachable."""
        if self.away_since is not None:
            return math.inf
        if self.redecisions:
            return self.now
        cadence = self.policy.cadence
        wanted = min(self.policy_wake, self.guard_wake)
        # Without a wake-up time (at first, or after a rejection), events trigger decisions of every policy.
        if cadence.on_events or self.policy_wake == math.inf:
            # Completed operations matter if they kept a job out of the last decision, or if the policy asks for them.
            if self.dirty or (self.acked and (self.left_out or (self.policy.by_node and cadence.on_acks))):
                wanted = self.now
            elif self.turnover:
                wanted = self.now if self.heed_at <= self.now or self.could_fill() else min(wanted, self.heed_at)
        if wanted == math.inf:
            return math.inf
        earliest = max(wanted, self.last_decided + self.options.rate_limit_s, self.next_try)
        grid = cadence.grid_s
        return math.ceil(earliest / grid) * grid if grid > 0 else earliest

    def become(self, other: State) -> None:
        """Take over all fields of *other*, which must not be used afterwards."""
        self.__dict__.update(other.__dict__)

    def swap(self, other: State) -> None:
        """Exchange all fields with *other*."""
        self.__dict__, other.__dict__ = other.__dict__, self.__dict__
