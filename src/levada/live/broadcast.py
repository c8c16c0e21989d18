"""Live stream of history lines to any number of watchers; slow ones miss nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from itertools import takewhile

from levada.live.store import HistoryLine, Store

#: Lines in memory; a watcher that is further behind reads from the store.
_MAX_LINES = 4096


class Broadcast:
    """The newest lines, and an event that wakes all watchers."""

    def __init__(self, store: Store, last: int) -> None:
        self._store = store
        self._lines: deque[HistoryLine] = deque(maxlen=_MAX_LINES)
        self._wakeup = asyncio.Event()
        self.last = last
        #: The newest id that is no longer in memory.
        self._before = last
        self._closed = False

    def publish(self, lines: Sequence[HistoryLine]) -> None:
        """Publish stored lines."""
        if not lines:
            return
        self._lines.extend(lines)
        self.last = lines[-1].id
        self._before = self._lines[0].id - 1
        self._wake_watchers()

    def close(self) -> None:
        """End all watches."""
        self._closed = True
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        wakeup, self._wakeup = self._wakeup, asyncio.Event()
        wakeup.set()

    def _since(self, seen: int) -> list[HistoryLine]:
        newest_first = takewhile(lambda line: line.id > seen, reversed(self._lines))
        return list(newest_first)[::-1]

    async def watch(self, after: int | None) -> AsyncIterator[HistoryLine]:
        """Yield every line after this id (None: after now), then new ones as they come."""
        seen = self.last if after is None else after
        while True:
            wakeup = self._wakeup
            if seen < self._before:
                lines = await self._store.history(after=seen)
                if not lines:
                    seen = self._before
                    continue
            else:
                lines = self._since(seen)
            for line in lines:
                seen = line.id
                yield line
            if not lines:
                if self._closed:
                    return
                await wakeup.wait()
