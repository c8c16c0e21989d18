"""Run any policy inside queues: guaranteed shares first, then lend the rest.

1. Each job gets the type on which it competes (see `assign`), within the limits of its queue and the queues above it.
2. `QueueTree.shares` splits each type: guarantees first, then by weight. The policy runs inside each queue.
3. Unused capacity is offered to one queue after the other, largest weight first, on top of what the queue uses: never
   beyond its limit or that of a queue above it, nor beyond the guarantee of a queue that may not borrow. A queue takes
   an offer if it uses more with it, so no capacity that a queue could use stays idle.
4. If a type still stays idle, jobs move there (see `relocate`), and steps 2 and 3 are repeated.
5. `user_limits` applies per-user limits to each of these decisions.

A queue returns borrowed capacity when its share falls: the policy inside it has less to assign, and an elastic policy
shrinks jobs before it stops any. A policy that decides by node sees all queues at once; `node_caps` restricts its
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
from levada.policies.node_caps import capped, cut_view
from levada.policies.pinned import decide_with_pinned
from levada.policies.protocol import Policy, RoundBased, RoundStats, S, decides_by_node, gives_more, knows_speeds
from levada.policies.relocate import RoomByType, move_to_idle_types
from levada.policies.shares import Bounds
from levada.policies.sizes import largest, smallest
from levada.policies.user_limits import decide_within
from levada.tables.snapshot import Snapshot


class QueuedState(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """The policy state of each queue, by name; without queues, under `default`."""

    seed: int
    inner: Mapping[str, S] = {}


def queued(policy: Policy[S]) -> Queued[S]:
    """*policy* within the queues of each snapshot; unchanged if there are none."""
    return Queued(policy)


class Queued(Generic[S]):
    """See `queued`."""

    def __init__(self, policy: Policy[S]) -> None:
        self.policy = policy
        self.name, self.needs = policy.name, policy.needs
        self.cadence, self.guards = policy.cadence, policy.guards
        self.by_node = decides_by_node(policy)
        self._in_rounds: RoundBased[S] | None = policy if isinstance(policy, RoundBased) else None

    def initial(self, seed: int) -> QueuedState[S]:
        """No queue has been seen yet."""
        return QueuedState(seed=seed)

    def restored(self, value: Any) -> QueuedState[S]:
        """A state decoded from the log, with its types; raises `ValidationError`."""
        # The state type depends on the policy instance, which mypy cannot follow.
        kind: Any = QueuedState[_kind(self.policy.initial(0))]  # type: ignore[misc]
        state: QueuedState[S] = codec.restored(value, kind)
        return state

    def round_stats(self, state: QueuedState[S]) -> RoundStats | None:
        """The rounds in the default queue; None if there are none yet."""
        if self._in_rounds is None or DEFAULT_QUEUE not in state.inner:
            return None
        return self._in_rounds.round_stats(state.inner[DEFAULT_QUEUE])

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: QueuedState[S]) -> tuple[Decision, QueuedState[S]]:
        """The combined decisions of the policy in all queues."""
        if len(snap.firm):
            return decide_with_pinned(snap, lambda view: self._decide(view, perf, state))
        return self._decide(snap, perf, state)

    def _decide(self, snap: Snapshot, perf: ThroughputModel, state: QueuedState[S]) -> tuple[Decision, QueuedState[S]]:
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

    def _shared(self, snap: Snapshot, perf: ThroughputModel, state: QueuedState[S], bounds: Bounds) -> _Inside[S]:
        """Split the capacity, run the policy in each queue, and lend the rest."""
        most = largest(snap) if gives_more(self.policy) else None
        known = perf if knows_speeds(self.policy) else None
        types = assign_types(snap, np.arange(len(snap)), smallest(snap), most, bounds.type_bounds(snap), known)
        tries: dict[bytes, _Inside[S]] = {}

        def shared(types: Ints) -> _Inside[S]:
            key = types.tobytes()
            if key not in tries:
                tries[key] = inside = _Inside(self.policy, snap, perf, state, bounds, types)
                inside.share_out()
                inside.lend()
            return tries[key]

        types, _ = move_to_idle_types(
            snap,
            perf,
            shared(types).rank.argsort(kind="stable"),
            types,
            lambda types: shared(types).count,
            rooms=lambda types, _: shared(types).room_of_jobs(),
            grows=gives_more(self.policy),
        )
        return shared(types)

    def _whole(self, snap: Snapshot, perf: ThroughputModel, state: QueuedState[S]) -> tuple[Decision, QueuedState[S]]:
        before = _inner(self.policy, state, DEFAULT_QUEUE)
        decision, inner = self.policy.decide(snap, perf, before)
        if inner is before and DEFAULT_QUEUE in state.inner:
            return decision, state
        return decision, QueuedState(seed=state.seed, inner={**state.inner, DEFAULT_QUEUE: inner})


def _kind(state: Any) -> Any:
    """The full type of a policy's state, including that of a wrapped policy."""
    kind = type(state)
    return kind[_kind(state.inner)] if getattr(kind, "__parameters__", ()) else kind


