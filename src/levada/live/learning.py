"""What was learned of workloads' speed: kept across restarts, and policies hear of it soon.

Progress is not in the log, so that replaying it teaches nothing. What progress taught is therefore kept by itself, by
the names of workloads and GPU types: a killed server loses a minute of it, and an upgrade nothing.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from levada.backends.protocol import Report
from levada.core.events import BeliefsChanged
from levada.engine import Engine, learned
from levada.live.loop import Loop
from levada.live.store import Store, StoreTrouble

_log = logging.getLogger(__name__)

_SETTING = "learned"
#: How often it is looked for news, and how often what was learned is kept.
_LOOK_S, _KEEP_S = 10.0, 60.0
#: A speed that moved by this factor, or was never seen before, is news once it is known this well (30 s of running).
_NEWS_FACTOR, _NEWS_CONFIDENCE = 1.1, 0.2


async def recall(store: Store, engine: Engine) -> None:
    """Lets an engine that was recovered know what was learned before; that it fails costs only what was learned."""
    kept = await store.setting(_SETTING)
    if kept is None:
        return
    try:
        learned.load(engine, kept)
    except (msgspec.DecodeError, IndexError, KeyError, ValueError) as broken:
        _log.warning("what was learned of workloads cannot be read and is forgotten: %s", broken)


class Learning:
    """Looks after what a running server learns."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._kept: bytes | None = None
        #: Rates by workload, type and size, as policies last heard of them.
        self._told = learned.known_rates(loop.engine, _NEWS_CONFIDENCE)

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
        rates = learned.known_rates(self._loop.engine, _NEWS_CONFIDENCE)
        news = {cell for cell, rate in rates.items() if _differs(rate, self._told.get(cell))}
        self._told = {cell: rates[cell] if cell in news else self._told[cell] for cell in rates}
        if news:
            self._loop.hear(Report(events=(BeliefsChanged(at=0.0),)))

    async def keep(self) -> None:
        """Writes down what was learned."""
        packed = learned.dump(self._loop.engine)
        if packed is None or packed == self._kept:
            return
        try:
            await self._loop.store.set_setting(_SETTING, packed.decode(), self._loop.lease)
            self._kept = packed
        except StoreTrouble as trouble:
            _log.warning("what was learned could not be kept: %s", trouble)


def _differs(rate: float, before: float | None) -> bool:
    return before is None or not before / _NEWS_FACTOR <= rate <= before * _NEWS_FACTOR
