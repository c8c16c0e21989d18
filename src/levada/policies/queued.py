"""Any policy inside queues: each queue gets its share of every type, the policy decides inside it, the rest is lent.

1. Each job gets the type it competes on, as in `assign`, within the limits of its queue and those above it.
2. `QueueTree.shares` splits each type: guarantees first, then by weight. The policy runs inside each queue.
3. What is still unused is offered to one queue after the other, the largest weight first, on top of what it uses:
   never beyond its limit or an ancestor's, nor beyond the guarantee of a queue that may not borrow. An offer is taken
   where the queue uses more with it, so nothing lies idle that some queue could use.
4. Where that leaves a type idle, jobs go there as `relocate` tells, and all is shared out and lent again.
5. Where a queue limits what one user may have, `users` holds each of these decisions to it.

A queue that others lent to gives back as its share falls: the policy inside it then has less to give, and an elastic
one shrinks jobs before it stops any. A policy that decides by node sees all queues at once; `capped` holds its
decision to the limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic

import msgspec
import numpy as np

from levada.core import codec
from levada.core.decision import Decision
from levada.core.queue import DEFAULT_QUEUE
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types
from levada.policies.capped import capped, cut_view
from levada.policies.firm import decide_firmly
from levada.policies.protocol import Policy, RoundBased, RoundStats, S, decides_by_node, gives_more, knows_speeds
from levada.policies.relocate import Room, settled
from levada.policies.shares import Bounds
from levada.policies.sizes import largest, smallest
from levada.policies.users import decide_within
from levada.tables.snapshot import Snapshot


class QueueState(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """The state of the policy in each queue, by the queue's name; the one of the whole under the default queue's."""

    seed: int
    inner: Mapping[str, S] = {}


def queued(policy: Policy[S]) -> Queued[S]:
    """*policy* within the queues of each snapshot; without queues it decides as if it stood alone."""
    return Queued(policy)


class Queued(Generic[S]):
    """See `queued`."""

    def __init__(self, policy: Policy[S]) -> None:
        self.policy = policy
        self.name, self.needs = policy.name, policy.needs
        self.cadence, self.guards = policy.cadence, policy.guards
        self.by_node = decides_by_node(policy)
        self._in_rounds: RoundBased[S] | None = policy if isinstance(policy, RoundBased) else None

    def initial(self, seed: int) -> QueueState[S]:
        """No queue has been seen yet."""
        return QueueState(seed=seed)

    def restored(self, value: Any) -> QueueState[S]:
        """A state that was read back from a log, where values lose their types; raises `msgspec.ValidationError`."""
        # The type of a state is known only when the policy is: nothing that mypy could follow.
        kind: Any = QueueState[_kind(self.policy.initial(0))]  # type: ignore[misc]
        found: QueueState[S] = codec.restored(value, kind)
        return found

    def round_stats(self, state: QueueState[S]) -> RoundStats | None:
        """The rounds in the default queue; None without rounds, or before the first decision there."""
        if self._in_rounds is None or DEFAULT_QUEUE not in state.inner:
            return None
        return self._in_rounds.round_stats(state.inner[DEFAULT_QUEUE])

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: QueueState[S]) -> tuple[Decision, QueueState[S]]:
        """The policy's decisions in all queues, as one."""
        if len(snap.firm):
            return decide_firmly(snap, lambda view: self._decide(view, perf, state))
        return self._decide(snap, perf, state)

    def _decide(self, snap: Snapshot, perf: ThroughputModel, state: QueueState[S]) -> tuple[Decision, QueueState[S]]:
        if snap.queues.trivial:
            return self._whole(snap, perf, state)
        bounds = Bounds(snap)
        if decides_by_node(self.policy):
            bounds.keep_guarantees(snap)
            wish, state = self._whole(cut_view(snap, bounds), perf, state)
            return capped(snap, bounds, wish), state
        while True:
            inside = self._shared(snap, perf, state, bounds)
            if bounds.users is None or not bounds.users.split(snap, inside.types, inside.count, inside.rank):
                return inside.decision(), inside.state()

    def _shared(self, snap: Snapshot, perf: ThroughputModel, state: QueueState[S], bounds: Bounds) -> _Inside[S]:
        """Everything shared out and lent, once."""
        most = largest(snap) if gives_more(self.policy) else None
        known = perf if knows_speeds(self.policy) else None
        types = assign_types(snap, np.arange(len(snap)), smallest(snap), most, bounds.fence(snap), known)
        tries: dict[bytes, _Inside[S]] = {}

        def shared(types: Ints) -> _Inside[S]:
            key = types.tobytes()
            if key not in tries:
                tries[key] = inside = _Inside(self.policy, snap, perf, state, bounds, types)
                inside.share_out()
                inside.lend()
            return tries[key]

        types, _ = settled(
            snap,
            perf,
            shared(types).rank.argsort(kind="stable"),
            types,
            lambda types: shared(types).count,
            rooms=lambda types, _: shared(types).room_of_jobs(),
            grows=gives_more(self.policy),
        )
        return shared(types)

    def _whole(self, snap: Snapshot, perf: ThroughputModel, state: QueueState[S]) -> tuple[Decision, QueueState[S]]:
        before = _inner(self.policy, state, DEFAULT_QUEUE)
        found, inner = self.policy.decide(snap, perf, before)
        if inner is before and DEFAULT_QUEUE in state.inner:
            return found, state
        return found, QueueState(seed=state.seed, inner={**state.inner, DEFAULT_QUEUE: inner})


