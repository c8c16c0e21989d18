"""History as it is written, for everybody who watches; nobody misses a line, however slow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from itertools import takewhile

from levada.live.store import HistoryLine, Store

#: Lines kept in memory; who is further behind reads from the store.
_KEPT = 4096


class Broadcast:
    """The newest lines, and a bell that rings at every one."""

    def __init__(self, store: Store, last: int) -> None:
        self._store = store
        self._lines: deque[HistoryLine] = deque(maxlen=_KEPT)
        self._news = asyncio.Event()
        self.last = last
        #: The last id that is not in memory.
        self._before = last
        self._over = False

    def publish(self, lines: Sequence[HistoryLine]) -> None:
        """These are written down."""
        if not lines:
            return
        self._lines.extend(lines)
        self.last = lines[-1].id
        self._before = self._lines[0].id - 1
        self._ring()

    def close(self) -> None:
        """Nothing more will come."""
        self._over = True
        self._ring()

    def _ring(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _since(self, seen: int) -> list[HistoryLine]:
        newest_first = takewhile(lambda line: line.id > seen, reversed(self._lines))
        return list(newest_first)[::-1]

    async def watch(self, after: int | None) -> AsyncIterator[HistoryLine]:
        """Every line after that id (after now, unless given), then those that come."""
        seen = self.last if after is None else after
        while True:
            news = self._news
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
                if self._over:
                    return
                await news.wait()
