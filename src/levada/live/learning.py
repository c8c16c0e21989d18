"""What was learned of workloads' speed: kept across restarts, and policies hear of it soon.

Progress is not in the log, so that replaying it teaches nothing. What progress taught is therefore kept by itself, by
the names of workloads and GPU types: a killed server loses a minute of it, and an upgrade nothing.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
import numpy as np

from levada.backends.protocol import Report
from levada.core.events import BeliefsChanged
from levada.engine import Engine
from levada.engine.state import State
from levada.live.loop import Loop
from levada.live.store import Store, StoreTrouble
from levada.perf import Estimator, EstimatorState, renumbered

_log = logging.getLogger(__name__)

_SETTING = "learned"
#: How often it is looked for news, and how often what was learned is kept.
_LOOK_S, _KEEP_S = 10.0, 60.0
#: A speed that moved by this factor, or was never seen before, is news once it is known this well (30 s of running).
_NEWS_FACTOR, _NEWS_CONFIDENCE = 1.1, 0.2


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What an estimator knows; its numbers of workloads and types are places in the lists of names."""

    workloads: list[str]
    types: list[str]
    state: EstimatorState


def pack(state: State) -> bytes | None:
    """All that was learned; None where beliefs are of another kind."""
    beliefs = state.beliefs()
    if not isinstance(beliefs, Estimator):
        return None
    told = beliefs.state()
    workloads = sorted({*told.workload, *told.restart_workload, *told.seen})
    types = sorted(set(told.gpu_type))
    moved = renumbered(
        told,
        {number: place for place, number in enumerate(workloads)},
        {number: place for place, number in enumerate(types)},
    )
    names, kinds = state.world.workloads, state.world.inventory.types
    return msgspec.json.encode(
        Learned(workloads=[names[each] for each in workloads], types=[kinds[each] for each in types], state=moved)
    )


def unpack(state: State, packed: bytes | str) -> None:
    """Lets *state* know what was learned once, as far as it knows the names; raises `msgspec.DecodeError`."""
    told = msgspec.json.decode(packed, type=Learned)
    if not isinstance(state.perf, Estimator):
        return
    state.learn()  # what is pending belongs to the beliefs that are replaced
    names, kinds = state.world.workloads, state.world.inventory.types
    workloads = {place: names.find(name) for place, name in enumerate(told.workloads) if name in names}
    types = {place: kinds.find(name) for place, name in enumerate(told.types) if name in kinds}
    before = state.perf.state()
    fresh = Estimator.restore(renumbered(told.state, workloads, types), state.perf.tuning)
    fresh.bind(np.array(before.jobs, np.int64), np.array(before.job_workload, np.int64))
    state.perf = fresh


async def recall(store: Store, engine: Engine) -> None:
    """Lets an engine that was recovered know what was learned before; that it fails costs only what was learned."""
    kept = await store.setting(_SETTING)
    if kept is None:
        return
    try:
        unpack(engine.state, kept)
    except (msgspec.DecodeError, IndexError, KeyError, ValueError) as broken:
        _log.warning("what was learned of workloads cannot be read and is forgotten: %s", broken)


class Learning:
    """Looks after what a running server learns."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._kept: bytes | None = None
        #: Rates by workload, type and size, as policies last heard of them.
        self._told = _rates(loop.engine.state)

    async def run(self) -> None:
        """Until it is cancelled."""
        kept = self._loop.clock.now()
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()
            if self._loop.clock.now() - kept >= _KEEP_S:
                kept = self._loop.clock.now()
                await self.keep()

    def look(self) -> None:
        """Has policies decide anew where a speed is seen for the first time, or is another than was thought."""
        rates = _rates(self._loop.engine.state)
        news = {cell for cell, rate in rates.items() if _differs(rate, self._told.get(cell))}
        self._told = {cell: rates[cell] if cell in news else self._told[cell] for cell in rates}
        if news:
            self._loop.hear(Report(events=(BeliefsChanged(at=0.0),)))

    async def keep(self) -> None:
        """Writes down what was learned."""
        packed = pack(self._loop.engine.state)
        if packed is None or packed == self._kept:
            return
        try:
            await self._loop.store.set_setting(_SETTING, packed.decode(), self._loop.lease)
            self._kept = packed
        except StoreTrouble as trouble:
            _log.warning("what was learned could not be kept: %s", trouble)


def _differs(rate: float, before: float | None) -> bool:
    return before is None or not before / _NEWS_FACTOR <= rate <= before * _NEWS_FACTOR


def _rates(state: State) -> dict[tuple[int, int, int], float]:
    """What is well enough known of the workloads that have jobs."""
    beliefs = state.beliefs()
    if not isinstance(beliefs, Estimator):
        return {}
    workload, gpu_type, size = beliefs.seen()
    rates, sure = beliefs.believed(workload, gpu_type, size)
    told = np.isin(workload, state.world.table.workload[state.living()]) & (sure >= _NEWS_CONFIDENCE)
    cells = zip(workload[told].tolist(), gpu_type[told].tolist(), size[told].tolist(), strict=True)
    return dict(zip(cells, rates[told].tolist(), strict=True))
