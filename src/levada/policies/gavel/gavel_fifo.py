"""First come, first served, with one GPU type per job.

Source: Gavel (OSDI 2020), its three `fifo` policies; the names here start with `gavel-`, because `fifo` is Voda's.

    gavel-fifo         a job keeps its first type; the head of the queue replaces a finished job on its type
    gavel-fifo_perf    starts over at each call: each job on the fastest type that has room for it
    gavel-fifo_packed  like _perf; then the head of the queue joins the running job it matches best, if both together
                       progress more than 1.5 times as fast as one job alone

No backfill: the first job that does not fit ends the pass. `gavel-fifo` draws one of the types with room at random. The
published code, used by the published mechanism, draws a type but uses the last free one by name, and removes the drawn
type from its list when the used one is full. It thus promises more of a type than exists, and fewer jobs run.
"""

from __future__ import annotations

from bisect import insort
from typing import ClassVar

import msgspec
import numpy as np

from levada.compat.gavel.mersenne import Mersenne
from levada.core.types import Floats, Ints
from levada.kernels import greedy
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.lp_common import can_run
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.protocol import Needs

#: Two jobs share devices only if their joint progress exceeds this; one job alone counts 1.
PACKING_THRESHOLD = 1.5


class FifoState(msgspec.Struct, frozen=True, kw_only=True):
    """The type of each job that has one, by number, and the generator."""

    type_of: dict[int, int] = {}
    generator: tuple[int, ...] = ()


class GavelFifo(ShareDefaults):
    """One type per job, kept until the job ends."""

    name: ClassVar[str] = "gavel-fifo"
    strict: ClassVar[bool] = True

    def initial(self, seed: int) -> FifoState:
        """No job has a type."""
        return FifoState(generator=Mersenne(seed).getstate())

    def shares(self, instance: Instance, perf: ThroughputModel, state: FifoState) -> tuple[Shares, FifoState]:
        """1 on the job's type, 0 elsewhere."""
        rng, line = Mersenne.fromstate(state.generator), _Line(instance, state)
        _keep(line)
        _draw(line, rng)
        return line.shares(), FifoState(type_of=line.type_of, generator=rng.getstate())


class GavelFifoPublished(ShareDefaults):
    """`gavel-fifo` with the defects of the published code."""

    name: ClassVar[str] = "gavel-fifo"
    strict: ClassVar[bool] = True

    def initial(self, seed: int) -> FifoState:
        """No job has a type."""
        return FifoState(generator=Mersenne(seed).getstate())

    def shares(self, instance: Instance, perf: ThroughputModel, state: FifoState) -> tuple[Shares, FifoState]:
        """1 on the job's type, 0 elsewhere."""
        rng, line = Mersenne.fromstate(state.generator), _Line(instance, state)
        _keep_as_published(line)
        _draw_as_published(line, rng)
        return line.shares(), FifoState(type_of=line.type_of, generator=rng.getstate())


class _Line:
    """One pass: the types of jobs so far, the pending queue, and the free GPUs."""

    def __init__(self, instance: Instance, state: FifoState) -> None:
        self.instance = instance
        self.row_of = {int(number): row for row, number in enumerate(instance.number)}
        self.free = instance.capacity.copy()
        self.type_of = dict(state.type_of)
        self.queue = [number for number in sorted(self.row_of) if number not in self.type_of]

    def take(self, number: int, kind: int) -> None:
        self.type_of[number] = kind
        self.free[kind] -= self.instance.scale[self.row_of[number]]

    def shares(self) -> Shares:
        share = np.zeros_like(self.instance.rate)
        for number, kind in self.type_of.items():
            share[self.row_of[number], kind] = 1.0
        return Shares(share=share)


def _keep(line: _Line) -> None:
    """Jobs keep their types while they fit; the others return to the queue."""
    for number in sorted(line.type_of):
        kind = line.type_of[number]
        if number in line.row_of and _fits(line.instance, line.row_of[number], kind, line.free):
            line.take(number, kind)
            continue
        del line.type_of[number]
        if number in line.row_of:
            insort(line.queue, number)


