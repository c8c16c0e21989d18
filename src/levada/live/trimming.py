"""A server that runs for months keeps what is needed to start again, and what its users may still ask for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from levada.errors import BadInput, did_you_mean
from levada.live import snapshot
from levada.live.loop import Loop
from levada.live.store import LeaseLost, Spare, StoreTrouble

_log = logging.getLogger(__name__)

_DAY_S = 86_400.0
#: How often it is looked for what can go; the pause between two portions, and how many rows are one.
_EVERY_S, _PAUSE_S, _PORTION = 60.0, 0.05, 100
#: Turns go when so many snapshots that are whole come after them: the newest might be damaged later.
_SNAPSHOTS = 2


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """For how many seconds what users may ask for is kept. What a start needs is always kept."""

    #: What happened; what happened to a job also goes when it leaves the lists.
    events: float = 90 * _DAY_S
    #: What jobs used, after their end; jobs that are in lists stay.
    jobs: float = 400 * _DAY_S
    #: Who wrote what.
    audit: float = 400 * _DAY_S

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) >= _DAY_S:
                raise BadInput.one(f"--keep {name}: must be a day or more")

    @staticmethod
    def of(given: Mapping[str, float]) -> Keep:
        """These times, and the usual ones besides; raises BadInput."""
        for name in given:
            if name not in Keep.__struct_fields__:
                known = ", ".join(Keep.__struct_fields__)
                advice = did_you_mean(name, Keep.__struct_fields__, f"{known} can be kept")
                raise BadInput.one(f"--keep {name}: there is no such thing" + advice)
        return Keep(**given)


class Trimming:
    """Beside the loop, for as long as the server runs."""

    def __init__(self, loop: Loop, keep: Keep) -> None:
        self._loop, self._keep = loop, keep
        #: Snapshots that had been taken when they were last looked at, and the last turn that can go by them.
        self._looked_at, self._last = -1, 0

    async def run(self) -> None:
        """Until it is cancelled, or another server acts: whoever has the lease goes on with it."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.once()
            except LeaseLost:
                return
            except StoreTrouble as trouble:
                _log.warning("what is not needed any more goes later: %s", trouble)

    async def once(self) -> int:
        """Removes all that nobody needs now, in portions; how many rows."""
        store, now = self._loop.store, self._loop.clock.now()
        spare = Spare(
            turn=await self._spare_turn(),
            history_before=now - self._keep.events,
            jobs_before=now - self._keep.jobs,
            audit_before=now - self._keep.audit,
        )
        gone = 0
        while portion := await store.trim(self._loop.lease, spare, _PORTION):
            gone += portion
            await asyncio.sleep(_PAUSE_S)
        while await store.shrink(self._loop.lease):
            await asyncio.sleep(_PAUSE_S)
        if gone:
            _log.info("%d old rows removed", gone)
        return gone

    async def _spare_turn(self) -> int:
        """The last turn before the oldest snapshot that is whole; 0 where there are too few of those."""
        taken = self._loop.snapshots
        if self._looked_at != taken:
            whole = []
            async for sequence, body in self._loop.store.snapshots():
                try:
                    await asyncio.to_thread(snapshot.check, body)
                    whole.append(sequence)
                except snapshot.Unusable as why:
                    _log.error("the snapshot after turn %d cannot be used: %s", sequence, why)
            self._looked_at, self._last = taken, whole[-1] if len(whole) >= _SNAPSHOTS else 0
        return self._last