def _kind(state: Any) -> Any:
    """The full type of a policy's state: one that wraps the state of another policy says of which type that is."""
    kind = type(state)
    return kind[_kind(state.inner)] if getattr(kind, "__parameters__", ()) else kind


def _inner(policy: Policy[S], state: QueueState[S], queue: str) -> S:
    return state.inner[queue] if queue in state.inner else policy.initial(state.seed)


class _Inside(Generic[S]):
    """One decision in the making: what each queue was offered and what its jobs got."""

    def __init__(
        self,
        policy: Policy[S],
        snap: Snapshot,
        perf: ThroughputModel,
        state: QueueState[S],
        bounds: Bounds,
        types: Ints,
    ) -> None:
        self.policy, self.snap, self.perf, self.before = policy, snap, perf, state
        self.bounds, self.types = bounds, types
        jobs = snap.jobs
        self.rows = {int(queue): (jobs.queue == queue).nonzero()[0] for queue in np.unique(jobs.queue)}
        self.count = np.zeros(len(snap), np.int64)
        self.reason = np.full(len(snap), int(Code.CAPACITY))
        self.evidence = np.zeros(len(snap), np.int64)
        self.batch = np.zeros(len(snap), np.int64)
        self.rank = np.arange(len(snap))
        self.wake_at = np.full(len(snap.queues.values), np.inf)
        self.after: dict[str, S] = {}
        shape = (len(snap.queues.values), len(snap.capacity))
        self.used = np.zeros(shape, np.int64)
        self.offered = np.zeros(shape, np.int64)
        self.demand = np.zeros(shape, np.int64)
        typed = (types >= 0).nonzero()[0]
        wants = largest(snap) * jobs.unit
        if bounds.users is None:
            np.add.at(self.demand, (jobs.queue[typed], types[typed]), wants[typed])
        else:
            for queue in self.rows:
                self.demand[queue] = bounds.users.demand(typed[jobs.queue[typed] == queue], types, wants)

    def share_out(self) -> None:
        """Runs the policy in each queue with the queue's share."""
        snap, bounds = self.snap, self.bounds
        shares = snap.queues.shares(snap.capacity, self.demand, snap.inventory.types, bounds.outside)
        kinds = np.arange(len(snap.capacity))
        for queue in self.rows:
            self._run(queue, shares[queue], kinds, adopt_all=True)

    def lend(self) -> None:
        """Offers what is unused until nobody takes any more of it."""
        values = self.snap.queues.values
        by_weight = sorted(self.rows, key=lambda queue: (-values[queue].weight, values[queue].name))
        taken = True
        while taken:
            taken = False
            for queue in by_weight:
                offer = self.used[queue] + self._room(queue)
                # The same offer again would bring the same answer.
                kinds = ((offer > self.offered[queue]) & (self.demand[queue] > self.used[queue])).nonzero()[0]
                if len(kinds):
                    taken |= self._run(queue, offer, kinds)

    def _room(self, queue: int) -> Ints:
        """Per type what the queue could have on top of what it uses."""
        unused = self.snap.capacity - self.used.sum(axis=0)
        return np.maximum(np.minimum(unused, self.bounds.room(queue, self.used)), 0)

    def room_of_jobs(self) -> Room:
        """Per job and type what its queue, those above it and its user leave to it."""
        free = np.zeros((len(self.snap), len(self.snap.capacity)), np.int64)
        bound = np.zeros_like(free)
        for queue, rows in self.rows.items():
            free[rows], bound[rows] = self._room(queue), self.bounds.room(queue, self.used)
        if (users := self.bounds.users) is not None:
            left = users.per_job(users.left(self.types, self.count))
            free, bound = np.minimum(free, left), np.minimum(bound, left)
        return Room(free, bound)

    def _run(self, queue: int, capacity: Ints, kinds: Ints, adopt_all: bool = False) -> bool:
        """Runs the policy in one queue; adopts its answer on the types of *kinds* where it uses more than before."""
        snap, rows = self.snap, self.rows[queue]
        name = snap.queues.values[queue].name
        view = snap.restricted(rows, capacity, self.types[rows])
        found, self.after[name] = self._decide(view, rows, _inner(self.policy, self.before, name))
        used = np.zeros(len(capacity), np.int64)
        runs = (found.count > 0).nonzero()[0]
        np.add.at(used, found.type[runs], (found.count * view.jobs.unit)[runs])
        better = np.zeros(len(capacity), bool)
        better[kinds] = adopt_all | (used[kinds] > self.used[queue][kinds])
        self.offered[queue][kinds] = capacity[kinds]
        # Jobs without a type have index -1 here: they are settled by the first run.
        mine = np.where(self.types[rows] >= 0, better[self.types[rows]], adopt_all)
        self.used[queue][better] = used[better]
        self.count[rows[mine]] = found.count[mine]
        self.reason[rows[mine]] = found.reason[mine]
        self.evidence[rows[mine]] = found.evidence[mine]
        if found.rank is not None:
            self.rank[rows[mine]] = found.rank[mine]
        if found.batch is not None:
            self.batch[rows[mine]] = found.batch[mine]
        self.wake_at[queue] = found.wake_at
        return bool(better.any())

    def _decide(self, view: Snapshot, rows: Ints, state: S) -> tuple[Decision, S]:
        users = self.bounds.users
        if users is None:
            return self.policy.decide(view, self.perf, state)
        elsewhere = self.count.copy()
        elsewhere[rows] = 0
        room = users.per_job(users.left(self.types, elsewhere))[rows]
        return decide_within(self.policy, view, self.perf, state, self.types[rows], room)

    def decision(self) -> Decision:
        """All queues together; who waits because of its queue is told so."""
        snap = self.snap
        runs = self.count > 0
        return Decision(
            number=snap.jobs.number,
            type=np.where(runs, self.types, -1),
            count=self.count,
            reason=self._reasons(),
            evidence=self.evidence,
            wake_at=float(self.wake_at.min(initial=np.inf)),
            rank=self.rank,
            batch=self.batch if self.batch.any() else None,
        )

    def state(self) -> QueueState[S]:
        """What each queue's policy remembers; queues that are gone are forgotten."""
        known = {name: inner for name, inner in self.before.inner.items() if name in self.snap.queues.names}
        return QueueState(seed=self.before.seed, inner={**known, **self.after})

    def _reasons(self) -> Ints:
        snap, reason = self.snap, self.reason.copy()
        need = snap.jobs.min * snap.jobs.unit
        users = self.bounds.users
        by_user = users.per_job(users.left(self.types, self.count)) if users is not None else None
        for queue, rows in self.rows.items():
            waits = rows[(self.count[rows] == 0) & (reason[rows] == Code.CAPACITY)]
            kind, wants = self.types[waits], need[waits]
            limited = wants > self.bounds.room(queue, self.used, only_limits=True)[kind]
            beside_others = wants <= (snap.capacity - self.used[queue])[kind]
            shared = (wants > self._room(queue)[kind]) & beside_others
            beyond = wants > by_user[waits, kind] if by_user is not None else np.zeros(len(waits), bool)
            codes = [int(code) for code in (Code.QUEUE_LIMIT, Code.USER_LIMIT, Code.QUEUE_SHARE)]
            reason[waits] = np.select([limited, beyond, shared], codes, int(Code.CAPACITY))
        return reason
