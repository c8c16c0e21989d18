"""Retention: removes old turns, events, jobs and audit entries from the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from levada.errors import BadInput, did_you_mean
from levada.live import snapshot
from levada.live.loop import Loop
from levada.live.store import Expired, LeaseLost, StoreError

_log = logging.getLogger(__name__)

_DAY_S = 86_400.0
#: Seconds between two passes and between two batches; rows of each table per batch.
_EVERY_S, _PAUSE_S, _BATCH = 60.0, 0.05, 100
#: Intact snapshots that must follow a turn before it is removed; the newest may become damaged.
_SNAPSHOTS = 2


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Retention times in seconds; what a start needs is never removed."""

    #: Events; those of a job are also removed when its TTL ends.
    events: float = 90 * _DAY_S
    #: Usage of ended jobs; listed jobs stay.
    jobs: float = 400 * _DAY_S
    #: Entries of the audit log.
    audit: float = 400 * _DAY_S

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) >= _DAY_S:
                raise BadInput.one(f"--keep {name}: must be a day or more")

    @staticmethod
    def of(times: Mapping[str, float]) -> Keep:
        """Return these times, with defaults for the others; raises BadInput."""
        for name in times:
            if name not in Keep.__struct_fields__:
                known = ", ".join(Keep.__struct_fields__)
                advice = did_you_mean(name, Keep.__struct_fields__, f"{known} can be kept")
                raise BadInput.one(f"--keep {name}: unknown kind of data" + advice)
        return Keep(**times)


class RetentionTask:
    """Removes expired rows once a minute while the server runs."""

    def __init__(self, loop: Loop, keep: Keep) -> None:
        self._loop, self._keep = loop, keep
        #: Number of snapshots at the last check, and the last turn that may be removed.
        self._checked, self._last = -1, 0

    async def run(self) -> None:
        """Run until cancelled, or until another server takes the lease."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.once()
            except LeaseLost:
                return
            except StoreError as error:
                _log.warning("cannot remove old rows, will retry: %s", error)

    async def once(self) -> int:
        """Remove everything that is expired now, in batches; returns the number of rows."""
        store, now = self._loop.store, self._loop.clock.now()
        expired = Expired(
            turn=await self._last_removable_turn(),
            history_before=now - self._keep.events,
            jobs_before=now - self._keep.jobs,
            audit_before=now - self._keep.audit,
        )
        removed = 0
        while batch := await store.trim(self._loop.lease, expired, _BATCH):
            removed += batch
            await asyncio.sleep(_PAUSE_S)
        while await store.shrink(self._loop.lease):
            await asyncio.sleep(_PAUSE_S)
        if removed:
            _log.info("removed old rows: %d", removed)
        return removed

    async def _last_removable_turn(self) -> int:
        """Return the turn of the oldest intact snapshot; 0 with fewer than two of them."""
        taken = self._loop.snapshots
        if self._checked != taken:
            intact = []
            async for sequence, body in self._loop.store.snapshots():
                try:
                    await asyncio.to_thread(snapshot.check, body)
                    intact.append(sequence)
                except snapshot.Unusable as error:
                    _log.error("unusable snapshot of turn %d: %s", sequence, error)
            self._checked, self._last = taken, intact[-1] if len(intact) >= _SNAPSHOTS else 0
        return self._last
