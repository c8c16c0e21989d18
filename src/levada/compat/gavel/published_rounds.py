"""Gavel's published mechanism: from shares to grants, step by step.

It exists so that results can be compared.

1. Shares are recomputed after jobs arrived, ended or failed, but at most every 1920 s; new jobs wait for that.
2. The priority of a combination (a job, or two that share devices) on a type is its share divided by the fraction of
   the type's time that it has received since then; time owed from before breaks ties.
3. Type by type (or in one global queue), combinations are taken by priority while GPUs are left; those without priority
   use the remaining GPUs. Whether a combination would run better on a later type is ignored.
4. Larger combinations are placed first; a combination keeps its devices if they are free, else it takes the next ones.
5. A round lasts until its last member has done its whole steps.

The documentation describes its disadvantages compared to `rounds`; they are reproduced here.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, ClassVar, Generic, cast

import msgspec
import numpy as np

from levada.compat.gavel.kernels import published_round as kernels
from levada.compat.gavel.mersenne import Mersenne, Words
from levada.core.decision import Decision
from levada.core.types import Bools, Floats, Ints
from levada.perf.model import ThroughputModel
from levada.policies.gavel.gavel_fifo import GavelFifo, GavelFifoPublished
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import S, SharePolicy, Shares
from levada.policies.protocol import NO_GUARDS, Cadence, Guards, Needs, RoundStats
from levada.tables.snapshot import Snapshot

#: Minimum time between two computations of shares.
RESET_S = 1920.0
_NO_PAIRS = np.zeros((0, 0, 2))


class PublishedState(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """State of the mechanism; columns as in `kernels.published_round`."""

    inner: S
    shuffler: Words
    #: The jobs in view, and their combinations.
    number: Ints
    combo: Ints
    members: Ints
    book: Floats
    #: Total time received by all combinations, by type.
    total: Floats
    #: Whether the share of a combination has been computed.
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
    """The published mechanism with a share policy; see the module."""

    by_node: ClassVar[bool] = True
    guards: ClassVar[Guards] = NO_GUARDS
    cadence: ClassVar[Cadence] = Cadence(on_events=False)

    def __init__(self, policy: SharePolicy[S], *, round_s: float = 360.0, global_queue: bool = False) -> None:
        untyped: Any = policy
        # The published results have the shares of the published `gavel-fifo`.
        self.policy: SharePolicy[S] = cast(Any, GavelFifoPublished()) if type(untyped) is GavelFifo else policy
        self.name, self.needs = policy.name, policy.needs | Needs.REMAINING | Needs.RATE
        self.round_s, self.global_queue = round_s, global_queue
        self._shuffles = not (self.policy.aware or self.policy.packs)

    def initial(self, seed: int) -> PublishedState[S]:
        """The state without jobs; the shuffler of types has its own generator."""
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
        """Decide the next round."""
        instance = Instance(snap, perf, published=True)
        state, where = self._account(instance, snap, perf, state)
        order, shuffler = self._type_order(instance, state.shuffler)
        rows, places, placed, turns, devices, finish = kernels.next_round(
            (
                instance.rate,
                _pair_rates(state.combo, state.members, instance),
                instance.jobs,
                instance.scale,
                instance.best,
                snap.jobs.slots,
            ),
            (state.members, state.book, state.total, state.known),
            (state.turns, where, state.devices),
            snap.table.ints,
            snap.table.floats,
            snap.target.owner,
            snap.inventory.allocatable.devices,
            instance.capacity,
            order,
            self.global_queue,
            self.policy.strict,
            snap.now,
            self.round_s,
        )
        decision = Decision(
            number=instance.number,
            type=rows[kernels.TYPE],
            count=rows[kernels.COUNT],
            reason=rows[kernels.REASON],
            evidence=rows[kernels.EVIDENCE],
            # Most rounds move no job.
            places=places if len(placed) else None,
            placed=placed if len(placed) else None,
            wake_at=math.nextafter(snap.now, math.inf),
        )
        return decision, msgspec.structs.replace(
            state, shuffler=shuffler, turns=turns, devices=devices, finish=finish, asked=True
        )

    def _account(
        self, instance: Instance, snap: Snapshot, perf: ThroughputModel, state: PublishedState[S]
    ) -> tuple[PublishedState[S], Ints]:
        """Charge the last round, update combinations, and recompute shares if they are due.

        Returns the state, still with the turns of the last round, and the combination of each of these turns.
        """
        number, types, half_s = instance.number, len(snap.capacity), self.round_s / 2.0
        # Time is charged from the end of the previous round, even after a pause.
        round_start, round_end, ran = state.round_start, state.round_end, len(state.finish) > 0
        if ran:
            round_start = round_start if round_end is None else round_end
            round_end = max(state.finish.tolist())
        combo, known, members, where = state.combo, state.known, state.members, state.turns[kernels.COMBO]
        book, total, failed, same = kernels.charge(
            _widen(state.book, types),
            _widen(state.total, types),
            combo,
            state.turns,
            state.finish,
            round_start,
            state.number,
            number,
        )
        ended = arrived = False
        if not same:
            combo, book, known, members, where, ended, arrived = kernels.update_combinations(
                combo, book, known, state.turns, number, instance.scale, self.policy.packs, half_s
            )
        inner, last_reset, stale = state.inner, state.last_reset, state.stale or failed or ended or arrived
        if state.asked and not ran and not arrived:
            last_reset = 0.0  # no job runs and none arrives: recompute shares
        elapsed = snap.now - last_reset
        if stale and (elapsed >= RESET_S or last_reset == 0.0):
            shares, inner = self.policy.shares(instance, perf, inner)
            book, total = _reset(book, members, shares, elapsed, half_s)
            known, last_reset, stale = np.ones(len(combo), bool), snap.now, False
        state = msgspec.structs.replace(
            state,
            inner=inner,
            number=number,
            combo=combo,
            members=members,
            book=book,
            total=total,
            known=known,
            last_reset=last_reset,
            round_start=round_start,
            round_end=round_end,
            stale=stale,
        )
        return state, where

    def _type_order(self, instance: Instance, shuffler: Words) -> tuple[Ints, Words]:
        """The order in which types are filled, and the next state of the shuffler."""
        if not self._shuffles:
            return _by_descending_name(instance.names), shuffler
        generator, present = Mersenne.fromstate(shuffler), instance.columns()[::-1]
        generator.shuffle(present)
        return np.array(present, np.int64), generator.as_column()

    def round_stats(self, state: PublishedState[S]) -> RoundStats:
        """Every decision is a round; `compat.gavel.simulator` counts leases itself."""
        return RoundStats(round_s=self.round_s)


def _reset(book: Floats, members: Ints, shares: Shares, elapsed: float, half_s: float) -> tuple[Floats, Floats]:
    """Set new shares and reset received times; returns the book, and the total received times."""
    received, owed, old_share = book
    share = np.zeros_like(old_share)
    single = members[:, 1] == kernels.ALONE
    share[single] = shares.share[members[single, 0]]
    if shares.pair_share is not None and len(shares.pairs):
        at = {(a, b): row for row, (a, b) in enumerate(members.tolist())}
        share[[at[a, b] for a, b in shares.pairs.tolist()]] = shares.pair_share
    owed = owed + (old_share * elapsed - (received - half_s))
    return np.stack([np.full_like(received, half_s), owed, share]), np.full(book.shape[2], half_s * len(members))


def _pair_rates(combo: Ints, members: Ints, instance: Instance) -> Floats:
    """(pairs, types, 2): steps/s of both members of each pair."""
    if len(combo) <= len(instance):
        return _NO_PAIRS
    pairs = (members[:, 1] != kernels.ALONE).nonzero()[0]
    (a, b), sizes = combo[pairs].T, instance.size[members[pairs, 0]]
    kinds = np.arange(instance.rate.shape[1])
    return instance.perf.pair_rates(a[:, None], b[:, None], kinds[None, :], sizes[:, None])


@cache
def _by_descending_name(names: tuple[str, ...]) -> Ints:
    """All types in the order in which they are filled: by descending name."""
    return np.array(sorted(range(len(names)), key=names.__getitem__, reverse=True), np.int64)


def _widen(columns: Floats, types: int) -> Floats:
    """Extend to *types* columns."""
    if columns.shape[-1] == types:
        return columns
    result = np.zeros((*columns.shape[:-1], types))
    result[..., : columns.shape[-1]] = columns
    return result
