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
from typing import Any, ClassVar, Generic, cast

import msgspec
import numpy as np

from levada.core.decision import PLACE_COLUMNS, Decision, decision
from levada.core.mersenne import Mersenne
from levada.core.plane import DEVICE, INDEX, MILLI, NODE, SLOT
from levada.core.snapshot import Snapshot
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.perf.model import ThroughputModel
from levada.policies.gavel.gavel_fifo import GavelFifo, GavelFifoPublished
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import S, SharePolicy, Shares
from levada.policies.protocol import NO_GUARDS, Cadence, Guards, Needs, RoundStats

#: Shares stay at least so long, whatever happens.
RESET_S = 1920.0
#: Priority of a share of 1 that has received nothing yet.
_UNSERVED = 1e9
#: The second member of a job that is alone.
ALONE = -1


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One combination in one round."""

    members: tuple[int, int]
    type: int
    devices: tuple[int, ...]
    finish: float
    #: It makes a step on every GPU; what does not is not charged for its time.
    steps: bool


class PublishedState(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """What the mechanism remembers. Columns are over combinations, in the order in which they came."""

    inner: S
    shuffler: Any
    combo: Ints
    #: Seconds received since the last reset, by type; and what all together received.
    received: Floats
    total: Floats
    owed: Floats
    share: Floats
    #: Whether `share` says anything about it.
    known: Bools
    last_reset: float = 0.0
    round_start: float = 0.0
    round_end: float | None = None
    turns: tuple[Turn, ...] = ()
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

    def initial(self, seed: int) -> PublishedState[S]:
        """No job is known; the type shuffler has a generator of its own."""
        nothing = np.zeros((0, 0))
        return PublishedState(
            inner=self.policy.initial(seed),
            shuffler=Mersenne(seed + 5).getstate(),
            combo=np.zeros((0, 2), np.int64),
            received=nothing,
            total=np.zeros(0),
            owed=nothing,
            share=nothing,
            known=np.zeros(0, bool),
        )

    def decide(
        self, snap: Snapshot, perf: ThroughputModel, state: PublishedState[S]
    ) -> tuple[Decision, PublishedState[S]]:
        """The next round."""
        book = _Book(self, Instance(snap, perf, published=True), state)
        book.charge_last_round()
        book.forget_and_learn()
        book.reset_if_due()
        turns = book.place(book.choose())
        return book.decision(turns), book.state(turns)

    def round_stats(self, state: PublishedState[S]) -> RoundStats:
        """Every decision is a round; `sim.published_world` counts leases itself."""
        return RoundStats(round_s=self.round_s)


class _Book(Generic[S]):
    """One round in the making."""

    def __init__(self, mechanism: Published[S], instance: Instance, state: PublishedState[S]) -> None:
        self.mechanism, self.instance, self.before = mechanism, instance, state
        self.policy = mechanism.policy
        self.now = instance.snap.now
        types = len(instance.capacity)
        self.combo = state.combo
        self.received, self.owed, self.share = (_wide(a, types) for a in (state.received, state.owed, state.share))
        self.total = _wide(state.total[None, :], types)[0]
        self.known, self.stale = state.known.copy(), state.stale
        self.last_reset = state.last_reset
        self.round_start, self.round_end = state.round_start, state.round_end
        self.inner = state.inner
        self.shuffler = Mersenne.fromstate(state.shuffler)
        self.row_of = {int(number): row for row, number in enumerate(instance.number)}

    # --- what happened --------------------------------------------------------------------------------------------

    def charge_last_round(self) -> None:
        """Time is charged from the end of the round before, also after a pause in between."""
        turns = self.before.turns
        if not turns:
            return
        if self.round_end is not None:
            self.round_start = self.round_end
        self.round_end = max(turn.finish for turn in turns)
        at = {(int(a), int(b)): row for row, (a, b) in enumerate(self.combo)}
        for turn in sorted(turns, key=lambda turn: (-turn.finish, turn.members)):
            if turn.steps:
                self.received[at[turn.members], turn.type] += turn.finish - self.round_start
                self.total[turn.type] += turn.finish - self.round_start
            else:
                self.stale = True

    def forget_and_learn(self) -> None:
        """Combinations of jobs that are over go; new jobs come, alone and with each of their like."""
        active = np.isin(self.combo, [*self.row_of, ALONE]).all(axis=1)
        if not active.all():
            self.stale = True
            self.combo, self.known = self.combo[active], self.known[active]
            self.received, self.owed, self.share = self.received[active], self.owed[active], self.share[active]
        singles = self.combo[self.combo[:, 1] == ALONE, 0].tolist()
        fresh = sorted(set(self.row_of) - set(singles))
        if fresh:
            self.stale = True
        elif self.before.asked and not self.before.turns:
            self.last_reset = 0.0  # nothing runs and nothing comes: only new shares can help
        half = self.mechanism.round_s / 2.0
        for number in fresh:
            self._add(number, ALONE, half)
            if self.policy.packs:
                scale = self.instance.scale[self.row_of[number]]
                for other in singles:
                    if self.instance.scale[self.row_of[other]] == scale:
                        self._add(other, number, 0.0)
            singles.append(number)

    def _add(self, a: int, b: int, received: float) -> None:
        types = len(self.total)
        self.combo = np.concatenate([self.combo, [[a, b]]])
        self.received = np.concatenate([self.received, np.full((1, types), received)])
        self.owed = np.concatenate([self.owed, np.zeros((1, types))])
        self.share = np.concatenate([self.share, np.zeros((1, types))])
        self.known = np.append(self.known, False)

    def reset_if_due(self) -> None:
        """New shares, and a clean slate for what was received."""
        elapsed = self.now - self.last_reset
        if not self.stale or (elapsed < RESET_S and self.last_reset != 0.0):
            return
        half = self.mechanism.round_s / 2.0
        self.owed += self.share * elapsed - (self.received - half)
        self.received = np.full_like(self.received, half)
        self.total = np.full(len(self.total), half * len(self.combo))
        self.last_reset = self.now
        shares, self.inner = self.policy.shares(self.instance, self.instance.perf, self.inner)
        self._take(shares)
        self.stale = False

    def _take(self, shares: Shares) -> None:
        number = self.instance.number
        single = self.combo[:, 1] == ALONE
        self.share = np.zeros_like(self.share)
        rows = np.array([self.row_of[int(a)] for a in self.combo[single, 0]], np.int64)
        self.share[single] = shares.share[rows]
        if shares.pair_share is not None and len(shares.pairs):
            at = {(int(a), int(b)): row for row, (a, b) in enumerate(self.combo)}
            for (a, b), share in zip(shares.pairs, shares.pair_share, strict=True):
                self.share[at[int(number[a]), int(number[b])]] = share
        self.known = np.ones(len(self.combo), bool)

    # --- the next round -------------------------------------------------------------------------------------------

    def _rates(self) -> Floats:
        """Per combination, type and member steps/s; a job alone has its rate twice."""
        first = np.array([self.row_of[int(a)] for a in self.combo[:, 0]], np.int64)
        rate = self.instance.rate[first]
        rates = np.stack([rate, rate], axis=2)
        pairs = (self.combo[:, 1] != ALONE).nonzero()[0]
        if len(pairs):
            a, b = self.combo[pairs, 0], self.combo[pairs, 1]
            types = np.arange(rates.shape[1])
            sizes = self.instance.size[first[pairs]]
            rates[pairs] = self.instance.perf.pair_rates(a[:, None], b[:, None], types[None, :], sizes[:, None])
        return rates

    def choose(self) -> dict[int, list[int]]:
        """By type, the combinations that run, in the order they were taken."""
        self.rates = self._rates()
        runs: Bools = np.asarray((self.rates > 0).all(axis=2))
        priority = self._priorities(runs)
        order = self.instance.columns()[::-1]
        if not (self.policy.aware or self.policy.packs):
            self.shuffler.shuffle(order)
        left = self.instance.capacity.copy()
        chosen: dict[int, list[int]] = {t: [] for t in order}
        taken: set[int] = set()
        for row, kind in self._queue(order, priority):
            if left[kind] == 0 or not runs[row, kind]:
                continue
            a, b = int(self.combo[row, 0]), int(self.combo[row, 1])
            if a in taken or b in taken or (self.policy.strict and priority[row, kind] <= 0.0):
                continue
            scale = self.instance.scale[self.row_of[a]]
            if scale > left[kind]:
                continue
            left[kind] -= scale
            taken.update((a,) if b == ALONE else (a, b))
            chosen[kind].append(row)
        return chosen

    def _priorities(self, runs: Bools) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(self.total > 0, self.received / self.total, 0.0)
            priority = np.where(part > 0, self.share / part, self.share * _UNSERVED)
        return np.where(runs & (self.share > 0) & self.known[:, None], priority, 0.0)

    def _queue(self, order: list[int], priority: Floats) -> list[tuple[int, int]]:
        rows = np.tile(np.arange(len(self.combo)), len(order))
        kinds = np.repeat(np.array(order, np.int64), len(self.combo))
        keys = (-self.share[rows, kinds], -self.owed[rows, kinds], -priority[rows, kinds])
        if self.mechanism.global_queue:
            by = np.lexsort(keys)
        else:
            by = np.lexsort((*keys, np.repeat(np.arange(len(order)), len(self.combo))))
        return list(zip(rows[by].tolist(), kinds[by].tolist(), strict=True))

    def place(self, chosen: dict[int, list[int]]) -> list[Turn]:
        """Devices for all that run: larger ones first, kept where they can be, else the next free ones."""
        last = {turn.members: turn for turn in self.before.turns}
        inventory = self.instance.snap.inventory
        usable = inventory.free_milli() == WHOLE
        turns: list[Turn] = []
        for kind, rows in chosen.items():
            free = iter(((inventory.type_of == kind) & usable).nonzero()[0].tolist())
            used: set[int] = set()
            scales = [int(self.instance.scale[self.row_of[int(self.combo[row, 0])]]) for row in rows]
            for scale in sorted(set(scales), reverse=True):
                same = [row for row, its in zip(rows, scales, strict=True) if its == scale]
                kept: set[int] = set()
                for row in same:
                    before = last.get(self._members(row))
                    if before is not None and before.type == kind and not used & set(before.devices):
                        used.update(before.devices)
                        kept.add(row)
                        turns.append(self._turn(row, kind, before.devices))
                for row in same:
                    # A newcomer without a share was counted, but is passed over.
                    if row in kept or not self.known[row]:
                        continue
                    devices: list[int] = []
                    while len(devices) < scale:
                        device = next(free)
                        if device not in used:
                            devices.append(device)
                    used.update(devices)
                    turns.append(self._turn(row, kind, tuple(devices)))
        return turns

    def _members(self, row: int) -> tuple[int, int]:
        return int(self.combo[row, 0]), int(self.combo[row, 1])

    def _turn(self, row: int, kind: int, devices: tuple[int, ...]) -> Turn:
        """Whole steps only; the round lasts until the slower member is through."""
        members = self._members(row)
        finish, all_step = self.now, True
        for member, number in enumerate(members):
            if number == ALONE:
                continue
            rate = float(self.rates[row, kind, member])
            steps = round_steps(rate, self.mechanism.round_s, float(self.instance.steps_left[self.row_of[number]]))
            finish = max(finish, self.now + steps / rate)
            all_step &= steps_everywhere(steps, len(devices))
        return Turn(members=members, type=kind, devices=devices, finish=finish, steps=all_step)

    # --- the answer -----------------------------------------------------------------------------------------------

    def decision(self, turns: list[Turn]) -> Decision:
        """Sizes and places."""
        instance = self.instance
        node_of = instance.snap.inventory.node_of
        count, kind = np.zeros(len(instance), np.int64), np.full(len(instance), -1)
        places, placed = [], []
        for turn in turns:
            part = WHOLE if turn.members[1] == ALONE else WHOLE // 2
            for number in turn.members:
                if number == ALONE:
                    continue
                row = self.row_of[number]
                count[row], kind[row] = instance.size[row], turn.type
                placed.append(row)
                each = len(turn.devices) // int(instance.size[row])
                for at, device in enumerate(turn.devices):
                    place = [0] * PLACE_COLUMNS
                    place[SLOT], place[INDEX], place[NODE] = row, at // each, int(node_of[device])
                    place[DEVICE], place[MILLI] = device, part
                    places.append(place)
        rows = np.array(places, np.int64).reshape(-1, PLACE_COLUMNS).T
        later = math.nextafter(self.now, math.inf)
        return decision(
            instance.snap, kind, count, places=rows, placed=np.array(sorted(placed), np.int64), wake_at=later
        )

    def state(self, turns: list[Turn]) -> PublishedState[S]:
        """What to remember for the next round."""
        return PublishedState(
            inner=self.inner,
            shuffler=self.shuffler.getstate(),
            combo=self.combo,
            received=self.received,
            total=self.total,
            owed=self.owed,
            share=self.share,
            known=self.known,
            last_reset=self.last_reset,
            round_start=self.round_start,
            round_end=self.round_end,
            turns=tuple(turns),
            stale=self.stale,
            asked=True,
        )


def round_steps(rate: float, round_s: float, left: float) -> float:
    """The steps of one round: whole ones, or what is left."""
    return min(int(rate * round_s), left)


def steps_everywhere(steps: float, gpus: int) -> bool:
    """Whether every GPU gets a step when they are dealt out evenly; the last one takes what is over."""
    return int(steps / gpus) > 0 if gpus > 1 else steps > 0


def _wide(columns: Floats, types: int) -> Floats:
    """With a column for each type, also for those that came since."""
    wide = np.zeros((len(columns), types))
    wide[:, : columns.shape[1]] = columns
    return wide
