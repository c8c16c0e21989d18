"""An event loop with virtual time: nothing waits, and the clock jumps to the next timer when all tasks are idle."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs without real I/O; a state in which nothing can ever happen is an error."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1
        if not self._ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise RuntimeError("all tasks wait for each other")
            self._now = max(self._now, timers[0].when())
        super()._run_once()  # type: ignore[misc]


def run(story: Coroutine[Any, Any, T], limit_s: float = 100_000.0) -> T:
    """Run a coroutine in virtual time; it fails after *limit_s* virtual seconds."""

    async def limited() -> T:
        async with asyncio.timeout(limit_s):
            return await story

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(limited())
