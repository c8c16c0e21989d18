"""Shares into sizes: who runs on which GPU type until the next round.

Every combination (a job, or two that share devices) has credit on every type: it grows with its share of the time that
passes and shrinks while it runs there. So time received follows shares, whatever the rounds allow, and nothing is
forgotten when shares change.

- At each round, (combination, type) pairs run by falling priority over all types at once. Priority is credit, within
  bounds; more where a job is faster, compared with its best type; less with every hour it has run already, so that
  short jobs are soon done; and more where it runs at present (hysteresis). Credit decides in the long run, the rest
  when nobody is owed much.
- Between rounds nobody is stopped; whoever waits is placed at once where GPUs are free.
- New shares are asked for when jobs came or went, at the next round.

`mechanism: gavel` is the published way instead; see `policies.gavel.published`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic

import msgspec
import numpy as np

from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.snapshot import Snapshot
from levada.core.types import Bools, Floats, Ints
from levada.errors import BadInput
from levada.kernels.turns import take_turns
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.seats import partners, seats
from levada.policies.gavel.share import AnySharePolicy, S, SharePolicy, Shares
from levada.policies.options import number_above
from levada.policies.protocol import NO_GUARDS, Cadence, Guards
from levada.policies.verdict import verdict

#: A combination that runs stays until another is owed so many rounds more.
STICKINESS = 5.0
#: Nobody is owed, or owes, more than so many rounds: a job that could not run for days shall not block all others.
MOST_OWED = 8.0
#: The type a job is fastest on is worth so many rounds; others in proportion.
WORTH_OF_SPEED = 20.0
#: Each second that a job has run costs it this much of a second.
COST_OF_AGE = 0.1

_NOBODY = -1
#: A job that is no longer in view.
_GONE = -2


def in_rounds(make_policy: Callable[..., AnySharePolicy], options: Mapping[str, Any]) -> Any:
    """The share policy with its own options, in the mechanism that the others name; raises BadInput."""
    own = dict(options)
    round_s = number_above("round_s", own.pop("round_s", 360.0), 0.0)
    mechanism = own.pop("mechanism", "default")
    global_queue = own.pop("global_queue", False)
    if mechanism not in ("default", "gavel"):
        raise BadInput.one(f"must be default or gavel, not {mechanism!r}", "options.mechanism")
    if mechanism == "gavel":
        from levada.policies.gavel.published import Published

        return Published(make_policy(**own), round_s=round_s, global_queue=bool(global_queue))
    return Rounds(make_policy(**own), round_s=round_s)


class RoundState(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """What rounds remember: columns over the combinations that have a share, by job numbers (-1 = alone)."""

    inner: S
    members: Ints
    share: Floats
    credit: Floats
    #: Up to when credit was counted, and when the next round is due.
    since: float = -math.inf
    next_round: float = -math.inf
    #: What shares were last asked about: jobs with their sizes and weights, and what there is of each type.
    asked: Floats
    room: Ints
    alarms: int = 0
    extensions: int = 0
    turns: int = 0


class Rounds(Generic[S]):
    """See the module."""

    guards: ClassVar[Guards] = NO_GUARDS
    cadence: ClassVar[Cadence] = Cadence(on_acks=False)

    def __init__(self, policy: SharePolicy[S], *, round_s: float = 360.0) -> None:
        self.policy, self.round_s = policy, round_s
        self.name, self.needs = policy.name, policy.needs
        #: Two jobs on the same devices can only be said by saying which.
        self.by_node = policy.packs

    def initial(self, seed: int) -> RoundState[S]:
        """Nobody has a share."""
        return RoundState(
            inner=self.policy.initial(seed),
            members=np.zeros((0, 2), np.int64),
            share=np.zeros((0, 0)),
            credit=np.zeros((0, 0)),
            asked=np.zeros((0, 3)),
            room=np.zeros(0, np.int64),
        )

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: RoundState[S]) -> tuple[Decision, RoundState[S]]:
        """Who runs where until something happens or the next round comes."""
        book = _Book(self, Instance(snap, perf), state)
        # Where only jobs with a share may run, new shares cannot wait while GPUs are idle.
        due = snap.now >= state.next_round or (self.policy.strict and book.stale) or book.crowded()
        if due:
            book.share_out()
        return book.answer(book.rotate() if due else book.fill(), due)


class _Book(Generic[S]):
    """One decision in the making. The first combinations are the jobs of the snapshot, row by row; pairs follow."""

    def __init__(self, mechanism: Rounds[S], instance: Instance, state: RoundState[S]) -> None:
        self.mechanism, self.instance, self.state, self.inner = mechanism, instance, state, state.inner
        self.snap, self.alarms = instance.snap, state.alarms
        self.jobs = len(instance)
        self._recall()
        self._account()

    def _recall(self) -> None:
        """Brings what is remembered to the rows of now: jobs that are over go, new ones come with nothing."""
        state, instance, inventory = self.state, self.instance, self.snap.inventory
        order = np.argsort(instance.number, kind="stable")
        by_number = instance.number[order]
        self.asked = np.stack([by_number, instance.size[order], instance.weight[order]], axis=1)
        self.room = np.bincount(inventory.type_of, inventory.free_milli(), len(instance.capacity)).astype(np.int64)
        self.stale = not (np.array_equal(state.asked, self.asked) and np.array_equal(state.room, self.room))
        a, b = (_rows(by_number, order, state.members[:, member]) for member in (0, 1))
        kept = np.stack([a, b], axis=1)
        single, pair = (a >= 0) & (b == _NOBODY), (a >= 0) & (b >= 0)
        self._set_members(kept[pair])
        for mine, theirs in ((self.share, state.share), (self.credit, state.credit)):
            width = min(mine.shape[1], theirs.shape[1])
            mine[a[single], :width] = theirs[single, :width]
            mine[self.jobs :, :width] = theirs[pair, :width]

    def _set_members(self, pairs: Ints) -> None:
        """All jobs alone, then these pairs; nobody has anything."""
        alone = np.stack([np.arange(self.jobs), np.full(self.jobs, _NOBODY)], axis=1)
        self.members = np.concatenate([alone, pairs])
        self.need: Ints = (self.instance.size * self.snap.jobs.unit)[self.members[:, 0]]
        shape = (len(self.members), len(self.instance.capacity))
        self.share, self.credit = np.zeros(shape), np.zeros(shape)
        self.runs = self._running()

    def _running(self) -> Ints:
        """Per combination the type it runs on, -1 = none."""
        jobs = self.snap.jobs
        runs = np.full(len(self.members), _NOBODY, np.int64)
        runs[: self.jobs] = np.where(jobs.count > 0, jobs.type, _NOBODY)
        if self.mechanism.by_node:
            together = partners(self.snap)
            runs[list(together)] = _NOBODY
            for at in range(self.jobs, len(self.members)):
                a, b = self.members[at].tolist()
                if together.get(a) == b:
                    runs[at] = jobs.type[a]
        return runs

    def _account(self) -> None:
        """Credit for the time since the last decision."""
        passed = self.snap.now - self.state.since
        if not 0 < passed < math.inf:
            return
        self.credit += self.share * passed
        on = (self.runs >= 0).nonzero()[0]
        self.credit[on, self.runs[on]] -= passed
        most = MOST_OWED * self.mechanism.round_s
        np.clip(self.credit, -most, most, out=self.credit)

    def share_out(self) -> None:
        """New shares, where jobs came or went since the last ones."""
        if not self.stale:
            return
        policy, instance = self.mechanism.policy, self.instance
        shares, self.inner = policy.shares(instance, instance.perf, self.inner)
        self.alarms += bool(shares.alarm)
        self._take(shares)

    def _take(self, shares: Shares) -> None:
        """Credit stays with those that have a share again."""
        before = {(int(a), int(b)): row for row, (a, b) in enumerate(self.members) if b != _NOBODY}
        owed = self.credit
        together = shares.pair_share if shares.pair_share is not None else np.zeros((0, owed.shape[1]))
        used = together.any(axis=1)
        pairs = shares.pairs[used]
        self._set_members(pairs)
        self.share[: self.jobs], self.share[self.jobs :] = shares.share, together[used]
        self.credit[: self.jobs] = owed[: self.jobs]
        for at, (a, b) in enumerate(pairs.tolist(), self.jobs):
            if (a, b) in before:
                self.credit[at] = owed[before[a, b]]

    # --- who runs ---------------------------------------------------------------------------------------------------

    def _able(self) -> Bools:
        """Which combination can run on which type at all."""
        able = np.ones((len(self.members), len(self.instance.capacity)), bool)
        able[: self.jobs] = self.instance.rate > 0
        return able

    def rotate(self) -> Ints:
        """The next round: by credit first, then whoever is fastest."""
        left, taken = self.snap.capacity.copy(), np.zeros(self.jobs, bool)
        able = self._able()
        priority = np.where(self._may(able), self._priority(self.runs), -np.inf)
        chosen = take_turns(priority, self.need, self.members, left, taken)
        return chosen if self.mechanism.policy.strict else self._fill(chosen, left, taken, able)

    def _may(self, able: Bools) -> Bools:
        """Which pairs run by priority; a job that shall share its GPU must not come first alone."""
        policy = self.mechanism.policy
        return able & (self.share > 0) if policy.strict or policy.packs else able

    def _priority(self, runs: Ints) -> Floats:
        """How much each pair is wanted, in seconds, when combinations run on these types."""
        round_s, rate = self.mechanism.round_s, self.instance.rate
        best = rate.max(axis=1, initial=0.0)
        priority = self.credit + WORTH_OF_SPEED * round_s
        # Pairs are there because they are fast together: all of them count as their members' best.
        priority[: self.jobs] -= WORTH_OF_SPEED * round_s * (1.0 - rate / np.where(best > 0, best, 1.0)[:, None])
        age = self.snap.jobs.running_s
        older = np.maximum(age[self.members[:, 0]], age[np.maximum(self.members[:, 1], 0)] * (self.members[:, 1] >= 0))
        priority -= COST_OF_AGE * older[:, None]
        on = (runs >= 0).nonzero()[0]
        priority[on, runs[on]] += STICKINESS * round_s
        return priority

    def crowded(self) -> bool:
        """Whether those who run have more than there is for them by now: a machine is gone, or their queue's share."""
        on = (self.runs >= 0).nonzero()[0]
        used = np.bincount(self.runs[on], self.need[on], len(self.snap.capacity))
        return bool((used > self.snap.capacity).any())

    def fill(self) -> Ints:
        """Between rounds: those who run go on, the others take what is free."""
        left, taken = self.snap.capacity.copy(), np.zeros(self.jobs, bool)
        on = (self.runs >= 0).nonzero()[0]
        np.subtract.at(left, self.runs[on], self.need[on])
        members = self.members[on]
        taken[members[members >= 0]] = True
        able = self._able()
        if self.mechanism.policy.strict:
            able &= self.share > 0
        return self._fill(self.runs.copy(), left, taken, able)

    def _fill(self, chosen: Ints, left: Ints, taken: Bools, able: Bools) -> Ints:
        """What is left goes to those who wait, each where it is fastest compared with its best."""
        waits = (~taken).nonzero()[0]
        if not len(waits) or not (left > 0).any():
            return chosen
        rate = self.instance.rate[waits]
        best = rate.max(axis=1, initial=0.0)
        relative = rate / np.where(best > 0, best, 1.0)[:, None]
        here = (self.runs[waits] >= 0).nonzero()[0]
        relative[here, self.runs[waits[here]]] += 1e-9  # of two equal types, the one it is on
        priority = np.where(able[waits], relative, -np.inf)
        found = take_turns(priority, self.need[waits], self.members[waits], left, taken)
        chosen[waits] = np.where(found >= 0, found, chosen[waits])
        return chosen

    def _quiet_s(self, types: Ints) -> float:
        """For how long no credit can overtake another, at the least: credits grow by shares, and shrink by running."""
        wants = self._may(self._able())
        runs = np.zeros_like(wants)
        rows = (types >= 0).nonzero()[0]
        runs[rows, types[rows]] = True
        waits = wants & ~runs
        kinds = waits.any(axis=0)
        if not kinds.any():
            return math.inf
        priority = self._priority(types)
        highest = np.where(waits, priority, -np.inf).max(axis=0)
        lowest = np.where(runs, priority, np.inf).min(axis=0, initial=np.inf)
        fastest = np.where(waits, self.share, 0.0).max(axis=0)
        falls = np.where(runs, self.share - 1.0 - COST_OF_AGE, 0.0).min(axis=0, initial=0.0)
        speed = fastest - falls
        gap = np.where(kinds, (lowest - highest) / np.maximum(speed, 1e-12), np.inf)
        return float(np.maximum(gap, 0.0).min())

    # --- the answer -------------------------------------------------------------------------------------------------

    def answer(self, chosen: Ints, due: bool) -> tuple[Decision, RoundState[S]]:
        """The decision, and what to remember."""
        instance, state, now = self.instance, self.state, self.snap.now
        types = np.full(self.jobs, _NOBODY, np.int64)
        for member in (0, 1):
            on = ((chosen >= 0) & (self.members[:, member] >= 0)).nonzero()[0]
            types[self.members[on, member]] = chosen[on]
        more: dict[str, Any] = {}
        if self.mechanism.by_node:
            more["places"], more["placed"] = seats(instance, self.members, chosen, types)
        count = np.where(types >= 0, instance.size, 0)
        next_round = now + self.mechanism.round_s if due else state.next_round
        # Rounds in which nothing could change are not worth waking up for; new shares are.
        quiet_s = 0.0 if self.stale and not due else self._quiet_s(chosen)
        rank = np.lexsort((instance.number, -self.credit[: self.jobs].max(axis=1, initial=0.0)))
        more["wake_at"] = max(next_round, now + quiet_s) if self.jobs else math.inf
        home = np.where(types < 0, self._homes(), types)
        found = verdict(self.snap, rank, home, count, self._reasons(types), **more)
        return found, self._state(chosen, next_round, due)

    def _state(self, chosen: Ints, next_round: float, due: bool) -> RoundState[S]:
        state, number = self.state, self.instance.number
        names = number[np.maximum(self.members, 0)] if self.jobs else self.members
        ran = self.runs >= 0
        return RoundState(
            inner=self.inner,
            members=np.where(self.members >= 0, names, _NOBODY),
            share=self.share,
            credit=self.credit,
            since=self.snap.now,
            next_round=next_round,
            asked=self.asked if due else state.asked,
            room=self.room if due else state.room,
            alarms=self.alarms,
            extensions=state.extensions + (int((ran & (chosen == self.runs)).sum()) if due else 0),
            turns=state.turns + (int(ran.sum()) if due else 0),
        )

    def _homes(self) -> Ints:
        """Per job the type it waits for: the fastest, else the first it may use, else -1."""
        instance = self.instance
        first = np.where(instance.allowed.any(axis=1), instance.allowed.argmax(axis=1), _NOBODY)
        return np.where(instance.rate.any(axis=1), instance.rate.argmax(axis=1), first)

    def _reasons(self, types: Ints) -> Ints:
        """Why each job that waits does."""
        instance = self.instance
        need = self.need[: self.jobs]
        left = self.snap.capacity.copy()
        rows = (types >= 0).nonzero()[0]
        np.subtract.at(left, types[rows], need[rows])
        able = (instance.rate > 0) & (instance.capacity > 0)
        fits = (able & (left >= need[:, None])).any(axis=1)
        reason = np.where(fits, int(Code.IN_LINE), int(Code.CAPACITY))
        return np.where(able.any(axis=1), reason, int(Code.CANNOT_RUN))


def _rows(by_number: Ints, order: Ints, numbers: Ints) -> Ints:
    """The row of each job by number; -1 stays -1, and a job that is not there any more is -2."""
    if not len(order):
        return np.full(len(numbers), _GONE)
    at = np.minimum(np.searchsorted(by_number, numbers), len(order) - 1)
    return np.where(numbers == _NOBODY, _NOBODY, np.where(by_number[at] == numbers, order[at], _GONE))
