"""First come, first served, one GPU type for each job for good or for now.

Source: Gavel (OSDI 2020), its three `fifo` policies; the names here begin with `gavel-`, for `fifo` is Voda's.

    gavel-fifo         a job keeps the type it once got; a finished job is replaced on its type by the head of the queue
    gavel-fifo_perf    all over again each time, each job on the fastest type that has room for it
    gavel-fifo_packed  as _perf; then the head of the queue joins the running job it goes best with, if both together
                       make more than 1.5 jobs' worth of progress

Nobody overtakes: the first job that does not fit ends it. `gavel-fifo` draws one of the types with room at random. As
published, and under the published mechanism, it draws a type but uses the last free one by name, and strikes the drawn
one off its list when the used one is full: types are promised beyond what there is, and less than that runs.
"""

from __future__ import annotations

from bisect import insort
from typing import ClassVar

import msgspec
import numpy as np

from levada.core.mersenne import Mersenne
from levada.core.types import Floats, Ints
from levada.kernels import choose
from levada.perf.model import ThroughputModel
from levada.policies.gavel.forms import able
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import Shares, Sharing
from levada.policies.protocol import Needs

#: Two jobs share devices only if together they make more progress than this, each alone counting 1.
PACKING_THRESHOLD = 1.5


class FifoState(msgspec.Struct, frozen=True, kw_only=True):
    """The type of each job that has one, by number, and the generator."""

    type_of: dict[int, int] = {}
    generator: tuple[int, ...] = ()


class GavelFifo(Sharing):
    """One type per job, kept for good."""

    name: ClassVar[str] = "gavel-fifo"
    strict: ClassVar[bool] = True

    def initial(self, seed: int) -> FifoState:
        """Nobody has a type."""
        return FifoState(generator=Mersenne(seed).getstate())

    def shares(self, instance: Instance, perf: ThroughputModel, state: FifoState) -> tuple[Shares, FifoState]:
        """1 on the job's type, 0 elsewhere."""
        rng = Mersenne.fromstate(state.generator)
        row_of = {int(number): row for row, number in enumerate(instance.number)}
        free = instance.capacity.copy()
        type_of = dict(state.type_of)
        queue = [number for number in sorted(row_of) if number not in type_of]
        self._keep(instance, row_of, type_of, queue, free)
        self._draw(instance, row_of, type_of, queue, free, rng)
        share = np.zeros_like(instance.rate)
        for number, kind in type_of.items():
            share[row_of[number], kind] = 1.0
        return Shares(share=share), FifoState(type_of=type_of, generator=rng.getstate())

    def _keep(
        self, instance: Instance, row_of: dict[int, int], type_of: dict[int, int], queue: list[int], free: Floats
    ) -> None:
        """Jobs keep their types while these hold them; what is over is free for the queue."""
        for number in sorted(type_of):
            if number in row_of and _fits(instance, row_of[number], type_of[number], free):
                free[type_of[number]] -= instance.scale[row_of[number]]
                continue
            del type_of[number]
            if number in row_of:
                insort(queue, number)

    def _draw(
        self,
        instance: Instance,
        row_of: dict[int, int],
        type_of: dict[int, int],
        queue: list[int],
        free: Floats,
        rng: Mersenne,
    ) -> None:
        """Each job in turn takes any type with room for it, until one finds none."""
        types, runs = instance.columns(), able(instance)
        for number in sorted(queue, key=row_of.__getitem__):
            row = row_of[number]
            if not runs[row].any():
                continue
            fitting = [kind for kind in types if _fits(instance, row, kind, free)]
            if not fitting:
                break
            kind = fitting[rng.randrange(len(fitting))]
            type_of[number] = kind
            free[kind] -= instance.scale[row]