def _draw(line: _Line, rng: Mersenne) -> None:
    """Draw a type with room for each pending job, up to the first without room."""
    types, runs = line.instance.columns(), can_run(line.instance)
    for number in sorted(line.queue, key=line.row_of.__getitem__):
        row = line.row_of[number]
        if not runs[row].any():
            continue
        fitting = [kind for kind in types if _fits(line.instance, row, kind, line.free)]
        if not fitting:
            break
        line.take(number, fitting[rng.randrange(len(fitting))])


def _keep_as_published(line: _Line) -> None:
    """All jobs keep their types; the head of the queue replaces a finished one."""
    for number in sorted(line.type_of):
        kind = line.type_of[number]
        if number in line.row_of:
            line.take(number, kind)
            continue
        del line.type_of[number]
        # The published code does not count later jobs on this type yet.
        if line.queue and _fits(line.instance, line.row_of[line.queue[0]], kind, line.free):
            line.take(line.queue.pop(0), kind)


def _draw_as_published(line: _Line, rng: Mersenne) -> None:
    """Draws one type per job of the queue, but uses the last open one."""
    instance, queue, free = line.instance, line.queue, line.free
    open_types = [kind for kind in instance.by_name() if free[kind] > 0]
    while queue and open_types:
        row = line.row_of[queue.pop(0)]
        fitting = [kind for kind in open_types if free[kind] >= instance.scale[row]]
        if not fitting:
            break
        drawn = fitting[rng.randrange(len(fitting))]
        used = open_types[-1]
        if instance.rate[row, used] > 0:
            line.take(int(instance.number[row]), used)
            if free[used] == 0:
                open_types.remove(drawn)


def _fits(instance: Instance, row: int, kind: int, free: Floats) -> bool:
    return bool(instance.scale[row] <= free[kind] and instance.rate[row, kind] > 0)


class GavelFifoPerf(ShareDefaults):
    """The fastest free type for each job, assigned again at each call."""

    name: ClassVar[str] = "gavel-fifo_perf"
    needs: ClassVar[Needs] = Needs.RATE
    aware: ClassVar[bool] = True
    strict: ClassVar[bool] = True

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """1 on the job's type, 0 elsewhere."""
        return Shares(share=_fastest(instance)[0]), None


class GavelFifoPacked(ShareDefaults):
    """Like `GavelFifoPerf`; then pending jobs join running ones."""

    name: ClassVar[str] = "gavel-fifo_packed"
    needs: ClassVar[Needs] = Needs.RATE
    aware: ClassVar[bool] = True
    strict: ClassVar[bool] = True
    packs: ClassVar[bool] = True

    def shares(self, instance: Instance, perf: ThroughputModel, state: None) -> tuple[Shares, None]:
        """1 for a job alone or a pair on its type, 0 elsewhere."""
        share, type_of, first = _fastest(instance)
        queue = range(first, len(instance))
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
        share[list(partner)] = 0.0
        pairs = np.array([sorted(pair) for pair in partner.items()], np.int64).reshape(-1, 2)
        pair_share = np.zeros((len(pairs), share.shape[1]))
        pair_share[np.arange(len(pairs)), type_of[list(partner)]] = 1.0
        return Shares(share=share, pairs=pairs, pair_share=pair_share), None


def _fastest(instance: Instance) -> tuple[Floats, Ints, int]:
    """Shares of 1, the type of each job (-1: none), and the first pending row."""
    types = len(instance.capacity)
    order = np.array(instance.by_name(), np.int64) if instance.published else np.arange(types)
    return greedy.fastest_free(instance.rate, instance.scale, instance.capacity, order)


def _progress(instance: Instance, perf: ThroughputModel, a: int, b: int, kind: int) -> float:
    """Joint progress of two jobs; one job alone on the type counts 1."""
    numbers, kinds = instance.number, np.array([kind])
    first, second = sorted((a, b), key=lambda row: int(numbers[row]))
    rates = perf.pair_rates(numbers[[first]], numbers[[second]], kinds, instance.size[[first]])[0]
    total = 0.0
    for rate, row in zip(rates.tolist(), (first, second), strict=True):
        if rate > 0 and instance.rate[row, kind] > 0:
            total += rate / instance.rate[row, kind]
    return float(total)