def _inner(policy: Policy[S], state: QueuedState[S], queue: str) -> S:
    return state.inner[queue] if queue in state.inner else policy.initial(state.seed)


class _Inside(Generic[S]):
    """A decision under construction: the offer to each queue and its jobs' sizes."""

    def __init__(
        self,
        policy: Policy[S],
        snap: Snapshot,
        perf: ThroughputModel,
        state: QueuedState[S],
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
        """Run the policy in each queue with the queue's share."""
        snap, bounds = self.snap, self.bounds
        shares = snap.queues.shares(snap.capacity, self.demand, snap.inventory.types, bounds.outside)
        kinds = np.arange(len(snap.capacity))
        for queue in self.rows:
            self._run(queue, shares[queue], kinds, adopt_all=True)

    def lend(self) -> None:
        """Offer unused capacity until no queue takes more of it."""
        values = self.snap.queues.values
        by_weight = sorted(self.rows, key=lambda queue: (-values[queue].weight, values[queue].name))
        taken = True
        while taken:
            taken = False
            for queue in by_weight:
                offer = self.used[queue] + self._room(queue)
                # The same offer again would give the same result.
                kinds = ((offer > self.offered[queue]) & (self.demand[queue] > self.used[queue])).nonzero()[0]
                if len(kinds):
                    taken |= self._run(queue, offer, kinds)

    def _room(self, queue: int) -> Ints:
        """Per type the capacity that the queue may use beyond its current use."""
        unused = self.snap.capacity - self.used.sum(axis=0)
        return np.maximum(np.minimum(unused, self.bounds.room(queue, self.used)), 0)

    def room_of_jobs(self) -> RoomByType:
        """Per job and type the room left by its queue, the queues above and its user."""
        free = np.zeros((len(self.snap), len(self.snap.capacity)), np.int64)
        bound = np.zeros_like(free)
        for queue, rows in self.rows.items():
            free[rows], bound[rows] = self._room(queue), self.bounds.room(queue, self.used)
        if (users := self.bounds.users) is not None:
            left = users.per_job(users.left(self.types, self.count))
            free, bound = np.minimum(free, left), np.minimum(bound, left)
        return RoomByType(free, bound)

    def _run(self, queue: int, capacity: Ints, kinds: Ints, adopt_all: bool = False) -> bool:
        """Run the policy in one queue; adopt its result where the queue uses more.

        Only types in *kinds* are adopted; with *adopt_all*, also if the queue uses less.
        """
        snap, rows = self.snap, self.rows[queue]
        name = snap.queues.values[queue].name
        view = snap.restricted(rows, capacity, self.types[rows])
        decision, self.after[name] = self._decide(view, rows, _inner(self.policy, self.before, name))
        used = np.zeros(len(capacity), np.int64)
        runs = (decision.count > 0).nonzero()[0]
        np.add.at(used, decision.type[runs], (decision.count * view.jobs.unit)[runs])
        better = np.zeros(len(capacity), bool)
        better[kinds] = adopt_all | (used[kinds] > self.used[queue][kinds])
        self.offered[queue][kinds] = capacity[kinds]
        # Jobs without a type have index -1 here; only the first run decides about them.
        adopted = np.where(self.types[rows] >= 0, better[self.types[rows]], adopt_all)
        self.used[queue][better] = used[better]
        self.count[rows[adopted]] = decision.count[adopted]
        self.reason[rows[adopted]] = decision.reason[adopted]
        self.evidence[rows[adopted]] = decision.evidence[adopted]
        if decision.rank is not None:
            self.rank[rows[adopted]] = decision.rank[adopted]
        if decision.batch is not None:
            self.batch[rows[adopted]] = decision.batch[adopted]
        self.wake_at[queue] = decision.wake_at
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
        """The decision over all queues; jobs held back by a queue limit say so."""
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

    def state(self) -> QueuedState[S]:
        """The state of each queue's policy; removed queues are dropped."""
        known = {name: inner for name, inner in self.before.inner.items() if name in self.snap.queues.names}
        return QueuedState(seed=self.before.seed, inner={**known, **self.after})

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
