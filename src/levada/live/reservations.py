"""Reservations by users: foreign GPU use whose id carries the end time."""

from __future__ import annotations

import asyncio
import logging
import secrets

from levada.backends.protocol import Report
from levada.core import events as ev
from levada.live.loop import Loop

_log = logging.getLogger(__name__)

_PREFIX = "reservation:"
#: Seconds between two checks.
_CHECK_S = 1.0


def new_id(until: float, user: str) -> str:
    """Return a new id of a reservation that ends at *until* (unix time)."""
    return f"{_PREFIX}{until:.3f}:{user}:{secrets.token_hex(3)}"


def is_reservation(foreign_id: str) -> bool:
    """Whether foreign GPU use is a reservation by a user."""
    return foreign_id.startswith(_PREFIX)


def ends_at(foreign_id: str) -> float:
    """Return the unix time at which a reservation ends."""
    return float(foreign_id.split(":")[1])


class ReservationExpiry:
    """Releases reservations within 1 s of their end, also those that were made before a restart."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(_CHECK_S)

    def check(self) -> None:
        """Release all reservations whose end has passed."""
        now = self._loop.clock.now()
        ids = [name for name in self._loop.engine.query.foreign if is_reservation(name)]
        expired = tuple(name for name in ids if ends_at(name) <= now)
        if expired:
            _log.info("release reservations: %s", ", ".join(expired))
            self._loop.observe(Report(events=(ev.ForeignGone(at=0.0, ids=expired),)))
