"""Shares into sizes: who runs on which GPU type until the next round.

Every combination (a job, or two that share devices) has credit on every type: it grows with its share of the time that
passes and shrinks while it runs there. So time received follows shares, whatever the rounds allow, and nothing is
forgotten when shares change.

- At each round, (combination, type) pairs run by falling credit over all types at once; a pair that runs already is
  worth some rounds more, and what a restart would cost (hysteresis).
- What is left over goes to whoever is fastest there, compared with its best type.
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
from levada.policies.gavel.share import AnySharePolicy, S, SharePolicy, Shares
from levada.policies.options import number_above
from levada.policies.protocol import NO_GUARDS, Cadence, Guards
from levada.policies.verdict import verdict

#: A combination that runs stays until another is owed so many rounds more.
STICKINESS = 2.0
#: Nobody is owed, or owes, more than so many rounds: a job that could not run for days shall not block all others.
MOST_OWED = 20.0

_NOBODY = -1


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
    #: The jobs that shares were last asked about.
    asked: Ints
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

    def initial(self, seed: int) -> RoundState[S]:
        """Nobody has a share."""
        return RoundState(
            inner=self.policy.initial(seed),
            members=np.zeros((0, 2), np.int64),
            share=np.zeros((0, 0)),
            credit=np.zeros((0, 0)),
            asked=np.zeros(0, np.int64),
        )

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: RoundState[S]) -> tuple[Decision, RoundState[S]]:
        """Who runs where until something happens or the next round comes."""
        book = _Book(self, Instance(snap, perf), state)
        # Where only jobs with a share may run, new shares cannot wait while GPUs are idle.
        due = snap.now >= state.next_round or (self.policy.strict and book.stale)
        if due:
            book.share_out()
        types = book.rotate() if due else book.fill()
        return book.answer(types, due)


class _Book(Generic[S]):
    """One decision in the making. Rows are jobs of the snapshot; combinations refer to them."""

    def __init__(self, mechanism: Rounds[S], instance: Instance, state: RoundState[S]) -> None:
        self.mechanism, self.instance, self.state, self.inner = mechanism, instance, state, state.inner
        self.snap, self.alarms = instance.snap, state.alarms
        jobs = self.snap.jobs
        self.need: Ints = instance.size * jobs.unit
        self.runs = np.where(jobs.count > 0, jobs.type, _NOBODY)
        self._recall()

    def _recall(self) -> None:
        """Brings what is remembered to the rows of now: jobs that are over go, new ones come with nothing."""
        instance, state = self.instance, self.state
        types = len(instance.capacity)
        order = np.argsort(instance.number, kind="stable")
        by_number = instance.number[order]

        def rows(numbers: Ints) -> Ints:
            at = np.minimum(np.searchsorted(by_number, numbers), max(len(order) - 1, 0))
            if not len(order):
                return np.full(len(numbers), -2)
            return np.where(numbers == _NOBODY, _NOBODY, np.where(by_number[at] == numbers, order[at], -2))

        a, b = rows(state.members[:, 0]), rows(state.members[:, 1])
        alive = (a >= 0) & (b >= _NOBODY)
        pairs = alive & (b >= 0)
        single = alive & (b == _NOBODY)
        self.members = np.concatenate(
            [
                np.stack([np.arange(len(instance)), np.full(len(instance), _NOBODY)], axis=1),
                np.stack([a, b], axis=1)[pairs],
            ]
        )
        self.share, self.credit = (np.zeros((len(self.members), types)) for _ in range(2))
        for mine, theirs in ((self.share, state.share), (self.credit, state.credit)):
            width = min(types, theirs.shape[1])
            mine[a[single], :width] = theirs[single, :width]
            mine[len(instance) :, :width] = theirs[pairs, :width]
        self.stale = len(state.asked) != len(by_number) or not np.array_equal(state.asked, by_number)
        self.asked = by_number
        self._account()

    def _account(self) -> None:
        """Credit for the time since the last decision."""
        passed = self.snap.now - self.state.since
        if not 0 < passed < math.inf:
            return
        self.credit += self.share * passed
        self.credit[self._running()] -= passed
        most = MOST_OWED * self.mechanism.round_s
        np.clip(self.credit, -most, most, out=self.credit)

    def _running(self) -> tuple[Ints, Ints]:
        """(combination, type) of those that run now."""
        rows = (self.runs >= 0).nonzero()[0]
        return rows, self.runs[rows]

    def share_out(self) -> None:
        """New shares, where jobs came or went since the last ones."""
        if not self.stale:
            return
        policy, instance = self.mechanism.policy, self.instance
        shares, self.inner = policy.shares(instance, instance.perf, self.inner)
        self.alarms += bool(shares.alarm)
        self._take(shares)

    def _take(self, shares: Shares) -> None:
        jobs = len(self.instance)
        self.share[:jobs] = shares.share

    def _able(self) -> Bools:
        """Which combination can run on which type at all."""
        return np.asarray(self.instance.rate > 0)

    def rotate(self) -> Ints:
        """The next round: by credit first, then whoever is fastest."""
        instance, mechanism = self.instance, self.mechanism
        jobs = len(instance)
        left = self.snap.capacity.copy()
        taken = np.zeros(jobs, bool)
        able = self._able()
        priority = np.where(able & (self.share[:jobs] > 0), self.credit[:jobs], -np.inf)
        rows, kinds = self._running()
        shared = self.share[rows, kinds] > 0
        priority[rows[shared], kinds[shared]] += STICKINESS * mechanism.round_s
        chosen = take_turns(priority, self.need, self.members[:jobs], left, taken)
        if not mechanism.policy.strict:
            chosen = self._fill(chosen, left, taken, able)
        return chosen

    def fill(self) -> Ints:
        """Between rounds: those who run go on, the others take what is free."""
        jobs = len(self.instance)
        left = self.snap.capacity.copy()
        rows, kinds = self._running()
        np.subtract.at(left, kinds, self.need[rows])
        taken = np.zeros(jobs, bool)
        taken[rows] = True
        chosen = self.runs.copy()
        able = self._able()
        if self.mechanism.policy.strict:
            able &= self.share[:jobs] > 0
        return self._fill(chosen, left, taken, able)

    def _fill(self, chosen: Ints, left: Ints, taken: Bools, able: Bools) -> Ints:
        """What is left goes to those who wait, each where it is fastest compared with its best."""
        waits = (~taken).nonzero()[0]
        if not len(waits) or not (left > 0).any():
            return chosen
        rate = self.instance.rate[waits]
        best = rate.max(axis=1, initial=0.0)
        relative = rate / np.where(best > 0, best, 1.0)[:, None]
        relative[self._running_on(waits)] += 1e-9
        priority = np.where(able[waits], relative, -np.inf)
        members = self.members[: len(self.instance)][waits]
        found = take_turns(priority, self.need[waits], members, left, taken)
        chosen = chosen.copy()
        chosen[waits] = np.where(found >= 0, found, chosen[waits])
        return chosen

    def _running_on(self, rows: Ints) -> tuple[Ints, Ints]:
        here = (self.runs[rows] >= 0).nonzero()[0]
        return here, self.runs[rows[here]]

    def answer(self, types: Ints, due: bool) -> tuple[Decision, RoundState[S]]:
        """The decision, and what to remember."""
        instance, mechanism, state = self.instance, self.mechanism, self.state
        count = np.where(types >= 0, instance.size, 0)
        next_round = self.snap.now + mechanism.round_s if due else state.next_round
        ran = self.runs >= 0
        after = RoundState(
            inner=self.inner,
            members=np.where(self.members >= 0, instance.number[np.maximum(self.members, 0)], _NOBODY)
            if len(instance)
            else self.members,
            share=self.share,
            credit=self.credit,
            since=self.snap.now,
            next_round=next_round,
            asked=self.asked if due else state.asked,
            alarms=self.alarms,
            extensions=state.extensions + (int((ran & (types == self.runs)).sum()) if due else 0),
            turns=state.turns + (int(ran.sum()) if due else 0),
        )
        nowhere = types < 0
        home = np.where(nowhere, self._homes(), types)
        rank = np.lexsort((instance.number, -self.credit[: len(instance)].max(axis=1, initial=0.0)))
        # Rounds in which nothing could change are not worth waking up for; new shares are.
        quiet_s = 0.0 if self.stale and not due else self._quiet_s(types)
        wake_at = max(next_round, self.snap.now + quiet_s) if len(instance) else math.inf
        return verdict(self.snap, rank, home, count, self._reasons(types), wake_at=wake_at), after

    def _quiet_s(self, types: Ints) -> float:
        """For how long no credit can overtake another, at the least: credits grow by shares, and shrink by running."""
        jobs = len(self.instance)
        share, credit = self.share[:jobs], self.credit[:jobs]
        wants = (share > 0) & self._able()
        runs = np.zeros_like(wants)
        rows = (types >= 0).nonzero()[0]
        runs[rows, types[rows]] = True
        waits = wants & ~runs
        kinds = waits.any(axis=0)
        if not kinds.any():
            return math.inf
        stays = credit + np.where(wants, STICKINESS * self.mechanism.round_s, 0.0)
        highest = np.where(waits, credit, -np.inf).max(axis=0)
        lowest = np.where(runs, stays, np.inf).min(axis=0, initial=np.inf)
        speed = np.where(waits, share, 0.0).max(axis=0) - np.where(runs, share - 1.0, 0.0).min(axis=0, initial=0.0)
        gap = np.where(kinds, (lowest - highest) / np.maximum(speed, 1e-12), np.inf)
        return float(np.maximum(gap, 0.0).min())

    def _homes(self) -> Ints:
        """Per job the type it waits for: the fastest, else the first it may use, else -1."""
        instance = self.instance
        first = np.where(instance.allowed.any(axis=1), instance.allowed.argmax(axis=1), _NOBODY)
        return np.where(instance.rate.any(axis=1), instance.rate.argmax(axis=1), first)

    def _reasons(self, types: Ints) -> Ints:
        """Why each job that waits does."""
        instance = self.instance
        left = self.snap.capacity.copy()
        rows = (types >= 0).nonzero()[0]
        np.subtract.at(left, types[rows], self.need[rows])
        able = (instance.rate > 0) & (instance.capacity > 0)
        fits = (able & (left >= self.need[:, None])).any(axis=1)
        reason = np.where(fits, int(Code.IN_LINE), int(Code.CAPACITY))
        return np.where(able.any(axis=1), reason, int(Code.CANNOT_RUN))