class GavelFifoPublished(GavelFifo):
    """With the defects of the published one."""

    def _keep(
        self, instance: Instance, row_of: dict[int, int], type_of: dict[int, int], queue: list[int], free: Floats
    ) -> None:
        for number in sorted(type_of):
            kind = type_of[number]
            if number in row_of:
                free[kind] -= instance.scale[row_of[number]]
                continue
            del type_of[number]
            # Later jobs on this type have not been counted yet: that is how it was published.
            if queue and _fits(instance, row_of[queue[0]], kind, free):
                head = queue.pop(0)
                type_of[head] = kind
                free[kind] -= instance.scale[row_of[head]]

    def _draw(
        self,
        instance: Instance,
        row_of: dict[int, int],
        type_of: dict[int, int],
        queue: list[int],
        free: Floats,
        rng: Mersenne,
    ) -> None:
        open_types = [kind for kind in instance.by_name() if free[kind] > 0]
        while queue and open_types:
            row = row_of[queue.pop(0)]
            fitting = [kind for kind in open_types if free[kind] >= instance.scale[row]]
            if not fitting:
                break
            drawn = fitting[rng.randrange(len(fitting))]
            used = open_types[-1]
            if instance.rate[row, used] > 0:
                type_of[int(instance.number[row])] = used
                free[used] -= instance.scale[row]
                if free[used] == 0:
                    open_types.remove(drawn)


def _fits(instance: Instance, row: int, kind: int, free: Floats) -> bool:
    return bool(instance.scale[row] <= free[kind] and instance.rate[row, kind] > 0)


class GavelFifoPerf(Sharing):
    """The fastest free type for each, all over again each time."""

    name: ClassVar[str] = "gavel-fifo_perf"
    needs: ClassVar[Needs] = Needs.RATE
    aware: ClassVar[bool] = True
    strict: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """1 on the job's type, 0 elsewhere."""
        type_of, _ = _fastest(instance)
        share = np.zeros_like(instance.rate)
        has = type_of >= 0
        share[has, type_of[has]] = 1.0
        return Shares(share=share), None


class GavelFifoPacked(GavelFifoPerf):
    """As `GavelFifoPerf`; then waiting jobs join running ones."""

    name: ClassVar[str] = "gavel-fifo_packed"
    packs: ClassVar[bool] = True

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """1 for a job alone or a pair on its type, 0 elsewhere."""
        type_of, queue = _fastest(instance)
        partner: dict[int, int] = {}
        alone = [row for row in range(len(instance)) if type_of[row] >= 0]
        for row in queue:
            best, gain = -1, PACKING_THRESHOLD
            for other in alone:
                if instance.may_share(other, row):
                    together = _progress(instance, perf, other, row, int(type_of[other]))
                    if together > gain:
                        best, gain = other, together
            if best < 0:
                break
            partner[best] = row
            alone.remove(best)
        share = np.zeros_like(instance.rate)
        share[alone, type_of[alone]] = 1.0
        pairs = np.array([sorted(pair) for pair in partner.items()], np.int64).reshape(-1, 2)
        pair_share = np.zeros((len(pairs), share.shape[1]))
        pair_share[np.arange(len(pairs)), type_of[list(partner)]] = 1.0
        return Shares(share=share, pairs=pairs, pair_share=pair_share), None


def _fastest(instance: Instance) -> tuple[Ints, list[int]]:
    """The type of each job, -1 = none, and the rows of those after the first that did not fit."""
    order = np.array(instance.columns(), np.int64)
    type_of, rest = choose.fastest_free(instance.rate, instance.scale, instance.capacity, order)
    return type_of, list(range(rest, len(instance)))


def _progress(instance: Instance, perf: ThroughputModel, a: int, b: int, kind: int) -> float:
    """How many jobs' worth of progress two jobs make together."""
    numbers, kinds = instance.number, np.array([kind])
    first, second = sorted((a, b), key=lambda row: int(numbers[row]))
    rates = perf.pair_rates(numbers[[first]], numbers[[second]], kinds, instance.size[[first]])[0]
    total = 0.0
    for rate, row in zip(rates.tolist(), (first, second), strict=True):
        if rate > 0 and instance.rate[row, kind] > 0:
            total += rate / instance.rate[row, kind]
    return float(total)
