"""Shares into sizes: who runs on which GPU type until the next round.

Every combination (a job, or two that share devices) has credit on every type: it grows with its share of the time that
passes and shrinks while it runs there. So time received follows shares, whatever the rounds allow, and nothing is
forgotten when shares change. Where not all that is owed can be given (jobs of several GPUs do not always fit side by
side), credit grows more slowly for all, so that they take turns.

- At each round, (combination, type) pairs run by falling priority over all types at once. Priority is the share, and
  credit within bounds; a little for speed, compared with the job's best type; and a little where it has a share and
  runs at present (hysteresis). So a whole share is followed at once, and credit lets those take turns who have parts.
  Equal types: the one with the largest free part. To a policy that does not know how types differ all are equally fast.
- Between rounds nobody is stopped; whoever waits is placed at once where GPUs are free. So policies are shown only jobs
  that wait then, and what others are owed is counted at the next round.
- New shares are asked for when jobs came, went or changed, at the next round.

`mechanism: gavel` is the published way instead; see `policies.gavel.published`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Generic

import msgspec
import numpy as np

from levada.core.decision import Decision
from levada.core.types import Floats, Ints
from levada.kernels import rounds, view
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance, jobs_of
from levada.policies.gavel.seats import partners, seats
from levada.policies.gavel.share import S, SharePolicy, Shares
from levada.policies.protocol import NO_GUARDS, Cadence, Guards, RoundStats
from levada.tables.snapshot import Snapshot

#: A combination that runs stays until another is owed so many rounds more.
STICKINESS = 1.0
#: Nobody is owed, or owes, more than so many rounds: a job that could not run for days shall not block all others. But
#: more than all that follows is worth, or a job with a smaller share would never get its turn beside one with a larger.
MOST_OWED = 30.0
#: The type a job is fastest on is worth so many rounds; others in proportion.
WORTH_OF_SPEED = 5.0
#: And a whole share, so many.
WORTH_OF_SHARE = 20.0

_NOBODY, _ALONE = -1, -2
#: Partners where a policy lets nobody share devices.
_NO_PARTNERS = np.zeros(0, np.int64)
_NOBODY_FILLED = np.zeros((0, 3))


class RoundState(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """What rounds remember: columns over the combinations that have a share, by job numbers (-1 = alone)."""

    inner: S
    members: Ints
    share: Floats
    credit: Floats
    #: Up to when credit was counted, and when the next round is due.
    since: float = -math.inf
    next_round: float = -math.inf
    #: What shares were last asked about: jobs with their sizes, weights and types, and what there is of each type.
    asked: Floats
    room: Ints
    #: Who was placed since then: number, type, and how many seconds had passed.
    filled: Floats = _NOBODY_FILLED
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
        #: Whether speeds of types are known to it; see `knows_speeds`.
        self.aware = policy.aware
        #: Two jobs on the same devices can only be said by saying which.
        self.by_node = policy.packs
        # A job that shall share its GPU must not come first alone.
        self._owed_only = policy.strict or policy.packs
        self._weights = (STICKINESS * round_s, MOST_OWED * round_s, WORTH_OF_SPEED * round_s, WORTH_OF_SHARE * round_s)

    def initial(self, seed: int) -> RoundState[S]:
        """Nobody has a share."""
        return RoundState(
            inner=self.policy.initial(seed),
            members=np.zeros((0, 2), np.int64),
            share=np.zeros((0, 0)),
            credit=np.zeros((0, 0)),
            asked=np.zeros((0, 4)),
            room=np.zeros(0, np.int64),
        )

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: RoundState[S]) -> tuple[Decision, RoundState[S]]:
        """Who runs where until something happens or the next round comes."""
        if snap.fill:
            return self._fill(snap, perf, state)
        instance, policy, weights = Instance(snap, perf), self.policy, self._weights
        jobs, reals = instance.jobs, instance.reals
        speed = instance.relative if self.aware else (instance.relative > 0).astype(np.float64)
        # Where nobody runs without a share, shares must follow what others leave, too: jobs out of view come and go.
        room = snap.capacity if self._owed_only else instance.supply[view.ROOM]
        partner = _partners(snap) if self.by_node else _NO_PARTNERS
        memory = state.members, state.share, state.credit, state.asked, state.room, state.filled
        members, share, credit, asked, need, runs, stale, crowded = rounds.recall(
            memory, jobs, reals, instance.allowed, partner, room, snap.capacity, snap.now - state.since, weights
        )
        # Where only jobs with a share may run, new shares cannot wait while GPUs are idle.
        due = snap.now >= state.next_round or (policy.strict and stale) or crowded
        inner, alarms = state.inner, state.alarms
        if due and stale:
            shares, inner = policy.shares(instance, perf, inner)
            alarms += bool(shares.alarm)
            members, share, credit = _taken(shares, members, credit, len(instance))
            if self.by_node:
                need, runs = rounds.running(members, jobs, partner)
        chosen = rounds.choose(
            due,
            policy.strict,
            self._owed_only,
            members,
            share,
            credit,
            need,
            runs,
            speed,
            snap.capacity,
            instance.supply[view.TOTAL],
            weights,
        )
        more = _seats(instance, members, chosen) if self.by_node else {}
        said, names, kept, ran, quiet_s = rounds.answer(
            self._owed_only,
            jobs,
            members,
            share,
            credit,
            runs,
            chosen,
            speed,
            instance.allowed,
            snap.table.preference,
            snap.jobs.slots,
            snap.capacity,
            instance.supply[view.TOTAL],
            weights,
        )
        next_round = snap.now + self.round_s if due else state.next_round
        # Rounds in which nothing could change are not worth waking up for; new shares are.
        if stale and not due:
            quiet_s = 0.0
        decision = Decision(
            number=instance.number,
            type=said[rounds.TYPE],
            count=said[rounds.COUNT],
            reason=said[rounds.REASON],
            evidence=said[rounds.EVIDENCE],
            rank=said[rounds.RANK],
            wake_at=max(next_round, snap.now + quiet_s) if len(instance) else math.inf,
            heed_at=next_round,
            fills=not policy.strict and not self.by_node,
            **more,
        )
        return decision, RoundState(
            inner=inner,
            members=names,
            share=share,
            credit=credit,
            since=snap.now,
            next_round=next_round,
            asked=asked if due else state.asked,
            room=room if due else state.room,
            alarms=alarms,
            extensions=state.extensions + (kept if due else 0),
            turns=state.turns + (ran if due else 0),
        )

    def round_stats(self, state: RoundState[S]) -> RoundStats:
        """The rounds up to *state*."""
        return RoundStats(
            round_s=self.round_s,
            next_round=state.next_round,
            lease_extensions=state.extensions,
            lease_opportunities=state.turns,
        )

    def _fill(self, snap: Snapshot, perf: ThroughputModel, state: RoundState[S]) -> tuple[Decision, RoundState[S]]:
        """Who of those that wait runs on what is free, between two rounds."""
        supply = snap.inventory.openings.supply
        # What is free just now limits nobody's size.
        jobs, _, allowed = jobs_of(snap, supply, supply[view.ROOM])
        number = jobs[view.NUMBER]
        rate = perf.rates_by_type(number, jobs[view.SIZE], len(snap.capacity))
        if not self.aware:
            rate = (rate > 0).astype(np.float64)
        said, began = rounds.fill(
            jobs,
            rate,
            allowed,
            snap.table.preference,
            snap.jobs.slots,
            snap.capacity,
            supply[view.TOTAL],
            snap.now - state.since,
        )
        decision = Decision(
            number=number,
            type=said[rounds.TYPE],
            count=said[rounds.COUNT],
            reason=said[rounds.REASON],
            evidence=said[rounds.EVIDENCE],
            rank=said[rounds.RANK],
            wake_at=state.next_round,
            heed_at=state.next_round,
            fills=True,
        )
        if len(began):
            state = msgspec.structs.replace(state, filled=np.concatenate([state.filled, began]))
        return decision, state


def _partners(snap: Snapshot) -> Ints:
    """Per job who it shares devices with: -1 for nobody any more, -2 where it runs alone."""
    found = np.full(len(snap), _ALONE, np.int64)
    for row, other in partners(snap).items():
        found[row] = other
    return found


def _taken(shares: Shares, members: Ints, credit: Floats, jobs: int) -> tuple[Ints, Floats, Floats]:
    """Combinations with these shares, and the credit of those that had a share before."""
    share = np.ascontiguousarray(shares.share, np.float64)
    if shares.pair_share is None:
        return members[:jobs], share, credit[:jobs]
    used = shares.pair_share.any(axis=1)
    pairs = shares.pairs[used]
    before = {(a, b): row for row, (a, b) in enumerate(members.tolist()) if b != _NOBODY}
    owed = np.zeros((len(pairs), share.shape[1]))
    for at, (a, b) in enumerate(pairs.tolist()):
        if (a, b) in before:
            owed[at] = credit[before[a, b]]
    return (
        np.concatenate([members[:jobs], pairs]),
        np.concatenate([share, shares.pair_share[used]]),
        np.concatenate([credit[:jobs], owed]),
    )


def _seats(instance: Instance, members: Ints, chosen: Ints) -> dict[str, Any]:
    """Places of those who share devices; who finds none is struck off *chosen*."""
    types = np.full(len(instance), _NOBODY, np.int64)
    for member in (0, 1):
        on = ((chosen >= 0) & (members[:, member] >= 0)).nonzero()[0]
        types[members[on, member]] = chosen[on]
    places, placed = seats(instance, members, chosen, types)
    return {"places": places, "placed": placed}
