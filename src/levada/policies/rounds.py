"""Turn shares into sizes: which job runs on which GPU type until the next round.

Every combination (one job, or two that share devices) has credit on every type. Credit grows with the share of the
elapsed time and shrinks while the combination runs there, so received time follows shares even if they change. If not
all credit can be served (jobs with several GPUs do not always fit side by side), credit grows more slowly for all, so
that they take turns.

- At each round, (combination, type) pairs run in order of priority over all types at once. Priority is the share, plus
  bounded credit, plus small terms for the speed relative to the job's best type and for a pair that has a share and
  runs now (hysteresis). So a full share takes effect at once, and credit makes combinations with partial shares take
  turns. Among equal types, the one with the largest free fraction wins. To a policy without speeds all types are
  equally fast.
- Between rounds no job is stopped; pending jobs start at once where GPUs are free. The policy then sees only pending
  jobs, and the next round accounts for the time that others are owed.
- The policy recomputes shares at the next round after jobs arrive, end or change.

`mechanism: gavel` selects the published mechanism instead; see `compat.gavel.published_rounds`.
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
from levada.policies.gavel.packed_placement import partners, place_pairs
from levada.policies.gavel.share import S, SharePolicy, Shares
from levada.policies.protocol import NO_GUARDS, Cadence, Guards, RoundStats
from levada.tables.snapshot import Snapshot

#: A running combination stays until another one is owed this many rounds more.
STICKINESS = 1.0
#: The bound of credit and debt, in rounds: a job that could not run for days must not block all others. It must exceed
#: the sum of the weights below, or a job with a smaller share would never run beside one with a larger share.
MOST_OWED = 30.0
#: The weight of the fastest type of a job, in rounds; slower types in proportion.
WORTH_OF_SPEED = 5.0
#: The weight of a whole share, in rounds.
WORTH_OF_SHARE = 20.0

_NONE, _ALONE = -1, -2
#: Partners under a policy without space sharing.
_NO_PARTNERS = np.zeros(0, np.int64)
_NONE_FILLED = np.zeros((0, 3))


class RoundState(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """State between rounds: columns over combinations with a share, by job number.

    The second member is -1 for a job alone.
    """

    inner: S
    members: Ints
    share: Floats
    credit: Floats
    #: The time up to which credit is counted, and the time of the next round.
    since: float = -math.inf
    next_round: float = -math.inf
    #: The inputs of the last shares: jobs with sizes, weights and types, and the capacity of each type.
    asked: Floats
    room: Ints
    #: Jobs that started between rounds since then: number, type, and seconds from `since` to the start.
    filled: Floats = _NONE_FILLED
    alarms: int = 0
    extensions: int = 0
    turns: int = 0


class Rounds(Generic[S]):
    """A share policy that decides in rounds; see the module docstring."""

    guards: ClassVar[Guards] = NO_GUARDS
    cadence: ClassVar[Cadence] = Cadence(on_acks=False)

    def __init__(self, policy: SharePolicy[S], *, round_s: float = 360.0) -> None:
        self.policy, self.round_s = policy, round_s
        self.name, self.needs = policy.name, policy.needs
        #: Whether the policy compares the speeds of types; see `knows_speeds`.
        self.aware = policy.aware
        #: Decisions with shared devices must name the devices.
        self.by_node = policy.packs
        # A job that will share its GPU must not start alone.
        self._owed_only = policy.strict or policy.packs
        self._weights = (STICKINESS * round_s, MOST_OWED * round_s, WORTH_OF_SPEED * round_s, WORTH_OF_SHARE * round_s)

    def initial(self, seed: int) -> RoundState[S]:
        """No job has a share."""
        return RoundState(
            inner=self.policy.initial(seed),
            members=np.zeros((0, 2), np.int64),
            share=np.zeros((0, 0)),
            credit=np.zeros((0, 0)),
            asked=np.zeros((0, 4)),
            room=np.zeros(0, np.int64),
        )

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: RoundState[S]) -> tuple[Decision, RoundState[S]]:
        """Sizes until the next event or round."""
        if snap.fill:
            return self._fill(snap, perf, state)
        instance, policy = Instance(snap, perf), self.policy
        # If only jobs with a share may run, shares also depend on the capacity that jobs out of view leave.
        room = snap.capacity if self._owed_only else instance.supply[view.ROOM]
        partner = _partners(snap) if self.by_node else _NO_PARTNERS
        memory = state.members, state.share, state.credit, state.asked, state.room, state.filled
        elapsed_s = snap.now - state.since
        members, share, credit, asked, need, runs, stale, crowded = rounds.carry_over(
            memory,
            instance.jobs,
            instance.reals,
            instance.allowed,
            partner,
            room,
            snap.capacity,
            elapsed_s,
            self._weights,
        )
        # If only jobs with a share may run, new shares cannot wait while GPUs are idle.
        due = snap.now >= state.next_round or (policy.strict and stale) or crowded
        inner, alarms = state.inner, state.alarms
        if due and stale:
            shares, inner = policy.shares(instance, perf, inner)
            alarms += bool(shares.alarm)
            members, share, credit = _with_shares(shares, members, credit, len(instance))
            if self.by_node:
                need, runs = rounds.running(members, instance.jobs, partner)
        (columns, numbers, extended, ran, quiet_s), placement = self._choose(
            instance, due, members, share, credit, need, runs
        )
        next_round = snap.now + self.round_s if due else state.next_round
        # Skip rounds in which nothing can change, unless shares are stale.
        if stale and not due:
            quiet_s = 0.0
        wake_at = max(next_round, snap.now + quiet_s) if len(instance) else math.inf
        fills = not policy.strict and not self.by_node
        return _decision(instance.number, columns, wake_at, next_round, fills, **placement), RoundState(
            inner=inner,
            members=numbers,
            share=share,
            credit=credit,
            since=snap.now,
            next_round=next_round,
            asked=asked if due else state.asked,
            room=room if due else state.room,
            alarms=alarms,
            extensions=state.extensions + (extended if due else 0),
            turns=state.turns + (ran if due else 0),
        )

    def _choose(
        self, instance: Instance, due: bool, members: Ints, share: Floats, credit: Floats, need: Ints, runs: Ints
    ) -> tuple[tuple[Ints, Ints, int, int, float], dict[str, Any]]:
        """The result of `kernels.rounds.build_decision`, and places if devices are shared."""
        snap, strict, owed_only, weights = instance.snap, self.policy.strict, self._owed_only, self._weights
        speed = instance.relative if self.aware else (instance.relative > 0).astype(np.float64)
        capacity, total = snap.capacity, instance.supply[view.TOTAL]
        context = speed, instance.allowed, snap.table.preference, snap.jobs.slots, capacity, total, weights
        if not self.by_node:
            return rounds.choose_and_build(
                due, strict, owed_only, instance.jobs, members, share, credit, need, runs, *context
            ), {}
        chosen = rounds.choose(
            due, strict, owed_only, members, share, credit, need, runs, speed, capacity, total, weights
        )
        placement = _place_shared(instance, members, chosen)
        return rounds.build_decision(
            owed_only, instance.jobs, members, share, credit, runs, chosen, *context
        ), placement

    def round_stats(self, state: RoundState[S]) -> RoundStats:
        """The rounds up to *state*."""
        return RoundStats(
            round_s=self.round_s,
            next_round=state.next_round,
            lease_extensions=state.extensions,
            lease_opportunities=state.turns,
        )

    def _fill(self, snap: Snapshot, perf: ThroughputModel, state: RoundState[S]) -> tuple[Decision, RoundState[S]]:
        """Start pending jobs on free devices between two rounds."""
        supply = snap.inventory.allocatable.supply
        # Free capacity does not limit the size of a job.
        jobs, _, allowed = jobs_of(snap, supply, supply[view.ROOM])
        number = jobs[view.NUMBER]
        rate = perf.rates_by_type(number, jobs[view.SIZE], len(snap.capacity))
        if not self.aware:
            rate = (rate > 0).astype(np.float64)
        elapsed_s, total = snap.now - state.since, supply[view.TOTAL]
        columns, started = rounds.fill(
            jobs, rate, allowed, snap.table.preference, snap.jobs.slots, snap.capacity, total, elapsed_s
        )
        if len(started):
            state = msgspec.structs.replace(state, filled=np.concatenate([state.filled, started]))
        return _decision(number, columns, state.next_round, state.next_round, True), state


def _decision(number: Ints, columns: Ints, wake_at: float, heed_at: float, fills: bool, **placement: Any) -> Decision:
    return Decision(
        number=number,
        type=columns[rounds.TYPE],
        count=columns[rounds.COUNT],
        reason=columns[rounds.REASON],
        evidence=columns[rounds.EVIDENCE],
        rank=columns[rounds.RANK],
        wake_at=wake_at,
        heed_at=heed_at,
        fills=fills,
        **placement,
    )


def _partners(snap: Snapshot) -> Ints:
    """The job that each job shares devices with; -1: partner ended, -2: runs alone."""
    result = np.full(len(snap), _ALONE, np.int64)
    for row, other in partners(snap).items():
        result[row] = other
    return result


def _with_shares(shares: Shares, members: Ints, credit: Floats, jobs: int) -> tuple[Ints, Floats, Floats]:
    """The combinations with new shares, and the credit of those that had one before."""
    share = np.ascontiguousarray(shares.share, np.float64)
    if shares.pair_share is None:
        return members[:jobs], share, credit[:jobs]
    used = shares.pair_share.any(axis=1)
    pairs = shares.pairs[used]
    before = {(a, b): row for row, (a, b) in enumerate(members.tolist()) if b != _NONE}
    owed = np.zeros((len(pairs), share.shape[1]))
    for at, (a, b) in enumerate(pairs.tolist()):
        if (a, b) in before:
            owed[at] = credit[before[a, b]]
    return (
        np.concatenate([members[:jobs], pairs]),
        np.concatenate([share, shares.pair_share[used]]),
        np.concatenate([credit[:jobs], owed]),
    )


def _place_shared(instance: Instance, members: Ints, chosen: Ints) -> dict[str, Any]:
    """Places of jobs that share devices; those without room are removed from *chosen*."""
    types = np.full(len(instance), _NONE, np.int64)
    for member in (0, 1):
        on = ((chosen >= 0) & (members[:, member] >= 0)).nonzero()[0]
        types[members[on, member]] = chosen[on]
    places, placed = place_pairs(instance, members, chosen, types)
    return {"places": places, "placed": placed}
