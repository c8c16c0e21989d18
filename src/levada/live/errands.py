"""Operations on their way to the backend, one after the other, beside the turns.

To start a worker takes some milliseconds of disk and kernel. Who submits a job meanwhile must not wait for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from levada.core.plan import Op, OpKind


class Errands:
    """What is written down and not given to the backend yet, in the order of the turns."""

    def __init__(self, apply: Callable[[Op], Awaitable[None]], others_wait: Callable[[], bool]) -> None:
        self._apply, self._others_wait = apply, others_wait
        self._ops: deque[Op] = deque()
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ops)

    def add(self, ops: Iterable[Op]) -> None:
        """Takes operations whose turn is written down; a stop withdraws those of its job that are still queued."""
        fresh = list(ops)
        stopped = {op.job for op in fresh if op.kind == OpKind.STOP}
        if stopped and len(self._ops) > 1:
            # The first one may be with the backend already.
            first = self._ops.popleft()
            self._ops = deque([first, *(op for op in self._ops if op.job not in stopped)])
        self._ops.extend(fresh)
        if self._ops:
            self._news.set()

    async def run(self, done: Callable[[], None]) -> None:
        """Runs them for ever, and tells *done* whenever none is left."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._news.wait()
            self._news.clear()
            while self._ops:
                began = clock()
                await self._apply(self._ops[0])
                self._ops.popleft()
                # While others wait, half of the time is theirs.
                await asyncio.sleep(clock() - began if self._others_wait() else 0.0)
            done()
