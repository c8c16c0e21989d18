"""Storage of learned speeds, and notice to the policy when they change.

Progress is not in the log, so a replay learns nothing. Learned speeds are therefore stored separately, by names of
workloads and GPU types: a killed server loses at most one minute of them, an upgrade none.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from levada.backends.protocol import Report
from levada.core.events import BeliefsChanged
from levada.engine import Engine, learned
from levada.live.loop import Loop
from levada.live.store import Store, StoreError

_log = logging.getLogger(__name__)

_SETTING = "learned"
#: Seconds between two checks for changes, and between two writes to the store.
_CHECK_S, _STORE_S = 10.0, 60.0
#: A speed is news if it is new or has changed by this factor, with at least this confidence (30 s of running).
_NEWS_FACTOR, _NEWS_CONFIDENCE = 1.1, 0.2


async def load_learned(store: Store, engine: Engine) -> None:
    """Load the learned speeds into a recovered engine; unreadable ones are dropped."""
    stored = await store.setting(_SETTING)
    if stored is None:
        return
    try:
        learned.load(engine, stored)
    except (msgspec.DecodeError, IndexError, KeyError, ValueError) as error:
        _log.warning("dropping unreadable learned speeds: %s", error)


class Learning:
    """Stores learned speeds, and triggers a decision when they change."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._stored: bytes | None = None
        #: Rates by workload, type and size at the last `BeliefsChanged`.
        self._known = learned.known_rates(loop.engine, _NEWS_CONFIDENCE)

    async def run(self) -> None:
        """Run until cancelled."""
        stored_at = self._loop.clock.now()
        while True:
            await asyncio.sleep(_CHECK_S)
            self.check()
            if self._loop.clock.now() - stored_at >= _STORE_S:
                stored_at = self._loop.clock.now()
                await self.save()

    def check(self) -> None:
        """Trigger a decision if a speed is new or has changed by 10 %."""
        rates = learned.known_rates(self._loop.engine, _NEWS_CONFIDENCE)
        news = {cell for cell, rate in rates.items() if _differs(rate, self._known.get(cell))}
        self._known = {cell: rates[cell] if cell in news else self._known[cell] for cell in rates}
        if news:
            self._loop.observe(Report(events=(BeliefsChanged(at=0.0),)))

    async def save(self) -> None:
        """Store the learned speeds if they have changed."""
        packed = learned.dump(self._loop.engine)
        if packed is None or packed == self._stored:
            return
        try:
            await self._loop.store.set_setting(_SETTING, packed.decode(), self._loop.lease)
            self._stored = packed
        except StoreError as error:
            _log.warning("cannot store learned speeds: %s", error)


def _differs(rate: float, before: float | None) -> bool:
    return before is None or not before / _NEWS_FACTOR <= rate <= before * _NEWS_FACTOR
