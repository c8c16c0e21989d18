"""Shares into grants as Gavel's published scheduler does it, step by step, so that results can be compared.

1. Shares are asked for anew when jobs came, went or failed, but at most every 1920 s; newcomers wait for that.
2. The priority of a combination (a job, or two that share devices) on a type is its share over the part of the type's
   time that it has received since then; what it was owed before breaks ties.
3. Type by type (or in one global queue) combinations are taken by priority while GPUs are left; those without any
   priority fill what is over. Who could run better on a later type is not asked.
4. Larger ones are placed first; a combination keeps its devices where they are free, else it takes the next ones.
5. A round lasts until its last member is through with its whole steps.

Where this loses against `rounds` is described in the documentation; nothing is mended here.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, ClassVar, Generic, cast

import msgspec
import numpy as np

from levada.core.decision import Decision
from levada.core.mersenne import Mersenne, Words
from levada.core.types import Bools, Floats, Ints
from levada.kernels import published_round as kernels
from levada.perf.model import ThroughputModel
from levada.policies.gavel.gavel_fifo import GavelFifo, GavelFifoPublished
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import S, SharePolicy, Shares
from levada.policies.protocol import NO_GUARDS, Cadence, Guards, Needs, RoundStats
from levada.tables.snapshot import Snapshot

#: Shares stay at least so long, whatever happens.
RESET_S = 1920.0
_NO_PAIRS = np.zeros((0, 0, 2))


class PublishedState(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """What the mechanism remembers; columns are as in `kernels.published_round`."""

    inner: S
    shuffler: Words
    #: The jobs in view, and which of them combinations are made of.
    number: Ints
    combo: Ints
    members: Ints
    book: Floats
    #: What all together received, by type.
    total: Floats
    #: Whether the share of a combination says anything about it.
    known: Bools
    last_reset: float = 0.0
    round_start: float = 0.0
    round_end: float | None = None
    #: The last round.
    turns: Ints
    devices: Ints
    finish: Floats
    stale: bool = True
    asked: bool = False


class Published(Generic[S]):
    """See the module."""

    by_node: ClassVar[bool] = True
    guards: ClassVar[Guards] = NO_GUARDS
    cadence: ClassVar[Cadence] = Cadence(on_events=False)

    def __init__(self, policy: SharePolicy[S], *, round_s: float = 360.0, global_queue: bool = False) -> None:
        given: Any = policy
        # What `gavel-fifo` promised in vain shows in the published results.
        self.policy: SharePolicy[S] = cast(Any, GavelFifoPublished()) if type(given) is GavelFifo else policy
        self.name, self.needs = policy.name, policy.needs | Needs.REMAINING | Needs.RATE
        self.round_s, self.global_queue = round_s, global_queue
        self._shuffles = not (self.policy.aware or self.policy.packs)

    def initial(self, seed: int) -> PublishedState[S]:
        """No job is known; the type shuffler has a generator of its own."""
        return PublishedState(
            inner=self.policy.initial(seed),
            shuffler=Mersenne(seed + 5).as_column(),
            number=np.zeros(0, np.int64),
            combo=np.zeros((0, 2), np.int64),
            members=np.zeros((0, 2), np.int64),
            book=np.zeros((3, 0, 0)),
            total=np.zeros(0),
            known=np.zeros(0, bool),
            turns=np.zeros((4, 0), np.int64),
            devices=np.zeros(0, np.int64),
            finish=np.zeros(0),
        )

    def decide(
        self, snap: Snapshot, perf: ThroughputModel, state: PublishedState[S]
    ) -> tuple[Decision, PublishedState[S]]:
        """The next round."""
        instance, policy = Instance(snap, perf, published=True), self.policy
        number, types, half_s = instance.number, len(snap.capacity), self.round_s / 2.0
        # Time is charged from the end of the round before, also after a pause in between.
        round_start, round_end, ran = state.round_start, state.round_end, len(state.finish) > 0
        if ran:
            round_start = round_start if round_end is None else round_end
            round_end = float(state.finish.max())
        combo, known, members, where = state.combo, state.known, state.members, state.turns[kernels.COMBO]
        book, total, failed, same = kernels.charge(
            _wide(state.book, types),
            _wide(state.total, types),
            combo,
            state.turns,
            state.finish,
            round_start,
            state.number,
            number,
        )
        over = came = False
        if not same:
            combo, book, known, members, where, over, came = kernels.follow(
                combo, book, known, state.turns, number, instance.scale, policy.packs, half_s
            )
        inner, last_reset, stale = state.inner, state.last_reset, state.stale or failed or over or came
        if state.asked and not ran and not came:
            last_reset = 0.0  # nothing runs and nothing comes: only new shares can help
        elapsed = snap.now - last_reset
        if stale and (elapsed >= RESET_S or last_reset == 0.0):
            shares, inner = policy.shares(instance, perf, inner)
            book, total = _reset(book, members, shares, elapsed, half_s)
            known, last_reset, stale = np.ones(len(combo), bool), snap.now, False
        order, shuffler = _by_falling_name(instance.names), state.shuffler
        if self._shuffles:
            generator, present = Mersenne.fromstate(shuffler), instance.columns()[::-1]
            generator.shuffle(present)
            order, shuffler = np.array(present, np.int64), generator.as_column()
        said, places, placed, turns, devices, finish = kernels.play(
            kernels.Jobs(
                instance.rate,
                _together(combo, members, instance),
                instance.jobs,
                instance.scale,
                instance.best,
                snap.jobs.slots,
            ),
            kernels.Ledger(members, book, total, known),
            kernels.LastRound(state.turns, where, state.devices),
            snap.table.ints,
            snap.table.floats,
            snap.target.owner,
            snap.inventory.openings.devices,
            instance.capacity,
            order,
            self.global_queue,
            policy.strict,
            snap.now,
            self.round_s,
        )
        decision = Decision(
            number=number,
            type=said[kernels.TYPE],
            count=said[kernels.COUNT],
            reason=said[kernels.REASON],
            evidence=said[kernels.EVIDENCE],
            # Most rounds move no job: then there is nothing to place.
            places=places if len(placed) else None,
            placed=placed if len(placed) else None,
            wake_at=math.nextafter(snap.now, math.inf),
        )
        return decision, PublishedState(
            inner=inner,
            shuffler=shuffler,
            number=number,
            combo=combo,
            members=members,
            book=book,
            total=total,
            known=known,
            last_reset=last_reset,
            round_start=round_start,
            round_end=round_end,
            turns=turns,
            devices=devices,
            finish=finish,
            stale=stale,
            asked=True,
        )

    def round_stats(self, state: PublishedState[S]) -> RoundStats:
        """Every decision is a round; `sim.published_world` counts leases itself."""
        return RoundStats(round_s=self.round_s)


def _reset(book: Floats, members: Ints, shares: Shares, elapsed: float, half_s: float) -> tuple[Floats, Floats]:
    """New shares, and a clean slate for what was received: the book, and what all together received."""
    received, owed, old_share = book
    share = np.zeros_like(old_share)
    single = members[:, 1] == kernels.ALONE
    share[single] = shares.share[members[single, 0]]
    if shares.pair_share is not None and len(shares.pairs):
        at = {(a, b): row for row, (a, b) in enumerate(members.tolist())}
        share[[at[a, b] for a, b in shares.pairs.tolist()]] = shares.pair_share
    owed = owed + (old_share * elapsed - (received - half_s))
    return np.stack([np.full_like(received, half_s), owed, share]), np.full(book.shape[2], half_s * len(members))


def _together(combo: Ints, members: Ints, instance: Instance) -> Floats:
    """(pairs, types, 2): steps/s of both members of each pair."""
    if len(combo) <= len(instance):
        return _NO_PAIRS  # each job by itself
    pairs = (members[:, 1] != kernels.ALONE).nonzero()[0]
    (a, b), sizes = combo[pairs].T, instance.size[members[pairs, 0]]
    kinds = np.arange(instance.rate.shape[1])
    return instance.perf.pair_rates(a[:, None], b[:, None], kinds[None, :], sizes[:, None])


@cache
def _by_falling_name(names: tuple[str, ...]) -> Ints:
    """All types in the order in which they are filled: the last name first."""
    return np.array(sorted(range(len(names)), key=names.__getitem__, reverse=True), np.int64)


def _wide(columns: Floats, types: int) -> Floats:
    """With a column for each type, also for those that came since."""
    if columns.shape[-1] == types:
        return columns
    wide = np.zeros((*columns.shape[:-1], types))
    wide[..., : columns.shape[-1]] = columns
    return wide
